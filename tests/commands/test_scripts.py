"""The console scripts, and the files at the top that do the same."""

import importlib
import json
import subprocess
import sys
import tomllib

import pytest
from repository import ROOT

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
LAUNCHER = "import sys; from {module} import {name}; sys.argv[0] = {script!r}; sys.exit({name}())"
"""What pip writes."""


def script(name, *arguments, cwd=ROOT):
    """Run a console script as it is when it is installed."""
    module, function = SCRIPTS[name].split(":")
    code = LAUNCHER.format(module=module, name=function, script=name)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "100", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_three():
    assert sorted(SCRIPTS) == ["covert-evaluate", "covert-text", "covert-train"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_calls_it_by_its_name(name):
    done = script(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {name} " in done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("covert-train", ["--labels", "1"], "error: labels=1: a label needs at least two values to carry anything\n"),
        ("covert-evaluate", ["never"], "error: never: no such run folder\n"),
        (
            "covert-text",
            ["decode", "never", "--key", "never"],
            "error: never: no such key file; make one with `python -m polar keygen FILE`\n",
        ),
    ],
)
def test_bad_input_is_one_line_and_code_2(name, arguments, says, tmp_path):
    done = script(name, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "file"), [("covert-train", "train.py"), ("covert-evaluate", "evaluate.py")])
def test_the_files_at_the_top_are_the_same_commands(name, file):
    done = subprocess.run(
        [sys.executable, file, "--help"], cwd=ROOT, env={"COLUMNS": "100"}, capture_output=True, text=True, check=False
    )
    assert done.stdout.replace(f"usage: {file} ", f"usage: {name} ").split() == script(name, "--help").stdout.split()


def test_a_run_is_trained_and_notes_its_command(tmp_path):
    arguments = ["--agent", "planner", "--preset", "smoke", "--run", "run"]
    done = script("covert-train", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["command"] == ["covert-train", *arguments]


def test_the_functions_say_what_they_run():
    for name, place in SCRIPTS.items():
        module, function = place.split(":")
        assert name in getattr(importlib.import_module(module), function).__doc__
