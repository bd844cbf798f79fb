"""Models, tokenizers and checkpoints as pre-training writes and reads them."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_pretraining import counting_options, trained

from wm_env.common.command import is_system_failure
from wm_env.lm.models.checkpoint_tokenizer import read_tokenizer
from wm_env.lm.pretrain.checkpoint import TrainingProgress, load_progress, save_progress, save_tokenizer
from wm_env.lm.pretrain.cluster import Cluster
from wm_env.lm.pretrain.corpus import load_or_tokenize, train_tokenizer
from wm_env.lm.pretrain.recipe import Options


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    return counting_options(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def alone() -> Cluster:
    return Cluster(0, 1, torch.device("cpu"))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Within the context a file cannot grow beyond `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["checkpoint", "tokenizer", "tokens"])
def test_a_full_disk_is_a_failure_of_the_system_and_leaves_nothing_half_written(tmp_path: Path, kind: str) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("one two three four five six seven " * 200)
    tokenizer = train_tokenizer(["one two three four five six seven"], 280, 64)
    write: Callable[[], object] = {
        "checkpoint": lambda: save_progress(out / "c.safetensors", torch.nn.Linear(99, 99), (), TrainingProgress(), {}),
        "tokenizer": lambda: save_tokenizer(out, tokenizer),
        "tokens": lambda: load_or_tokenize([text], tokenizer, out / "tokens.safetensors"),
    }[kind]
    with files_of_at_most(2000), pytest.raises(OSError, match=f"{out} cannot be written .*File too large") as caught:
        write()
    assert is_system_failure(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out/*"))
    write()
    assert list(out.iterdir())


def test_a_saved_tokenizer_is_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["one two three four five six seven"], 280, 64)
    save_tokenizer(tmp_path / "new" / "folder", tokenizer)
    again = read_tokenizer(tmp_path / "new" / "folder")
    assert again.get_vocab() == tokenizer.get_vocab()
    assert (again.bos_token_id, again.eos_token_id, again.model_max_length) == (0, 1, 64)
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} >= {
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "folder"]


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        ("[1]", "progress is"),
        ("{", "is not JSON"),
        ('{"step": "4", "seconds": 1, "best": null, "history": []}', "progress.step is '4', an integer is needed"),
        ('{"step": 4, "seconds": 1, "best": null, "history": [[1]]}', r"progress.history\[0\]"),
        ('{"step": 4, "seconds": 1, "best": null}', "progress.history is missing"),
    ],
)
def test_a_checkpoint_is_read_by_its_types(
    options: Options, alone: Cluster, tmp_path: Path, progress: str, message: str
) -> None:
    trainer = trained(options, alone, 0)
    path = tmp_path / "checkpoint.safetensors"
    save_progress(path, trainer.network, trainer.optimizers, TrainingProgress(step=4), {})
    tensors = load_file(path)
    about = {"format": "1", "progress": progress, "settings": "{}"}
    save_file(tensors, path, about)
    with pytest.raises(ValueError, match=message) as caught:
        load_progress(path, trainer.network, trainer.optimizers, {})
    assert str(path) in str(caught.value)


def test_tensors_of_a_checkpoint_are_those_of_the_network(options: Options, alone: Cluster, tmp_path: Path) -> None:
    trainer = trained(options, alone, 1)
    path = tmp_path / "checkpoint.safetensors"
    save_progress(path, trainer.network, trainer.optimizers, TrainingProgress(step=4), {})
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    whole = load_file(path)
    name = next(name for name in whole if name.startswith("network "))
    parameter = name.partition(" ")[2]
    missing = {key: value for key, value in whole.items() if key != name}
    for tensors, wrong in (
        (missing, parameter),
        ({**missing, name: torch.zeros(1, 2, 3)}, parameter),
        ({**whole, "noise": torch.zeros(1)}, "'noise'"),
        ({**whole, f"exp_avg {parameter}": torch.zeros(7)}, f"'exp_avg {parameter}'"),
    ):
        save_file(tensors, path, about)
        with pytest.raises(ValueError, match="start in a new folder") as caught:
            load_progress(path, trainer.network, trainer.optimizers, {})
        assert wrong in str(caught.value)
