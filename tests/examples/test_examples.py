"""Every example runs as a user runs it; a few steps each."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from repository import ROOT
from word_texts import write_words

from polar.text.keys.key import Key, save_key

EXAMPLES = ROOT / "examples"
STEPS = {
    "cleanrl_ppo.py": 256,
    "sb3_ppo.py": 256,
    "sb3_sac.py": 8,
    "six_tuple.py": 1,
    "torchrl_env.py": 4,
    "vector_api.py": 4,
}
OTHERS = {"ray_data.py"}
"""Examples whose arguments are no steps."""

LEARNERS = ("cleanrl_ppo.py", "sb3_ppo.py", "sb3_sac.py")


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(STEPS) | OTHERS


@pytest.mark.skipif(find_spec("ray") is None, reason="no Ray: pip install 'ray[data]'")
def test_ray_data_reads_a_file_of_texts(tmp_path):
    key, texts, out = tmp_path / "a.key", tmp_path / "texts.jsonl", tmp_path / "out"
    save_key(Key(bytes(range(32))), key)
    marked = write_words(Key(bytes(range(32))), [1, 0] * 16, 0, 100)
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in (marked, "a plain one")))
    command = [sys.executable, str(EXAMPLES / "ray_data.py"), str(key), str(texts), str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 texts, 1 with a message"


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is there")
def test_ray_data_without_ray_is_one_line():
    command = [sys.executable, str(EXAMPLES / "ray_data.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: this example needs Ray Data (No module named 'ray'): pip install 'ray[data]'\n"


@pytest.mark.parametrize("name", sorted(STEPS))
def test_example_runs(name):
    command = [sys.executable, str(EXAMPLES / name), str(STEPS[name])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cost" in done.stdout
    # What a docstring quotes is a last line, with other numbers.
    quoted = [line.strip() for line in (EXAMPLES / name).read_text().splitlines() if line.startswith("    step ")]
    assert len(quoted) == (name in LEARNERS)
    number = re.compile(r"\d+(\.\d+)?")
    assert [number.sub("#", line) for line in quoted] in ([], [number.sub("#", done.stdout.splitlines()[-1])])


def test_a_missing_library_is_one_line_with_the_command(tmp_path):
    # A folder in front of all others whose torchrl cannot be imported.
    (tmp_path / "torchrl.py").write_text("raise ModuleNotFoundError(\"No module named 'torchrl'\", name='torchrl')\n")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "torchrl_env.py")],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))},
    )
    assert done.returncode == 1
    assert done.stderr == "error: this example needs TorchRL (No module named 'torchrl'): pip install torchrl\n"
