"""The pruned forward pass against a pass written out in plain torch operations, which shares nothing with it."""

from pathlib import Path

import pytest
import torch
from llada_files import MASK_ID, config_json, random_tensors, write_checkpoint
from plain_llada import plain_logits
from relative_files import dream_tensors, write_dream, write_encoder
from transformers import BertConfig, BertForMaskedLM

from wm_env.lm.models.forward import hidden_at
from wm_env.lm.models.llada_config import LLaDAConfig
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM, compiled_lm, is_layer_stack

CANVAS = torch.tensor([[5, 100, MASK_ID, 200, MASK_ID, MASK_ID, 31], [1, 2, 3, 4, 5, 6, MASK_ID]])


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> MaskedLM:
    return load_lm(write_checkpoint(tmp_path_factory.mktemp("llada"), random_tensors()), arithmetic="float")


@pytest.mark.parametrize("position", range(7))
def test_log_probabilities_are_those_of_the_pass_written_out(lm: MaskedLM, position: int) -> None:
    tensors = {name: tensor.double() for name, tensor in random_tensors().items()}
    config = LLaDAConfig.from_json(config_json())
    law = lm.log2_probs(CANVAS, position, 1.0)[:, :256] * torch.tensor(2.0, dtype=torch.float64).log()
    for row, canvas in zip(law, CANVAS, strict=True):
        logits = plain_logits(tensors.__getitem__, config, canvas)[position, :256]
        assert logits.abs().max() > 3
        assert (row - logits.log_softmax(-1)).abs().max() < 1e-4


def test_the_pass_written_out_has_a_tied_head_and_as_many_keys_as_queries() -> None:
    tensors = random_tensors()
    config = LLaDAConfig.from_json(config_json(weight_tying=True))
    logits = plain_logits(tensors.__getitem__, config, CANVAS[0])
    same = {**tensors, "model.transformer.ff_out.weight": tensors["model.transformer.wte.weight"]}
    other = plain_logits(same.__getitem__, LLaDAConfig.from_json(config_json()), CANVAS[0])
    assert torch.equal(logits, other)


def test_every_other_position_reaches_the_one_that_is_read(lm: MaskedLM) -> None:
    with torch.no_grad():
        before = hidden_at(lm.network, CANVAS[:1], 3)
        for place in range(7):
            changed = CANVAS[:1].clone()
            changed[0, place] = 77
            assert (hidden_at(lm.network, changed, 3) - before).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_pruned_and_whole_passes_agree(lm: MaskedLM, tmp_path: Path, kind: str) -> None:
    network = (lm if kind == "llada" else load_lm(write_dream(tmp_path, dream_tensors()), arithmetic="float")).network
    with torch.no_grad():
        whole = network.model(CANVAS, use_cache=False).last_hidden_state
        for position in range(7):
            torch.testing.assert_close(hidden_at(network, CANVAS, position), whole[:, position], atol=1e-5, rtol=1e-5)


def test_only_stacks_of_decoder_layers_are_compiled(lm: MaskedLM, tmp_path: Path) -> None:
    assert is_layer_stack(lm.network)
    config = BertConfig(
        vocab_size=261, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    encoder = load_lm(write_encoder(tmp_path, BertForMaskedLM(config).eval()))
    assert not is_layer_stack(encoder.network)
    with pytest.raises(ValueError, match="only LLaDA and Dream"):
        compiled_lm(encoder)


def test_exact_arithmetic_is_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="arithmetic='float'"):
        compiled_lm(load_lm(write_checkpoint(tmp_path, random_tensors())))


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch.compile's C++ needs vector instructions"
)
def test_compiled_layers_give_the_same_law(tmp_path: Path, lm: MaskedLM) -> None:
    compiled = compiled_lm(load_lm(write_checkpoint(tmp_path, random_tensors()), arithmetic="float"))
    assert compiled.compiled
    assert not lm.compiled
    assert (compiled.log2_probs(CANVAS, 4, 1.0) - lm.log2_probs(CANVAS, 4, 1.0))[:, :256].abs().max() < 1e-4
