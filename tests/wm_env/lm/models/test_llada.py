import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llada_files import MASK_ID, VOCABULARY, forward_written_out, random_tensors, write_checkpoint
from safetensors.torch import load_file, save_file

from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.models.llada_config import llama_name
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llada"), random_tensors())


@pytest.fixture(scope="module", params=["exact", "float"])
def lm(folder: Path, request: pytest.FixtureRequest) -> MaskedLM:
    return load_lm(folder, arithmetic=request.param)


def test_two_shards_load_into_the_tensors_they_hold(tmp_path: Path, lm: MaskedLM) -> None:
    tensors = random_tensors()
    sharded = load_lm(write_checkpoint(tmp_path, tensors, shards=2), arithmetic="float")
    state = sharded.network.state_dict()
    assert len(state) == len(tensors) == 30
    for name, tensor in tensors.items():
        assert torch.equal(state[llama_name(name)], tensor)
    assert not sharded.network.training
    assert sharded.fingerprint == lm.fingerprint
    assert sharded.tokenizer_fingerprint == lm.tokenizer_fingerprint


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tensors = random_tensors()
    del tensors["model.transformer.ff_out.weight"]
    tied = load_lm(write_checkpoint(tmp_path, tensors, weight_tying=True), arithmetic="float")
    assert tied.network.lm_head.weight is tied.network.model.embed_tokens.weight
    expected = forward_written_out(
        {**tensors, "model.transformer.ff_out.weight": tensors["model.transformer.wte.weight"]}, [1, 2, MASK_ID]
    )
    law = tied.log2_probs(torch.tensor([[1, 2, MASK_ID]]), 2, 1.0)[0, :256].numpy()
    assert abs(law - _log2_softmax(expected[2, :256])).max() < 1e-4


