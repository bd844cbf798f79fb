"""The state tree: every context that a text can reach, with the model's own law over the next token blocks.

A tree is what a language model leaves behind for everything downstream: nothing else needs the model.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wm_env.common import checks as arguments
from wm_env.common.arrays import Floats, Ints
from wm_env.common.files import fingerprint, first_line, write_atomically
from wm_env.common.json_values import read_as
from wm_env.common.tensors import Arrays, FileFormat, read_tensors, write_tensors

TREE_FORMAT = FileFormat(kind="covert-watermark tree", version=1)


@dataclass(frozen=True)
class TreeMeta:
    """How a tree was made; all of it is part of the distribution, so all of it is stored.

    Attributes:
        model: name of the language model, or "synthetic".
        model_fingerprint: SHA-256 of its weights and configuration.
        tokenizer_fingerprint: SHA-256 of its tokenizer.
        block_length: L, tokens per block, a power of two.
        candidates: Q, the most candidates a state may have.
        temperature: tau, the sampling temperature of the chain rule.
        pool: "top" (the Q most likely blocks), "sampled" (Q draws, keyed) or "synthetic".
        beam_width: prefixes kept by the beam search, 0 if there was none.
        context_length: most tokens of context that the model saw.
        banned: number of token ids that can never be chosen.
        seed: seed of a sampled or synthetic pool and of the choice of prompts.
        dtype: number format of the model's weights and activations, empty if there was no model.
        rows: canvases in every forward pass of the model, 0 if there was none.
    """

    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    block_length: int
    candidates: int
    temperature: float
    pool: str
    beam_width: int = 0
    context_length: int = 0
    banned: int = 0
    seed: int = 0
    dtype: str = ""
    rows: int = 0


@dataclass(frozen=True)
class TreeBlock:
    """All states of one block. Rows with fewer than Q candidates are padded: cover 0, ids -1, no text.

    Attributes:
        cover: P(x|s), the model's law renormalised over the candidates, shape (N, Q), rows sum to 1.
        log2_prob: the same before renormalising, in bits (log2), shape (N, Q), -inf where padded.
        symbol: shape (N, Q): number of the candidate's text in the union over all states; -1 where padded.
        child: shape (N, Q): row of the next block's state after (s, x); -1 where there is none.
        tokens: token ids, shape (N, Q, L); -1 where padded.
        retained: shape (N,): mass of the untruncated law that the candidates hold, in [0, 1].
        exact: shape (N,), bool: the candidates are certainly the Q most likely blocks.
        text: byte strings of the candidates as they continue the context, N rows of Q.
    """

    cover: Floats
    log2_prob: Floats
    symbol: Ints
    child: Ints
    tokens: Ints
    retained: Floats
    exact: NDArray[np.bool_]
    text: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True)
class StateTree:
    """Blocks 1..B of states; the states of the first block are the prompts.

    Attributes:
        blocks: one `TreeBlock` per block.
        prior: law of the prompt, shape (prompts,), above 0, sums to 1.
        prompts: their texts, in the order of the first block's states.
        meta: how the tree was made.
    """

    blocks: tuple[TreeBlock, ...]
    prior: Floats
    prompts: tuple[str, ...]
    meta: TreeMeta

    @property
    def block_length(self) -> int:
        """L, tokens per block."""
        return self.meta.block_length

    @property
    def states(self) -> int:
        """Number of states over all blocks."""
        return sum(len(block.cover) for block in self.blocks)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: arrays, prompts and metadata."""
        return fingerprint(_arrays(self), {"prompts": self.prompts, "meta": dataclasses.asdict(self.meta)})


def number_paths(tree: StateTree) -> tuple[Ints, ...]:
    """An id for the sequence of symbols up to and with candidate x of state s, (N, Q) for every block; -1 where padded.

    States that share the symbols of the earlier blocks, such as two prompts with equal replies, share numbers.
    """
    history = np.zeros(len(tree.prior), dtype=np.int64)
    numbers = []
    for block in tree.blocks:
        present = block.symbol >= 0
        pairs = np.stack(np.broadcast_arrays(history[:, None], block.symbol), -1)[present]
        number = np.full(block.symbol.shape, -1, dtype=np.int64)
        number[present] = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        numbers.append(number)
        following = block.child >= 0
        history = np.zeros(int(block.child.max()) + 1, dtype=np.int64)
        history[block.child[following]] = number[following]
    return tuple(numbers)


