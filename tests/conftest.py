"""Fixtures that several test modules share."""

import multiprocessing.util
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from repository import ROOT

from wm_env.synthetic import synthetic_tree
from wm_env.tree import StateTree, save_tree

# The same examples in every run of the suite, so that a change is judged by what it changes. `make search` looks for
# new counterexamples: `--hypothesis-profile random` wins over what is loaded here.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("repeatable")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)

# Commands and scripts that tests start import this checkout too, wherever they run and whatever is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _usual_signals() -> Iterator[None]:
    """Ctrl-C and SIGHUP as in a terminal, for this process and its children.

    Background jobs of a shell script ignore the first, what nohup starts ignores the second.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A test that leaves a signal handled otherwise fails, not the tests behind it whose children inherit that."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    left = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert left == before


@pytest.fixture(autouse=True, scope="session")
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What libraries leave in the temporary folder, such as Stable-Baselines3's log folders, goes with the tests'."""
    # multiprocessing removes its folder itself, after pytest removed those of the tests.
    multiprocessing.util.get_temp_dir()
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        # Kernels that torch compiled under other settings of the processor would be taken again, and abort.
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "kernels"))
        yield


@pytest.fixture(scope="session")
def small_tree() -> StateTree:
    """6 prompts, 2 blocks, 5 candidates of entropy 1.8 bits, two of them common to all states of a block."""
    return synthetic_tree(6, blocks=2, candidates=5, block_length=4, entropy=1.8, overlap=0.4, seed=3)


@pytest.fixture(scope="session")
def small_tree_file(small_tree: StateTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "small.safetensors"
    save_tree(small_tree, path)
    return path
