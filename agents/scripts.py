"""The console script of this package, as pyproject.toml names it."""

from wm_env.common.command import run_module


def covert_train() -> None:
    """`covert-train`, the same as `python -m agents.train`."""
    run_module("agents.train")