def subset(
    tree: StateTree, prompts: Sequence[int], candidates: int | None = None, blocks: int | None = None
) -> StateTree:
    """The tree of some prompts (their rows, in this order), with the `candidates` most likely blocks of each state.

    The cover of a state that loses candidates is renormalised and its retained mass shrinks accordingly; symbols and
    states are renumbered. Of the blocks the first `blocks` stay. A tree that is cut again to what it has already stays
    as it is, to the last bit, and so does its fingerprint, if its prompts are equally likely.

    Raises:
        ValueError: no such prompt, no prompt at all, prompts of probability 0 only, or more candidates or blocks than
            there are.
    """
    depth = len(tree.blocks) if blocks is None else blocks
    if not 1 <= depth <= len(tree.blocks):
        raise ValueError(f"blocks={depth}: this tree has 1 to {len(tree.blocks)}")
    keep_most = tree.meta.candidates if candidates is None else candidates
    if not 1 <= keep_most <= tree.meta.candidates:
        raise ValueError(f"candidates={keep_most}: this tree has 1 to {tree.meta.candidates} per state")
    rows = np.asarray(prompts, dtype=np.int64)
    if rows.size == 0 or rows.min() < 0 or rows.max() >= len(tree.prior):
        raise ValueError(
            f"prompts={list(prompts)}: this tree has prompts 0 to {len(tree.prior) - 1}; name at least one"
        )
    if not tree.prior[rows].any():
        raise ValueError(f"prompts={list(prompts)}: they have probability 0; name others")
    prior = _renormalised(tree.prior[rows])
    texts = tuple(tree.prompts[row] for row in rows)
    cut = []
    for number, block in enumerate(tree.blocks[:depth]):
        kept = _subset_block(block, rows, keep_most)
        leads_on = (kept.child >= 0) & (number + 1 < depth)
        rows = kept.child[leads_on]
        child = np.full_like(kept.child, -1)
        child[leads_on] = np.arange(len(rows))
        cut.append(dataclasses.replace(kept, child=child))
    return StateTree(tuple(cut), prior, texts, dataclasses.replace(tree.meta, candidates=keep_most))


def _renormalised(weights: Floats) -> Floats:
    """The weights over their sum, rounded once: equal weights become 1/n whatever they have been divided by before."""
    exact = [Fraction(weight) for weight in weights.tolist()]
    total = sum(exact)
    return np.array([float(weight / total) for weight in exact])


def _subset_block(block: TreeBlock, rows: Ints, candidates: int) -> TreeBlock:
    order = np.argsort(-block.cover[rows], axis=1, kind="stable")[:, :candidates]
    order.sort(axis=1)
    pick = rows[:, None], order
    loses = (block.cover[rows] > 0).sum(1) > (block.cover[pick] > 0).sum(1)
    # Exactly 1 where nothing is lost: the sum of a law differs from 1 by rounding.
    kept = np.where(loses, block.cover[pick].sum(1), 1.0)
    symbol = block.symbol[pick]
    numbers = np.unique(symbol[symbol >= 0])
    return TreeBlock(
        cover=block.cover[pick] / kept[:, None],
        log2_prob=block.log2_prob[pick],
        symbol=np.where(symbol >= 0, np.searchsorted(numbers, symbol), -1),
        child=block.child[pick],
        tokens=block.tokens[pick],
        retained=block.retained[rows] * kept,
        exact=block.exact[rows],
        text=tuple(tuple(block.text[row][q] for q in columns) for row, columns in zip(rows, order, strict=True)),
    )


@dataclass(frozen=True)
class _Header:
    """What the file of a tree holds beside its arrays."""

    prompts: tuple[str, ...]
    meta: TreeMeta


