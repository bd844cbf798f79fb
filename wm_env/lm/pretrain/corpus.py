"""Text files -> a tokenizer, one stream of token ids, and random windows of it.

A text is plain UTF-8, possibly compressed (.gz, .xz). Blank lines separate documents; inside a document each line is a
paragraph.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from wm_env.common.files import reading
from wm_env.common.tensors import unreadable
from wm_env.lm.models.weights import save_tensors
from wm_env.lm.text import tokenizer_fingerprint
from wm_env.lm.text_files import read_lines

START, END, MASK = "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"

_CHARACTERS_A_BATCH = 1 << 24


def read_documents(path: Path) -> Iterator[str]:
    """The documents of a text file (plain, .gz or .xz), each a string of paragraphs joined by newlines.

    Raises:
        OSError, ValueError: as `read_lines`.
    """
    paragraphs: list[str] = []
    for line in read_lines(path):
        if paragraph := line.strip():
            paragraphs.append(paragraph)
        elif paragraphs:
            yield "\n".join(paragraphs)
            paragraphs = []
    if paragraphs:
        yield "\n".join(paragraphs)


def interleave(texts: Mapping[Path, float]) -> Iterator[str]:
    """The documents of several texts, mixed in proportion to weight times file size, until one of them ends.

    Raises:
        ValueError: as `read_documents`, or a text is empty.
        OSError: as `read_documents`.
    """
    share = {path: weight * _size(path) for path, weight in texts.items()}
    readers = {path: read_documents(path) for path in texts}
    read = dict.fromkeys(texts, 0)
    while True:
        path = min(texts, key=lambda path: read[path] / share[path])
        document = next(readers[path], None)
        if document is None:
            if read[path] == 0:
                raise _no_text(path)
            return
        read[path] += len(document)
        yield document


def _size(path: Path) -> int:
    with reading(path):
        size = path.stat().st_size
    if size == 0:
        raise _no_text(path)
    return size


def _no_text(path: Path) -> ValueError:
    return ValueError(f"{path} holds no text")


def train_tokenizer(
    documents: Iterable[str], vocab_size: int, max_length: int, max_characters: int = 100_000_000
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with LLaDA's special tokens as ids 0 (start), 1 (end) and 2 (mask).

    Args:
        documents: text, of which the first `max_characters` are read.
        vocab_size: entries in all, special tokens and the 256 bytes included.
        max_length: tokens the model reads, noted in the tokenizer's settings.
        max_characters: bounds time and memory.

    Raises:
        ValueError: `vocab_size` leaves no room for a merge, or the text does not contain that many.
    """
    if vocab_size < 256 + 3 + 1:
        raise ValueError(f"a vocabulary of {vocab_size} has no room beside 256 bytes and 3 special tokens; take 260+")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[START, END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first_characters(documents, max_characters), trainer=trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise ValueError(
            f"the text yields only {tokenizer.get_vocab_size()} entries; give more text or a smaller vocabulary"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[MASK],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _first_characters(documents: Iterable[str], limit: int) -> Iterator[str]:
    read = 0
    for document in documents:
        if read >= limit:
            return
        yield document
        read += len(document)


@dataclass(frozen=True)
class TokenStream:
    """Token ids of one or more texts, the end token after every document.

    tokens: (n,) int32. paragraphs: (p,) int64, sorted, where paragraphs start; 0 is one of them. text_ends: (texts,)
    int64, where each text ends in `tokens`.
    """

    tokens: Tensor
    paragraphs: Tensor
    text_ends: Tensor

    def to(self, device: torch.device) -> "TokenStream":
        """The same stream on `device`."""
        return TokenStream(self.tokens.to(device), self.paragraphs.to(device), self.text_ends.to(device))


def encode_plainly(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, on all cores, nothing added; names of special tokens are encoded as ordinary letters."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    return [item.ids for item in backend.encode_batch_fast(texts, add_special_tokens=False)]


def tokenize(texts: Sequence[Path], tokenizer: PreTrainedTokenizerFast) -> TokenStream:
    """Encode whole texts, the end token after each document.

    Raises:
        ValueError: a text is empty or not UTF-8, or the tokenizer has no end token.
        OSError: a text cannot be read.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer names no end token (eos_token); train one with this program")
    pieces: list[np.ndarray] = []
    lengths: list[int] = []
    text_ends: list[int] = []
    for path in texts:
        before = len(lengths)
        for paragraphs in _batches(_paragraphs(read_documents(path))):
            encoded = encode_plainly(tokenizer, [text for text, _ in paragraphs])
            for ids, (_, last) in zip(encoded, paragraphs, strict=True):
                if last:
                    ids.append(tokenizer.eos_token_id)
                pieces.append(np.array(ids, dtype=np.int32))
                lengths.append(len(ids))
        if len(lengths) == before:
            raise _no_text(path)
        text_ends.append(sum(lengths))
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    return TokenStream(torch.from_numpy(np.concatenate(pieces)), torch.from_numpy(starts), torch.tensor(text_ends))


def _paragraphs(documents: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each paragraph and whether it is the last of its document; the others keep the newline that follows them."""
    for document in documents:
        *first, last = document.split("\n")
        for paragraph in first:
            yield paragraph + "\n", False
        yield last, True


def _batches(paragraphs: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    batch: list[tuple[str, bool]] = []
    characters = 0
    for paragraph in paragraphs:
        batch.append(paragraph)
        characters += len(paragraph[0])
        if characters >= _CHARACTERS_A_BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def load_or_tokenize(texts: Sequence[Path], tokenizer: PreTrainedTokenizerFast, cache: Path) -> TokenStream:
    """`tokenize`, remembered in the file `cache` for the same texts and tokenizer.

    Raises:
        ValueError: as `tokenize`.
        OSError: as `tokenize`, or `cache` cannot be written.
    """
    source = json.dumps(
        {
            "texts": [_digest(path) for path in texts],
            "tokenizer": tokenizer_fingerprint(tokenizer),
        }
    )
    if cache.is_file():
        try:
            with safe_open(cache, framework="pt") as file:
                if file.metadata() == {"source": source}:
                    return TokenStream(*(file.get_tensor(name) for name in TokenStream.__dataclass_fields__))
        except SafetensorError as error:
            raise unreadable(cache, "token cache", error) from None
    stream = tokenize(texts, tokenizer)
    save_tensors(cache, vars(stream), {"source": source})
    return stream


def _digest(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def draw_windows(stream: TokenStream, weights: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """Random windows of the stream, (rows, length) int64, on the stream's device.

    A text is chosen with probability proportional to its weight times its size, then a position in it uniformly; every
    second window is moved back to the start of the paragraph it fell into, because prompts start there.

    Args:
        weights: (texts,) float64, positive.
        length: tokens each; no text may be shorter.
        generator: on the stream's device.
    """
    device = stream.tokens.device
    ends = stream.text_ends
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    room = ends - begins - length + 1
    share = (weights * room).cumsum(0) / (weights * room).sum()
    uniform = torch.rand((2, rows), dtype=torch.float64, device=device, generator=generator)
    # The last share can round to just below 1.
    text = torch.searchsorted(share, uniform[0], right=True).clamp_(max=len(ends) - 1)
    start = begins[text] + (uniform[1] * room[text]).long().clamp_(max=room[text] - 1)
    paragraph = stream.paragraphs[torch.searchsorted(stream.paragraphs, start, right=True) - 1]
    even = torch.arange(rows, device=device) % 2 == 0
    start = torch.where(even, paragraph, start)
    return stream.tokens[start[:, None] + torch.arange(length, device=device)].long()
