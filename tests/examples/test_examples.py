"""Every example runs as a user runs it; a few steps each."""

import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from repository import ROOT
from word_texts import write_words

from polar.text.keys.key import Key, save_key
from wm_env.common.foreign.imports import is_installed

EXAMPLES = ROOT / "examples"
STEPS = {
    "cleanrl_ppo.py": 256,
    "minari_dataset.py": 2,
    "optuna_sweep.py": 1,
    "rllib_ppo.py": 256,
    "sb3_contrib_trpo.py": 256,
    "sb3_ppo.py": 256,
    "sb3_sac.py": 8,
    "six_tuple.py": 1,
    "skrl_ppo.py": 256,
    "tianshou_ppo.py": 256,
    "torchrl_env.py": 4,
    "vector_api.py": 4,
}
OTHERS = {"ray_data.py", "small_problem.py"}
"""Examples whose arguments are no steps, and what examples share."""

LEARNERS = {name for name in STEPS if name.endswith(("_ppo.py", "_sac.py", "_trpo.py"))}


class Library(NamedTuple):
    """What an example needs beyond the package; it is installed where all modules are found."""

    name: str
    command: str
    modules: tuple[str, ...]


NEEDS = {
    "minari_dataset.py": Library("Minari", "pip install 'minari[arrow]'", ("minari", "pyarrow")),
    "optuna_sweep.py": Library("Optuna", "pip install optuna", ("optuna",)),
    "rllib_ppo.py": Library("Ray RLlib", "pip install 'ray[rllib]'", ("ray", "ormsgpack")),
    "sb3_contrib_trpo.py": Library("sb3-contrib", "pip install sb3-contrib", ("sb3_contrib",)),
    "skrl_ppo.py": Library("skrl", "pip install skrl", ("skrl",)),
    "tianshou_ppo.py": Library("Tianshou", "pip install tianshou", ("tianshou",)),
    "torchrl_env.py": Library("TorchRL", "pip install torchrl", ("torchrl",)),
}


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(STEPS) | OTHERS


@pytest.mark.skipif(not is_installed("ray"), reason="no Ray: pip install 'ray[data]'")
def test_ray_data_reads_a_file_of_texts(tmp_path):
    key, texts, out = tmp_path / "a.key", tmp_path / "texts.jsonl", tmp_path / "out"
    save_key(Key(bytes(range(32))), key)
    marked = write_words(Key(bytes(range(32))), [1, 0] * 16, 0, 100)
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in (marked, "a plain one")))
    command = [sys.executable, str(EXAMPLES / "ray_data.py"), str(key), str(texts), str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 texts, 1 with a message"


@pytest.mark.skipif(is_installed("ray"), reason="Ray is there")
def test_ray_data_without_ray_is_one_line():
    command = [sys.executable, str(EXAMPLES / "ray_data.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: this example needs Ray Data (No module named 'ray'): pip install 'ray[data]'\n"


@pytest.mark.parametrize("name", sorted(STEPS))
def test_example_runs(name, tmp_path):
    library = NEEDS.get(name)
    if library is not None and not all(map(is_installed, library.modules)):
        pytest.skip(f"no {library.name}: {library.command}")
    # Some libraries write records to the working folder or to the user's own.
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), str(STEPS[name])],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "cost" in done.stdout
    if name == "minari_dataset.py":
        _check_data_sets(tmp_path / ".minari" / "datasets")
    # What a docstring quotes is a last line, with other numbers.
    quoted = [line.strip() for line in (EXAMPLES / name).read_text().splitlines() if line.startswith("    step ")]
    assert len(quoted) == (name in LEARNERS)
    number = re.compile(r"\d+(\.\d+)?")
    assert [number.sub("#", line) for line in quoted] in ([], [number.sub("#", done.stdout.splitlines()[-1])])


def _check_data_sets(folder):
    """What was written is what the environment gives again for the actions that were written."""
    import minari

    from wm_env.env import CovertWatermarkEnv

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        data_sets = [minari.load_dataset(f"covert-watermark/{name}-v0") for name in ("trained", "random")]
    for episodes in data_sets:
        assert len(list(episodes)) == 2
        for seed, episode in enumerate(episodes):
            env = CovertWatermarkEnv()
            _, info = env.reset(seed=seed, options={"prompts": 4})
            assert episode.infos["rate_bound"][0] == info["rate_bound"]
            for block, action in enumerate(episode.actions):
                np.testing.assert_array_equal(episode.observations["cover"][block], env._observation()["cover"])
                _, reward, ended, _, info = env.step(action)
                assert (episode.rewards[block], episode.infos["cost"][block + 1]) == (reward, info["cost"])
                assert episode.terminations[block] == ended
    # The policy of the package keeps its limit nearly, random laws do not.
    spent = [max(episode.infos["cost_so_far"][-1] for episode in episodes) for episodes in data_sets]
    assert spent[0] < 0.15 < spent[1]


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_missing_library_is_one_line_with_the_command(name, tmp_path):
    library = NEEDS[name]
    module = library.modules[0]
    # A folder in front of all others whose module cannot be imported.
    (tmp_path / f"{module}.py").write_text(
        f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n"
    )
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))},
    )
    assert done.returncode == 1
    assert done.stderr == f"error: this example needs {library.name} (No module named '{module}'): {library.command}\n"