def _log2_softmax(logits: np.ndarray) -> np.ndarray:
    return (logits - logits.max()) / math.log(2) - math.log2(np.exp(logits - logits.max()).sum())


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_log2_probs_are_the_tempered_law_over_text(lm: MaskedLM, temperature: float) -> None:
    canvas = [72, 101, 108, 108, MASK_ID, MASK_ID]
    logits = forward_written_out(random_tensors(), canvas)[4, :256]
    law = lm.log2_probs(torch.tensor([canvas, canvas[::-1]]), 4, temperature)
    assert law.shape == (2, VOCABULARY)
    assert law.dtype == torch.float64
    assert abs(law[0, :256].numpy() - _log2_softmax(logits / temperature)).max() < 1e-3
    assert torch.all(law[:, 256:] == -math.inf)
    torch.testing.assert_close(law.exp2().sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_no_text_can_hold_the_mask_the_end_or_an_id_without_a_token(lm: MaskedLM) -> None:
    assert lm.mask_id == MASK_ID
    assert lm.banned.nonzero().flatten().tolist() == [256, 257, 258, 259]


def test_rows_do_not_depend_on_their_neighbours(lm: MaskedLM) -> None:
    rows = torch.randint(0, 256, (5, 20), generator=torch.Generator().manual_seed(1))
    together = lm.log2_probs(rows, 7, 1.0)
    for row, law in zip(rows, together, strict=True):
        torch.testing.assert_close(lm.log2_probs(row[None], 7, 1.0)[0], law, atol=1e-4, rtol=0)


def test_bf16_is_bitwise_the_same_whether_loaded_or_cast(folder: Path) -> None:
    canvas = torch.randint(0, 256, (1, 1024), generator=torch.Generator().manual_seed(0))
    loaded = load_lm(folder, dtype=torch.bfloat16)
    cast = load_lm(folder, arithmetic="float")
    exact = cast.log2_probs(canvas, 900, 1.0)
    cast.network.to(torch.bfloat16)
    assert torch.equal(loaded.log2_probs(canvas, 900, 1.0), cast.log2_probs(canvas, 900, 1.0))
    assert loaded.fingerprint == cast.fingerprint
    difference = (exact - loaded.log2_probs(canvas, 900, 1.0))[:, :256].abs()
    assert difference.mean() < 0.3


@pytest.mark.parametrize(
    ("canvas", "position", "temperature", "message"),
    [
        (torch.zeros(4, dtype=torch.int64), 0, 1.0, "shape"),
        (torch.zeros(1, 0, dtype=torch.int64), 0, 1.0, "shape"),
        (torch.zeros(1, 4), 0, 1.0, "int64"),
        (torch.zeros(1, 1025, dtype=torch.int64), 0, 1.0, "at most 1024"),
        (torch.zeros(1, 4, dtype=torch.int64), 4, 1.0, "position 4"),
        (torch.zeros(1, 4, dtype=torch.int64), -1, 1.0, "position -1"),
        (torch.zeros(1, 4, dtype=torch.int64), 0, 0.0, "temperature"),
        (torch.zeros(1, 4, dtype=torch.int64), 0, -1.0, "temperature"),
        (torch.zeros(1, 4, dtype=torch.int64), 0, math.nan, "temperature"),
        (torch.zeros(1, 4, dtype=torch.int64), 0, math.inf, "temperature"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    lm: MaskedLM, canvas: torch.Tensor, position: int, temperature: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        lm.log2_probs(canvas, position, temperature)


def test_nan_logits_are_an_error_and_no_law(tmp_path: Path) -> None:
    tensors = random_tensors()
    tensors["model.transformer.ln_f.weight"][3] = math.nan
    folder = write_checkpoint(tmp_path, tensors)
    for arithmetic in ("exact", "float"):
        broken = load_lm(folder, arithmetic=arithmetic)
        with pytest.raises(ValueError, match="NaN"):
            broken.log2_probs(torch.tensor([[1, 2, 3]]), 1, 1.0)


def test_a_temperature_that_overflows_is_named(lm: MaskedLM) -> None:
    with pytest.raises(ValueError, match="temperature=1e-310: too small"):
        lm.log2_probs(torch.tensor([[1, 2, 3]]), 1, 1e-310)


@pytest.mark.parametrize("device", ["foo", "cuda:99", "", None, 5, "meta"])
def test_devices_without_numbers_are_refused(folder: Path, device: Any) -> None:
    with pytest.raises(ValueError, match=rf"^device={device!r}.*: cpu, cuda or cuda:N is needed$"):
        load_lm(folder, device=device)


@pytest.mark.parametrize("source", ["", None, 5, b"mini", []])
def test_what_names_no_model(source: Any) -> None:
    with pytest.raises(ValueError, match="unknown model"):
        load_lm(source)


def test_halves_of_characters_are_no_text(lm: MaskedLM) -> None:
    with pytest.raises(ValueError, match=r"the text is not UTF-8 text \(character 2\)"):
        lm.encode("a\ud800b")


@pytest.mark.parametrize("kind", [["llada"], {"a": 1}, 5, None])
def test_a_model_type_that_is_no_name(tmp_path: Path, kind: Any) -> None:
    folder = write_checkpoint(tmp_path, random_tensors())
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"model_type": kind}))
    with pytest.raises(ValueError, match=r"config.json: model_type is .* text is needed"):
        load_lm(folder)


def test_names_of_special_tokens_in_a_text_are_ordinary_letters(lm: MaskedLM) -> None:
    text = "a <|mdm_mask|> and <|endoftext|>é"
    ids = lm.encode(text)
    assert bytes(ids) == text.encode()
    assert lm.encode("") == []


def test_a_control_token_that_is_not_marked_special_is_ordinary_letters_in_a_text(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, random_tensors())
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append({**data["added_tokens"][-1], "id": 258, "content": "<role>", "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    lm = load_lm(folder)
    assert lm.banned[258]
    assert bytes(lm.encode("a <role> b")) == b"a <role> b"


def test_the_fingerprint_changes_with_one_weight_and_with_the_configuration(tmp_path: Path, lm: MaskedLM) -> None:
    tensors = random_tensors()
    tensors["model.transformer.ln_f.weight"][0] += 1e-3
    assert load_lm(write_checkpoint(tmp_path / "a", tensors)).fingerprint != lm.fingerprint
    same = write_checkpoint(tmp_path / "b", random_tensors(), rope_theta=500001.0)
    assert load_lm(same).fingerprint != lm.fingerprint


class TestRefusals:
    """Everything that is wrong with a source is one line that names it."""

    @staticmethod
    def refused(source: str | Path, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message) as caught:
            load_lm(source)
        assert "\n" not in str(caught.value)

    def test_unknown_name(self) -> None:
        self.refused("maxi", ValueError, "unknown model 'maxi'")

    def test_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        self.refused(tmp_path / "nowhere", ValueError, "unknown model")

    def test_hub_that_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        self.refused("owner/model-of-nobody", OSError, "could not be fetched")

    def test_no_configuration(self, tmp_path: Path) -> None:
        self.refused(tmp_path, OSError, r"no config\.json")

    def test_configuration_that_is_no_json(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        self.refused(tmp_path, ValueError, "not JSON")
        (tmp_path / "config.json").write_text("[]")
        self.refused(tmp_path, ValueError, "an object is needed")

    def test_no_tokenizer_or_a_broken_one(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, random_tensors())
        (folder / "tokenizer.json").write_text("{}")
        self.refused(folder, ValueError, "is not a tokenizer")
        (folder / "tokenizer.json").unlink()
        self.refused(folder, OSError, r"no tokenizer\.json")

    def test_no_tensors(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, random_tensors())
        (folder / "model.safetensors").unlink()
        self.refused(folder, OSError, r"no model\.safetensors")

    def test_truncated_tensors(self, tmp_path: Path) -> None:
        path = write_checkpoint(tmp_path, random_tensors()) / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        self.refused(tmp_path, ValueError, "damaged or cut short")
        path.write_bytes(b"\xff" * 50)
        self.refused(tmp_path, ValueError, "is no safetensors file")

    def test_missing_shard(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, random_tensors(), shards=2)
        (folder / "model-00002-of-00002.safetensors").unlink()
        self.refused(folder, OSError, "model-00002-of-00002")

    def test_index_that_leads_out_of_the_folder(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "a", random_tensors(), shards=2)
        (folder / "model-00001-of-00002.safetensors").rename(tmp_path / "outside.safetensors")
        index = folder / "model.safetensors.index.json"
        index.write_text(index.read_text().replace("model-00001-of-00002", "../outside"))
        self.refused(folder, OSError, "outside")

    @pytest.mark.parametrize("name", ["ff_out", "wte", "blocks.2.ff_out"])
    def test_missing_tensor(self, tmp_path: Path, name: str) -> None:
        tensors = random_tensors()
        del tensors[f"model.transformer.{name}.weight"]
        self.refused(write_checkpoint(tmp_path, tensors), ValueError, f"missing.*{name}")

    @pytest.mark.parametrize("name", ["blocks.3.ff_out.weight", "blocks.0.q_proj.bias", "wpe.weight"])
    def test_unexpected_tensor(self, tmp_path: Path, name: str) -> None:
        tensors = random_tensors() | {f"model.transformer.{name}": torch.zeros(32)}
        self.refused(write_checkpoint(tmp_path, tensors), ValueError, f"unexpected tensor.*{name}")

    def test_tensor_of_another_shape(self, tmp_path: Path) -> None:
        tensors = random_tensors()
        tensors["model.transformer.ln_f.weight"] = torch.zeros(31)
        self.refused(write_checkpoint(tmp_path, tensors), ValueError, r"ln_f.*\(31,\)")

    def test_tokenizer_of_another_model(self, tmp_path: Path) -> None:
        self.refused(write_checkpoint(tmp_path, random_tensors(), mask_token_id=259), ValueError, "mask_token_id 259")

    def test_dtype(self, folder: Path) -> None:
        with pytest.raises(ValueError, match="float16"):
            load_lm(folder, dtype=torch.float16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_law(folder: Path, lm: MaskedLM) -> None:
    canvas = torch.randint(0, 256, (3, 50), generator=torch.Generator().manual_seed(0))
    law = load_lm(folder, device="cuda").log2_probs(canvas, 20, 1.0)
    torch.testing.assert_close(law.cpu(), lm.log2_probs(canvas, 20, 1.0), atol=1e-3, rtol=0)


class TestEmbedded:
    """The model that ships with the package."""

    @staticmethod
    def test_it_fits_its_budget() -> None:
        assert (EMBEDDED / "model.safetensors").stat().st_size <= 20_000_000
        tensors = load_file(EMBEDDED / "model.safetensors").values()
        assert all(tensor.dtype == (torch.int8 if tensor.ndim == 2 else torch.float32) for tensor in tensors)

    @staticmethod
    def test_it_loads_by_name_and_bans_only_its_special_tokens() -> None:
        mini = load_lm("mini")
        assert mini.name == "mini"
        assert mini.max_length >= 256
        names = mini.tokenizer.convert_ids_to_tokens(mini.banned.nonzero().flatten().tolist())
        assert names == ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"]

    @staticmethod
    def test_it_knows_english() -> None:
        mini = load_lm("mini")
        start = mini.encode("The president said that the government would")
        law = mini.log2_probs(torch.tensor([[*start, mini.mask_id]]), len(start), 1.0)[0]
        verbs, others = (
            [law[mini.encode(word)[0]] for word in words]
            for words in ((" be", " not", " have", " take"), (" of", " is", " were", " The"))
        )
        assert min(verbs) > max(others)
        assert law[mini.encode(" be")[0]] > math.log2(0.02)

    @staticmethod
    def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
        for name in ("config.json", "tokenizer.json"):
            (tmp_path / name).write_bytes((EMBEDDED / name).read_bytes())
        tensors = load_file(EMBEDDED / "model.safetensors")
        save_file(tensors, tmp_path / "model.safetensors")
        assert load_lm(tmp_path).fingerprint == load_lm("mini").fingerprint
        tensors["model.transformer.ln_f.weight"].view(torch.int32)[0] ^= 1
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="is damaged: its tensors are not those"):
            load_lm(tmp_path)
