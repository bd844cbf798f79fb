import gzip
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tiny_lm import ALL_BYTES, tokenizer_of
from transformers import PreTrainedTokenizerFast

from wm_env.lm.pretrain.corpus import (
    TokenStream,
    draw_windows,
    encode_plainly,
    interleave,
    load_or_tokenize,
    read_documents,
    tokenize,
    train_tokenizer,
)

TEXT = "First line.\nSecond line.\n\n\n  \nOther document, é.\n\nThird <|endoftext|>.\n"
DOCUMENTS = ["First line.\nSecond line.", "Other document, é.", "Third <|endoftext|>."]


def _bytes_with_end() -> PreTrainedTokenizerFast:
    tokenizer = tokenizer_of(ALL_BYTES)
    tokenizer.eos_token = "<|endoftext|>"
    return tokenizer


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".txt.xz"])
def test_documents_are_separated_by_blank_lines_in_any_packing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    pack = {".txt": bytes, ".txt.gz": gzip.compress, ".txt.xz": lzma.compress}[suffix]
    path.write_bytes(pack(TEXT.encode()))
    assert list(read_documents(path)) == DOCUMENTS


def test_interleaved_texts_keep_their_proportions_and_end_together(tmp_path: Path) -> None:
    for name, letter, documents in (("a", "a", 100), ("b", "b", 300)):
        (tmp_path / name).write_text("\n\n".join([letter * 50] * documents))
    mixed = [document[0] for document in interleave({tmp_path / "a": 3.0, tmp_path / "b": 1.0})]
    assert Counter(mixed[:200]) == {"a": 100, "b": 100}
    assert len(mixed) <= 201


@pytest.mark.parametrize(
    ("name", "text", "pack"), [("b", "", bytes), ("b", " \n\n", bytes), ("b.gz", "", gzip.compress)]
)
def test_a_text_without_text_is_named_before_it_ends_the_mixture(
    tmp_path: Path, name: str, text: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a").write_text("one\n\ntwo")
    (tmp_path / name).write_bytes(pack(text.encode()))
    with pytest.raises(ValueError, match=f"{name} holds no text"):
        list(interleave({tmp_path / "a": 1.0, tmp_path / name: 1.0}))


def test_a_trained_tokenizer_has_lladas_special_tokens_and_loses_nothing() -> None:
    documents = ["the cat sat on the mat, the end.\nthe dog too."] * 3
    tokenizer = train_tokenizer(documents, 280, 64)
    assert len(tokenizer) == 280
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"]
    text = "a <|mdm_mask|> étude\n\tthe 東"
    (ids,) = encode_plainly(tokenizer, [text])
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids) == text
    assert len(encode_plainly(tokenizer, ["the"])[0]) == 1


@pytest.mark.parametrize(("size", "message"), [(259, "no room"), (2000, "yields only")])
def test_a_vocabulary_the_text_cannot_fill_is_refused(size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_tokenizer(["some words"], size, 64)


def test_a_stream_is_the_documents_with_an_end_after_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("Last.")
    stream = tokenize([tmp_path / "a.txt", tmp_path / "b.txt"], _bytes_with_end())
    expected = b"\xff".join(document.encode() for document in [*DOCUMENTS, "Last."]) + b"\xff"
    assert stream.tokens.tolist() == [256 if byte == 0xFF else byte for byte in expected]
    starts = [0, expected.index(b"Second"), expected.index(b"Other"), expected.index(b"Third"), expected.index(b"Last")]
    assert stream.paragraphs.tolist() == starts
    assert stream.text_ends.tolist() == [starts[-1], len(expected)]


def test_a_text_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="holds no text"):
        tokenize([tmp_path / "a.txt"], _bytes_with_end())


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match="no end token"):
        tokenize([tmp_path / "a.txt"], tokenizer_of(ALL_BYTES))


def test_tokens_are_remembered_for_the_same_text_only(tmp_path: Path) -> None:
    text, cache = tmp_path / "a.txt", tmp_path / "tokens.safetensors"
    text.write_text("one")
    tokenizer = _bytes_with_end()
    first = load_or_tokenize([text], tokenizer, cache)
    written = cache.stat().st_mtime_ns
    again = load_or_tokenize([text], tokenizer, cache)
    assert torch.equal(first.tokens, again.tokens)
    assert cache.stat().st_mtime_ns == written
    text.write_text("two")
    assert load_or_tokenize([text], tokenizer, cache).tokens.tolist() == [*b"two", 256]
    cache.write_bytes(cache.read_bytes()[:-3])
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_or_tokenize([text], tokenizer, cache)


def _numbered_stream(sizes: list[int], paragraph: int) -> TokenStream:
    total = sum(sizes)
    ends = torch.tensor(sizes).cumsum(0)
    starts = sorted({*range(0, total, paragraph), *ends[:-1].tolist()})
    return TokenStream(torch.arange(total, dtype=torch.int32), torch.tensor(starts), ends)


@given(
    sizes=st.lists(st.integers(20, 60), min_size=1, max_size=4),
    paragraph=st.integers(1, 30),
    length=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    weights=st.lists(st.floats(0.1, 1.1), min_size=4, max_size=4),
)
def test_a_window_is_a_run_of_tokens_of_one_text(
    sizes: list[int], paragraph: int, length: int, seed: int, weights: list[float]
) -> None:
    stream = _numbered_stream(sizes, paragraph)
    shares = torch.tensor(weights[: len(sizes)], dtype=torch.float64)
    windows = draw_windows(stream, shares, 16, length, torch.Generator().manual_seed(seed))
    assert torch.equal(windows, windows[:, :1] + torch.arange(length))
    text = torch.searchsorted(stream.text_ends, windows, right=True)
    assert torch.equal(text, text[:, :1].expand_as(text))
    assert set(windows[::2, 0].tolist()) <= set(stream.paragraphs.tolist())


def test_texts_are_read_in_proportion_to_weight_times_size() -> None:
    stream = _numbered_stream([1000, 3000], 1)
    weights = torch.tensor([3.0, 1.0], dtype=torch.float64)
    windows = draw_windows(stream, weights, 8000, 8, torch.Generator().manual_seed(0))
    first = int((windows[:, 0] < 1000).sum())
    expected = 3 * 993 / (3 * 993 + 2993)
    assert stats.binomtest(first, 8000, expected).pvalue > 1e-4
    inside = windows[(windows[:, 0] >= 1000), 0].double().sub(1000).div(2993)
    assert stats.kstest(inside.numpy(), "uniform").pvalue > 1e-4
