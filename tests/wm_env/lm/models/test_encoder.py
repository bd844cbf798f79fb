"""Masked language models of transformers: the same classes called plainly on the same canvas between its specials."""

import json
import math
from pathlib import Path

import pytest
import torch
from encoder_networks import random_network
from relative_files import ENCODER_MASK, FIRST_BYTE, encoder_tokenizer, write_encoder
from safetensors.torch import load_file, save_file

from wm_env.lm.models.encoder import surroundings
from wm_env.lm.models.load import load_lm

TEXT = [FIRST_BYTE + value for value in b"a text"]
CANVAS = [*TEXT, ENCODER_MASK, ENCODER_MASK]

KINDS = pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])


@KINDS
@pytest.mark.parametrize("position", [0, 6, 7])
def test_the_law_is_that_of_the_class_called_plainly(tmp_path: Path, kind: str, position: int) -> None:
    network = random_network(kind)
    lm = load_lm(write_encoder(tmp_path, network))
    with torch.no_grad():
        logits = network(torch.tensor([[0, *CANVAS, 2]])).logits[0, position + 1].double()
    weights = (logits[FIRST_BYTE:] / 2.0).exp()
    law = lm.log2_probs(torch.tensor([CANVAS, CANVAS[::-1]]), position, 2.0)
    torch.testing.assert_close(law[0, FIRST_BYTE:], (weights / weights.sum()).log2(), atol=1e-4, rtol=0)
    assert torch.all(law[:, :FIRST_BYTE] == -math.inf)
    assert law.shape == (2, 261)


@KINDS
def test_the_canvas_may_be_as_long_as_the_positions_between_the_specials(tmp_path: Path, kind: str) -> None:
    lm = load_lm(write_encoder(tmp_path, random_network(kind)))
    assert lm.max_length == 62
    full = torch.full((1, 62), FIRST_BYTE)
    assert lm.log2_probs(full, 61, 1.0).isfinite().any()
    with pytest.raises(ValueError, match="at most 62"):
        lm.log2_probs(torch.full((1, 63), FIRST_BYTE), 0, 1.0)


def test_a_tokenizer_without_special_tokens_around_a_text_adds_none(tmp_path: Path) -> None:
    tokenizer = encoder_tokenizer()
    assert surroundings(tokenizer) == ((0,), (2,))
    network = random_network("bert")
    folder = write_encoder(tmp_path, network)
    data = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**data, "post_processor": None}))
    lm = load_lm(folder)
    with torch.no_grad():
        logits = network(torch.tensor([CANVAS])).logits[0, 6, FIRST_BYTE:].double()
    law = lm.log2_probs(torch.tensor([CANVAS]), 6, 1.0)[0, FIRST_BYTE:]
    torch.testing.assert_close(law, logits.log_softmax(0) / math.log(2), atol=1e-4, rtol=0)


def test_tensors_of_other_tasks_are_passed_over_and_others_are_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, random_network("bert"))
    tensors = load_file(folder / "model.safetensors")
    before = load_lm(folder).log2_probs(torch.tensor([CANVAS]), 6, 1.0)
    extra = {"bert.pooler.dense.weight": torch.ones(32, 32), "cls.seq_relationship.bias": torch.ones(2)}
    save_file({**tensors, **extra}, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(load_lm(folder).log2_probs(torch.tensor([CANVAS]), 6, 1.0), before)
    save_file({**tensors, "bert.encoder.gate": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"unexpected tensor 'bert\.encoder\.gate'"):
        load_lm(folder)


@KINDS
def test_the_law_does_not_depend_on_the_length_of_the_header(tmp_path: Path, kind: str) -> None:
    """safetensors maps tensors where the header ends; kernels choose their order of summation by the address."""
    folder = write_encoder(tmp_path, random_network(kind))
    tensors = load_file(folder / "model.safetensors")
    laws = []
    for length in range(0, 64, 8):
        save_file(tensors, folder / "model.safetensors", {"format": "pt", "note": "x" * length})
        lm = load_lm(folder)
        assert all(parameter.data_ptr() % 64 == 0 for parameter in lm.network.parameters())
        laws.append(lm.log2_probs(torch.tensor([CANVAS]), 6, 1.0))
    assert all(torch.equal(law, laws[0]) for law in laws)


def test_a_missing_tensor_is_not_filled_with_random_numbers(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, random_network("roberta"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["roberta.encoder.layer.1.attention.self.query.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"missing.*layer\.1\.attention\.self\.query\.weight"):
        load_lm(folder)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, random_network("bert"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"no model\.safetensors"):
        load_lm(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_decoder": True}, "is_decoder"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "'gpt2'.*not read"),
        ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification.*not read"),
        ({"model_type": "owners-own", "auto_map": {"AutoConfig": "code.Config"}}, "'owners-own'.*not read"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"hidden_size": 30}, "cannot load this bert"),
    ],
)
def test_other_kinds_are_refused_in_one_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = write_encoder(tmp_path, random_network("bert"))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(ValueError, match=message) as caught:
        load_lm(folder)
    assert "\n" not in str(caught.value)


def test_more_layers_than_tensors_are_refused_before_they_are_made(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, random_network("bert"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**12}))
    with pytest.raises(ValueError, match=r"num_hidden_layers is 1000000000000, and the checkpoint has \d+ tensors"):
        load_lm(folder)


def test_the_fingerprint_follows_weights_and_configuration(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, random_network("bert"))
    first = load_lm(folder).fingerprint
    assert load_lm(folder, dtype=torch.bfloat16).fingerprint == first
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.bias"][0] += 1e-3
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert load_lm(folder).fingerprint != first
