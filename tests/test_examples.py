"""Every example runs as a user runs it; a few steps each."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = {
    "cleanrl_ppo.py": 256,
    "sb3_ppo.py": 256,
    "sb3_sac.py": 8,
    "six_tuple.py": 1,
    "torchrl_env.py": 4,
    "vector_api.py": 4,
}


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(STEPS)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_example_runs(name):
    command = [sys.executable, str(EXAMPLES / name), str(STEPS[name])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cost" in done.stdout