def save_tree(tree: StateTree, path: Path) -> None:
    """Write `tree` to a safetensors file, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    header = dataclasses.asdict(_Header(tree.prompts, tree.meta))
    arrays = {name: _narrowed(array) for name, array in _arrays(tree).items()}
    write_atomically(path, lambda temporary: write_tensors(temporary, TREE_FORMAT, arrays, header))


def load_tree(path: Path) -> StateTree:
    """Read a tree and check its laws.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, changed, of another format version, or holds no tree.
    """
    stored, meta = read_tensors(path, TREE_FORMAT)
    arrays: Arrays = {
        name: array.astype(np.int64) if array.dtype == np.int32 else array for name, array in stored.items()
    }
    try:
        header = read_as(_Header, meta, "its header")
        count = sum(1 for name in arrays if name.endswith(".cover"))
        tree = StateTree(
            blocks=tuple(_block(arrays, number) for number in range(count)),
            prior=arrays["prior"],
            prompts=header.prompts,
            meta=header.meta,
        )
        check_tree(tree)
    except KeyError as error:
        raise ValueError(f"{path} lacks {error}: build the tree again") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no tree ({first_line(error)}): build the tree again") from None
    return tree


def shipped_tree() -> StateTree:
    """The tree that comes with the package: see `wm_env/data/README.md`."""
    return load_tree(Path(str(resources.files("wm_env"))) / "data" / "news.safetensors")


def check_tree(tree: StateTree) -> None:
    """Check types and shapes, that every cover is a law, that every path leads somewhere, that symbols are those of the
    texts and that no state has one twice.

    Raises:
        ValueError: names the first fault.
    """
    _check_meta(tree.meta)
    _check_shapes(tree)
    # Comparisons are such that a NaN fails them.
    if not (abs(tree.prior.sum() - 1) <= 1e-9 and (tree.prior >= 0).all()):
        raise ValueError("the prior over prompts is not a law over the first block's states")
    if not tree.prior.all():
        raise ValueError(f"prompt {tree.prior.argmin()} has probability 0: leave it out")
    states = [len(block.cover) for block in tree.blocks]
    for number, (block, following) in enumerate(zip(tree.blocks, [*states[1:], 0], strict=True), start=1):
        _check_laws(block, number)
        _check_symbols(block, number)
        leads_on = (block.cover > 0) & (number < len(states))
        children = np.sort(block.child[leads_on])
        if not np.array_equal(children, np.arange(following)) or (block.child[~leads_on] != -1).any():
            raise ValueError(f"block {number} does not lead to every state of block {number + 1} exactly once")


def _check_laws(block: TreeBlock, number: int) -> None:
    right = (block.cover >= 0).all(1) & (abs(block.cover.sum(1) - 1) <= 1e-9)
    if not right.all():
        raise ValueError(f"the cover of state {right.argmin()} of block {number} is not a law")
    if not ((block.retained >= 0) & (block.retained <= 1 + 1e-9)).all() or not (block.log2_prob <= 1e-9).all():
        raise ValueError(f"block {number} has masses or probabilities outside [0, 1]")


def _check_symbols(block: TreeBlock, number: int) -> None:
    present = block.symbol >= 0
    if (block.cover[~present] > 0).any():
        raise ValueError(f"block {number} has candidates without a symbol")
    if (block.tokens[present] < 0).any():
        raise ValueError(f"block {number} has candidates without tokens")
    names = set(zip(block.symbol[present].tolist(), _texts(block, present), strict=True))
    texts = {text for _, text in names}
    if not {symbol for symbol, _ in names} == set(range(len(names))) or len(texts) < len(names):
        raise ValueError(f"block {number} has symbols that do not stand for one text each, numbered from 0")
    # Padded candidates get numbers below any symbol, all different.
    ordered = np.sort(np.where(present, block.symbol, -1 - np.arange(present.shape[1])), axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if twice.any():
        raise ValueError(f"state {twice.argmax()} of block {number} has two candidates with one text")


def _check_meta(meta: TreeMeta) -> None:
    for field in dataclasses.fields(meta):
        value = getattr(meta, field.name)
        if field.type is str:
            if not isinstance(value, str):
                raise ValueError(f"{field.name}={value!r}: a string is needed")
        elif (arguments.integer if field.type is int else arguments.number)(field.name, value) < 0:
            raise ValueError(f"{field.name}={value}: a number of 0 or more is needed")
    if meta.block_length < 1 or meta.block_length & (meta.block_length - 1):
        raise ValueError(f"block_length={meta.block_length} is not a power of two")
    if meta.candidates == 0:
        raise ValueError("candidates=0: a state has at least one")


def _check_shapes(tree: StateTree) -> None:
    if not tree.blocks:
        raise ValueError("a tree has at least one block")
    if not all(isinstance(prompt, str) for prompt in tree.prompts):
        raise ValueError("a prompt is not a string")
    prompts = len(tree.blocks[0].cover)
    _check_array("prior", tree.prior, np.float64, (prompts,))
    if not 0 < prompts == len(tree.prompts):
        raise ValueError(f"{len(tree.prompts)} prompts for {prompts} states of block 1")
    for number, block in enumerate(tree.blocks, start=1):
        sizes = {"N": len(block.cover), "Q": tree.meta.candidates, "L": tree.block_length}
        for name, (dtype, axes) in _BLOCK_ARRAYS.items():
            shape = tuple(sizes[axis] for axis in axes)
            _check_array(f"{name} of block {number}", getattr(block, name), dtype, shape)
        if [len(row) for row in block.text] != [sizes["Q"]] * sizes["N"]:
            raise ValueError(f"block {number} has not one text for every candidate")


def _check_array(name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        wanted = f"{np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, not {wanted}")


def _texts(block: TreeBlock, which: NDArray[np.bool_]) -> list[bytes]:
    return [block.text[row][column] for row, column in np.argwhere(which).tolist()]


def number_symbols(text: Sequence[Sequence[bytes]]) -> Ints:
    """Give equal byte strings equal numbers, in the order of the bytes: N rows of Q -> (N, Q), -1 where empty (padded).

    The text is the identity of a candidate, not its token ids: two states may spell one text with different tokens, and
    who receives the text cannot tell them apart.
    """
    numbers = {
        string: number for number, string in enumerate(sorted({string for row in text for string in row} - {b""}))
    }
    return np.array([[numbers.get(string, -1) for string in row] for row in text], dtype=np.int64)


_BLOCK_ARRAYS: dict[str, tuple[type[np.generic], str]] = {
    "cover": (np.float64, "NQ"),
    "log2_prob": (np.float64, "NQ"),
    "symbol": (np.int64, "NQ"),
    "child": (np.int64, "NQ"),
    "tokens": (np.int64, "NQL"),
    "retained": (np.float64, "N"),
    "exact": (np.bool_, "N"),
}
"""Type and axes of the arrays of a block."""


def _arrays(tree: StateTree) -> Arrays:
    arrays: Arrays = {"prior": tree.prior}
    for number, block in enumerate(tree.blocks):
        for name in _BLOCK_ARRAYS:
            arrays[f"{number}.{name}"] = getattr(block, name)
        strings = [string for row in block.text for string in row]
        arrays[f"{number}.text"] = np.frombuffer(b"".join(strings), dtype=np.uint8)
        arrays[f"{number}.text_lengths"] = np.array([len(string) for string in strings], dtype=np.int64)
    return arrays


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    """Integers as int32, which halves their place in a file; ids and row numbers never need more."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _block(arrays: Arrays, number: int) -> TreeBlock:
    fields = {name: arrays[f"{number}.{name}"] for name in _BLOCK_ARRAYS}
    data, lengths = arrays[f"{number}.text"].tobytes(), arrays[f"{number}.text_lengths"]
    shape = fields["cover"].shape
    _check_array(f"{number}.text_lengths", lengths, np.int64, (math.prod(shape),))
    if len(shape) != 2 or (lengths < 0).any() or lengths.sum() != len(data):
        raise ValueError(f"the texts of block {number + 1} do not fit its cover")
    ends = np.cumsum(lengths)
    strings = [data[start:end] for start, end in zip(ends - lengths, ends, strict=True)]
    states, width = shape
    return TreeBlock(**fields, text=tuple(tuple(strings[row * width : (row + 1) * width]) for row in range(states)))
