"""The message schemes: how bits choose tokens. Each is a folder here, and its name is in `NAMES`."""

from importlib import import_module

from polar.text.scheme import Scheme

NAMES = (
    "stream",
    "block",
    "parallel",
    "robust",
)
"""The folders; the first is the default. Each holds `SCHEME`, an instance with the default settings."""


def load_schemes() -> dict[str, Scheme]:
    """All schemes with their default settings, by name. Free of torch."""
    found = {}
    for name in NAMES:
        scheme: Scheme = import_module(f"{__name__}.{name}").SCHEME
        found[name] = scheme
    return found
