"""A library that cannot be imported is told in one line, and a variable is named only if it is the reason."""

import os
import subprocess
import sys

import pytest
from repository import ROOT

from wm_env.common.foreign.imports import is_installed

COMMANDS = [
    ["train.py", "--run", "never", "--preset", "smoke"],
    ["evaluate.py", "never"],
    ["-m", "agents.frontier", "never"],
    ["-m", "wm_env.lm.build", "--out", "never.safetensors"],
]
HARMLESS = {"TORCH_LOGS": "+dynamo", "TORCH_HOME": "/never", "HF_HOME": "/never", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def fail(command, folder=None, **variables):
    """Run a command that cannot start; its exit code and its one line."""
    paths = [str(folder)] if folder is not None else []
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join((*paths, os.environ["PYTHONPATH"]))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_LOGS", "no-such-log"),  # read by torch's Python
        ("TORCH_DISTRIBUTED_DEBUG", "loud"),  # by its library
    ],
)
def test_a_variable_that_torch_cannot_read_is_named(name, value):
    code, line = fail(COMMANDS[0], **{name: value})
    assert code == 2
    assert line.startswith(f"error: {name} keeps torch from being imported (")


@pytest.mark.parametrize("command", COMMANDS)
def test_of_several_variables_the_one_that_matters_is_named_by_every_command(command, tmp_path):
    (tmp_path / "torch.py").write_text("import os\nif os.environ.get('TORCH_BAD') == '7': raise KeyError('seven')\n")
    code, line = fail(command, tmp_path, **HARMLESS, TORCH_BAD="7", TORCH_ALSO="7")
    assert (code, line) == (2, "error: TORCH_BAD keeps torch from being imported ('seven'): unset it, or correct it\n")


@pytest.mark.parametrize(
    ("command", "kind"),
    [*((command, "ImportError") for command in COMMANDS), (COMMANDS[0], "OSError"), (COMMANDS[0], "RuntimeError")],
)
def test_a_library_that_is_broken_by_itself_blames_no_variable(command, kind, tmp_path):
    (tmp_path / "torch.py").write_text(f"raise {kind}('libnever.so.1: cannot open shared object file')")
    code, line = fail(command, tmp_path, **HARMLESS)
    assert (code, line) == (1, "error: torch cannot be imported: libnever.so.1: cannot open shared object file\n")


def test_a_library_that_is_imported_late_is_told_too(tmp_path):
    (tmp_path / "transformers.py").write_text("import os\nint(os.environ.get('HF_NUMBER', '1'))")
    lines = (
        "from wm_env.common.command import exit_code, run_command",
        "def work():",
        "    import transformers",
        "run_command(lambda: exit_code(work))",
    )
    code, line = fail(["-c", "\n".join(lines)], tmp_path, **HARMLESS, HF_NUMBER="x")
    assert code == 2
    assert line.startswith("error: HF_NUMBER keeps transformers from being imported (invalid literal for int()")


def test_what_does_not_come_out_of_an_import_is_told_as_before():
    lines = (
        "from wm_env.common.command import exit_code, run_command",
        "def work():",
        "    import json; json.loads('{')",
        "run_command(lambda: exit_code(work))",
    )
    code, line = fail(["-c", "\n".join(lines)], TORCH_LOGS="no-such-log")
    assert code == 2
    assert line.startswith("error: Expecting property name")


def test_a_folder_is_no_library(tmp_path, monkeypatch):
    for name in ("folder_named_so", "package_named_so"):
        (tmp_path / name).mkdir()
    (tmp_path / "package_named_so" / "__init__.py").write_text("")
    (tmp_path / "module_named_so.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["package_named_so", "module_named_so", "folder_named_so", "nothing_named_so", "sys"]
    assert [is_installed(name) for name in names] == [True, True, False, False, True]
