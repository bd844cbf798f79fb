"""Whether a library is there, and why it cannot be imported: a variable that it cannot read, or its own reason."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import TracebackType

OURS = ("wm_env", "agents", "polar")
"""The packages of this program. What their modules raise while they are imported is not a library's error."""

_READ_BY_LIBRARIES = ("TORCH", "PYTORCH", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "NUMBA_", "TRITON_")
"""How the names of variables begin that torch and the other libraries read when they are imported."""

_ALONE = "import importlib, sys; sys.path[:] = sys.argv[2:]; importlib.import_module(sys.argv[1])"


def is_installed(name: str) -> bool:
    """Whether the module or package `name` can be found.

    A folder of this name on the path does not count: without an __init__.py it is a namespace package, which has no
    origin. Libraries make such folders themselves, as Weights & Biases does wandb/ for its files.
    """
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def failed_import(error: BaseException) -> str | None:
    """The innermost module of a library that was being imported when `error` was raised; None if there was none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if (name := _imported(trace)) is not None:
            found = name
        trace = trace.tb_next
    return found


def _imported(trace: TracebackType) -> str | None:
    """The name of a library's module if this frame runs its top level."""
    name = trace.tb_frame.f_globals.get("__name__")
    if trace.tb_frame.f_code.co_name != "<module>" or not isinstance(name, str) or name == "__main__":
        return None
    return None if name.partition(".")[0] in OURS else name


def variable_to_blame(module: str) -> str | None:
    """The variable of the environment without which `module` could be imported; None if it cannot be anyway.

    This is tried, in processes of their own: with none of the variables that libraries read, then with one at a time.
    """
    names = sorted(name for name in os.environ if name.startswith(_READ_BY_LIBRARIES))
    if not names or not _can_import(module, without=names):
        return None
    alone = ((name, [other for other in names if other != name]) for name in names)
    return next((name for name, others in alone if not _can_import(module, others)), None)


def _can_import(module: str, without: list[str]) -> bool:
    left = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, module, *sys.path],
        env=left,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0
