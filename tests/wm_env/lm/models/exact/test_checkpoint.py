"""Integer checkpoints, and that a law depends on the content of the tensors and nothing about their file."""

import json
from pathlib import Path

import pytest
import torch
from llada_files import random_tensors, write_checkpoint
from relative_files import dream_tensors, write_dream
from safetensors.torch import load_file, save_file
from tiny_lm import write_lm
from torch import Tensor

from wm_env.lm import quantise
from wm_env.lm.models.exact import checkpoint
from wm_env.lm.models.exact.quantise import W8, W24
from wm_env.lm.models.load import load_lm, write_integer_model
from wm_env.lm.models.masked_lm import MaskedLM

CANVAS = torch.randint(0, 250, (2, 30), generator=torch.Generator().manual_seed(0))


def law(lm: MaskedLM) -> Tensor:
    return lm.log2_probs(CANVAS, 25, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llada"), random_tensors())


@pytest.fixture(scope="module")
def integers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("integers") / "model"
    write_integer_model(folder, out, W8)
    return out


def test_the_integer_model_is_the_rounded_one(folder: Path, integers: Path) -> None:
    exact, floats = load_lm(integers), load_lm(integers, arithmetic="float")
    assert exact.number_format == "exact-1 w8"
    assert exact.fingerprint == floats.fingerprint != load_lm(folder).fingerprint
    allowed = ~exact.banned
    rounding = (law(exact) - law(floats))[:, allowed].abs().max()
    # What is left is the rounding of activations; that of weights is larger.
    assert rounding < 0.02 < (law(exact) - law(load_lm(folder)))[:, allowed].abs().max()
    stored = load_file(integers / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.int8, torch.float32}
    assert (integers / "model.safetensors").stat().st_size < 0.45 * (folder / "model.safetensors").stat().st_size


def test_the_integer_model_of_dream_keeps_biases_and_the_shift(tmp_path: Path) -> None:
    source = write_dream(tmp_path / "dream", dream_tensors())
    write_integer_model(source, tmp_path / "fine", W24)
    write_integer_model(source, tmp_path / "coarse", W8)
    assert torch.equal(law(load_lm(tmp_path / "fine")), law(load_lm(source)))
    allowed = ~load_lm(source).banned
    assert (law(load_lm(tmp_path / "coarse")) - law(load_lm(source)))[:, allowed].abs().max() < 2


def test_integers_written_in_shards_are_the_same_model(
    folder: Path, integers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as small:
        small.setattr(checkpoint, "_SHARD_BYTES", 5000)
        assert len(write_integer_model(folder, tmp_path / "parts", W8)) > 3
    whole, parts = load_lm(integers), load_lm(tmp_path / "parts")
    assert parts.fingerprint == whole.fingerprint
    assert torch.equal(law(parts), law(whole))
    # An integer model is written as it is.
    write_integer_model(integers, tmp_path / "again", W8)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (integers / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_order_and_metadata_of_a_file_change_no_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors().items()}
    first = load_lm(write_checkpoint(tmp_path / "first", tensors))
    for number, length in enumerate((1, 7, 1001)):
        other = write_checkpoint(tmp_path / f"other{number}", tensors)
        backwards = dict(reversed(tensors.items()))
        save_file(backwards, other / "model.safetensors", {"note": "x" * length})
        assert torch.equal(law(load_lm(other)), law(first))
        assert load_lm(other).fingerprint == first.fingerprint


def test_a_changed_byte_is_named(integers: Path, tmp_path: Path) -> None:
    tensors = load_file(integers / "model.safetensors")
    name = "model.transformer.blocks.1.up_proj.weight"
    tensors[name][3, 5] ^= 1
    for file in integers.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    for arithmetic in ("exact", "float"):
        with pytest.raises(ValueError, match="is damaged: its tensors are not those"):
            load_lm(tmp_path, arithmetic=arithmetic)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arithmetic": "exact-2"}, "made for the arithmetic 'exact-2', this is 'exact-1'"),
        ({"arithmetic": None}, "made for the arithmetic None"),
        ({"weight_format": "w4"}, "weight_format 'w4' is not implemented"),
        ({"weights_sha256": "0"}, "is damaged"),
        ({"arithmetic": None, "weight_format": None, "weights_sha256": None}, "unexpected tensor"),
    ],
)
def test_a_model_of_another_version_is_named(
    integers: Path, tmp_path: Path, changes: dict[str, str | None], message: str
) -> None:
    for file in integers.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = json.loads((integers / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        load_lm(tmp_path)


def test_the_command_writes_a_model_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lm(tmp_path / "lm")
    assert quantise.main([str(source), str(tmp_path / "out")]) == 0
    assert "1 file(s) of tensors" in capsys.readouterr().out
    assert load_lm(tmp_path / "out").is_exact
    assert quantise.main([str(source), str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "link").symlink_to("nowhere")
    assert quantise.main([str(source), str(tmp_path / "link")]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'link'} is a link to nothing: name another folder, or remove the link\n"
    )


def test_exact_arithmetic_is_asked_for_or_refused(folder: Path) -> None:
    assert load_lm(folder).is_exact
    assert not load_lm(folder, dtype=torch.float32).is_exact
    assert load_lm(folder, arithmetic="float").number_format == "float32"
    with pytest.raises(ValueError, match="number format of its own"):
        load_lm(folder, arithmetic="exact", dtype=torch.float32)
