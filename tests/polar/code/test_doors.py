"""The package as a library: its example, and its names."""

import re
from typing import Any

import pytest

import polar.code


def test_the_example_runs_and_reads_what_the_channel_lets_through() -> None:
    """X differs from U with probability 0.06, and all words are equally likely: MAP errs with that probability."""
    assert polar.code.__doc__ is not None
    lines = [line[4:] for line in polar.code.__doc__.splitlines() if line.startswith("    ")]
    assert len(lines) <= 11
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert names["wrong"] == pytest.approx(0.06, abs=0.03)


def test_every_door_is_there_and_described() -> None:
    assert polar.code.__doc__ is not None
    for name in polar.code.__all__:
        assert hasattr(polar.code, name)
    for name in re.findall(r"`(\w+)`", polar.code.__doc__.partition("Short blocks")[2]):
        assert name in polar.code.__all__, name
