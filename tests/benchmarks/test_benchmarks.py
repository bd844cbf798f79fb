"""How the benchmarks end: bad arguments and input are one line and code 2, as in the commands of the package."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest
from repository import ROOT

from wm_env.common.command import exit_code

BENCHMARKS = ROOT / "benchmarks"
COMMANDS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "run_benchmark(main)" in path.read_text("utf-8"))


@pytest.fixture
def ends(monkeypatch, tmp_path, capsys):
    """Run a benchmark's `main` in an empty folder; its exit code, and what it printed to both streams."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up.
        monkeypatch.setitem(sys.modules, spec.name, module)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        spec.loader.exec_module(module)
        capsys.readouterr()
        return exit_code(module.main), *capsys.readouterr()

    return run


def test_every_benchmark_that_is_run_ends_as_a_command():
    started = {path.stem for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert set(COMMANDS) == started
    assert len(COMMANDS) >= 16


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("achievability --lengths 4 1000000000000", "--lengths 1000000000000: a number from 1 to 12"),
        ("achievability --slack nan", "--slack nan"),
        ("achievability --out .", ". is no file that can be written: name another --out"),
        ("coded --transmissions -1", "--transmissions -1"),
        ("coded --run never", "never: no such run folder"),
        ("common_maps --message-bits 0", "--message-bits 0: a number from 1 to 4"),
        ("drift --out x --states -1", "--states -1"),
        ("drift --out x --reference never.json", "never.json: no such file"),
        ("drift --out x --reference EMPTY", "reference is missing"),
        ("embedding law --count 0", "--count 0"),
        ("embedding law --count 1 --minutes nan", "--minutes nan"),
        ("embedding law --count 1 --words 0", "--words 0"),
        ("embedding edits --count 1 --minutes 0", "no item was done in 0 minutes: allow more"),
        ("embedding law --count 1 --model never", "unknown model 'never'"),
        ("extraction mini --threads -1", "--threads -1"),
        ("extraction card --model x --rows 24 0", "--rows 0"),
        ("extraction checkpoint x --layers 1000000000000", "--layers 1000000000000"),
        ("extraction efficiency never.json", "never.json: no such file"),
        ("extraction efficiency EMPTY", "processes is missing"),
        ("foreign --count 0", "--count 0"),
        ("foreign --scheme robust --count 1 --minutes nan", "--minutes nan"),
        ("foreign --count 1 --model never", "unknown model 'never'"),
        ("filling --log-length 1000000000000", "--log-length 1000000000000"),
        ("learner --labels 0", "--labels 0"),
        ("learner --rounds -1", "--rounds -1"),
        ("marks read --texts 0", "--texts 0"),
        ("marks write --marks never", "--marks never: the marks are robust"),
        ("marks speed --rounds 0", "--rounds 0"),
        ("memoryless rates --largest 5", "--largest 5: a number from 6 to 20"),
        ("memoryless rates --share nan", "--share nan"),
        ("memoryless noisy --substitution 2", "--substitution 2.0: a number from 0 to 1"),
        ("parallel table --count 0", "--count 0"),
        ("parallel table --count 1 --bit-error nan", "bit_error=nan"),
        ("parallel_messages write --count -1", "--count -1"),
        ("parallel_messages read never.jsonl", "never.jsonl: no such file"),
        ("parallel_messages read EMPTY", "key is missing"),
        ("peers --draws 17", "--draws 17: a multiple of 16 is needed"),
        ("peers --draws 1", "--draws 1: a number from 16 to 4096"),
        ("ppo --iterations 0", "--iterations 0"),
        ("ppo --seeds 0 -1", "--seeds -1"),
        ("robust_windows never.txt", "never.txt: no such file"),
        ("robust_windows never.txt --words 0", "--words 0"),
        ("successive --log-length 20 --frames 1000", "--frames 1000: a number from 1 to 64"),
        ("vector never.safetensors", "never.safetensors"),
    ],
)
def test_bad_arguments_and_input_are_one_line_and_code_2(ends, tmp_path, command, says):
    (tmp_path / "EMPTY").write_text("{}\n")
    name, *arguments = command.split(" ")
    code, _, error = ends(name, *arguments)
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert says in error
    assert [path.name for path in tmp_path.iterdir()] == ["EMPTY"]


def test_what_another_machine_made_is_compared_state_by_state(ends, tmp_path):
    pool = {"text": ["61", "62"], "log2_prob": [-1.0, -2.0], "cover": [0.6, 0.4]}
    stored = {"name": "a", "stack": "b", "seconds": 1.0, "pools": {"top": [pool], "sampled": [pool]}}
    for changes, says in (
        ({}, "file has 1 states, not 2: give it the same options"),
        ({"top": [pool | {"cover": [1.0]}]}, "has not one number for every text"),
        ({"top": [pool | {"text": ["zz", "62"]}]}, "hexadecimal"),
        ({"top": 5}, "reference.pools.top is 5, a list is needed"),
    ):
        changed = stored | {"pools": {**stored["pools"], **changes}}
        (tmp_path / "file").write_text(json.dumps({"reference": changed}))
        code, _, error = ends("drift", "--out", "x", "--states", "2", "--reference", "file")
        assert (code, error.count("\n")) == (2, 1)
        assert says in error


def test_ctrl_c_ends_all_processes_with_one_line(tmp_path):
    (tmp_path / "waiting.py").write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "import sharing\n"
        "from command import run_benchmark\n"
        "usual = sharing.as_completed\n"
        "def as_completed(futures):\n"
        "    Path('waits').touch()\n"
        "    return usual(futures)\n"
        "def work(share):\n"
        "    while not Path('waits').exists():\n"
        "        time.sleep(0.01)\n"
        "    os.write(1, b'started\\n')\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    sharing.as_completed = as_completed\n"
        "    run_benchmark(lambda: sharing.run_shares(work, 2, 2, 60))\n"
    )
    with subprocess.Popen(
        [sys.executable, "waiting.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(BENCHMARKS), str(BENCHMARKS.parent)))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
        process.send_signal(signal.SIGINT)
        # Their pipes are closed once all have ended.
        out, errors = process.communicate()
    assert (process.returncode, out, errors) == (130, "", "interrupted\n")
