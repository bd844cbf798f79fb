"""The console scripts of this package, as pyproject.toml names them."""

from wm_env.common.command import run_module


def covert_evaluate() -> None:
    """`covert-evaluate`, the same as `python -m polar.evaluate`."""
    run_module("polar.evaluate")


def covert_text() -> None:
    """`covert-text`, the same as `python -m polar`."""
    run_module("polar.__main__")
