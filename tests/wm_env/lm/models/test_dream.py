"""Dream: Qwen2's tensors, attention in both directions, and outputs that belong to the next position."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from relative_files import DREAM_MASK, dream_tensors, dream_written_out, write_dream
from tiny_lm import LETTERS

from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM

CANVAS = [72, 101, 108, 108, DREAM_MASK, DREAM_MASK]


@pytest.fixture(scope="module", params=["exact", "float"])
def lm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> MaskedLM:
    return load_lm(write_dream(tmp_path_factory.mktemp("dream"), dream_tensors()), arithmetic=request.param)


def log2_softmax(logits: np.ndarray) -> np.ndarray:
    return (logits - logits.max()) / math.log(2) - math.log2(np.exp(logits - logits.max()).sum())


@pytest.mark.parametrize(("position", "output"), [(0, 0), (1, 0), (4, 3), (5, 4)])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_law_of_a_position_is_read_one_to_its_left(
    lm: MaskedLM, position: int, output: int, temperature: float
) -> None:
    expected = log2_softmax(dream_written_out(dream_tensors(), CANVAS)[output, :256] / temperature)
    law = lm.log2_probs(torch.tensor([CANVAS]), position, temperature)[0]
    assert abs(law[:256].numpy() - expected).max() < 1e-3
    assert torch.all(law[256:] == -math.inf)


def test_bf16_rotates_by_fp32_frequencies(tmp_path: Path) -> None:
    folder = write_dream(tmp_path, dream_tensors())
    canvas = torch.randint(0, 256, (1, 512), generator=torch.Generator().manual_seed(0))
    exact = load_lm(folder).log2_probs(canvas, 500, 1.0)[0, :256]
    short = load_lm(folder, dtype=torch.bfloat16)
    assert short.network.model.rotary_emb.inv_freq.dtype == torch.float32
    assert (short.log2_probs(canvas, 500, 1.0)[0, :256] - exact).abs().mean() < 0.3


def test_the_published_format_of_the_tokenizer_is_read(tmp_path: Path, lm: MaskedLM) -> None:
    folder = write_dream(tmp_path, dream_tensors())
    (folder / "tokenizer.json").unlink()
    words = {LETTERS[value]: value for value in range(256)}
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    added = {"256": "<|endoftext|>", "257": "<|mask|>"}
    about = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "mask_token": "<|mask|>",
        "added_tokens_decoder": {
            number: {
                "content": text,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for number, text in added.items()
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    published = load_lm(folder)
    assert published.mask_id == DREAM_MASK
    assert bytes(published.encode("Naïve <|mask|> text")) == "Naïve <|mask|> text".encode()
    assert published.fingerprint == lm.fingerprint
    assert torch.equal(published.banned, lm.banned)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"architectures": ["DreamForCausalLM"]}, "architectures"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_key_value_heads": 3}, "does not split"),
        ({"mask_token_id": None}, "mask_token_id is None"),
        ({"mask_token_id": 259}, "is no token of the tokenizer"),
        ({"vocab_size": 250}, "the network only 250"),
    ],
)
def test_what_is_not_implemented_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    tensors = dream_tensors()
    if "vocab_size" in changes:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:250].clone()
    with pytest.raises(ValueError, match=message) as caught:
        load_lm(write_dream(tmp_path, tensors, **changes))
    assert "\n" not in str(caught.value)


def test_missing_and_foreign_tensors_are_named(tmp_path: Path) -> None:
    tensors = dream_tensors()
    del tensors["model.layers.1.self_attn.k_proj.bias"]
    with pytest.raises(ValueError, match=r"missing.*layers\.1\.self_attn\.k_proj\.bias"):
        load_lm(write_dream(tmp_path / "a", tensors))
    tensors = {**dream_tensors(), "model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}
    with pytest.raises(ValueError, match=r"unexpected tensor 'model\.layers\.0\.self_attn\.o_proj\.bias'"):
        load_lm(write_dream(tmp_path / "b", tensors))
