"""The joint law P(S,U,X) of every block: what each agent produces and what the polar code consumes.

A label is a binary word U of length L. Label number j of M = 2^k stands for U = V G^{(x)p}, where the
pre-transform word V is j in binary, most significant bit first, behind L - k zeros. So the free positions of V
are the last k, and M = 2^L keeps every word.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wm_env.common import checks as arguments
from wm_env.common.arrays import Floats
from wm_env.common.files import first_line, write_atomically
from wm_env.common.tensors import FileFormat, read_tensors, write_tensors
from wm_env.tree import StateTree

LAW_FORMAT = FileFormat(kind="covert-watermark law", version=1)

Policy = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(block number, Z of shape (N,)) -> P(u|s) of shape (N, M), W(x|u,s) of shape (N, M, Q)."""


@dataclass(frozen=True)
class SharedSymbols:
    """Which candidates of a block have a symbol of several states: found once, it spares every step the search.

    Attributes:
        symbols: number of symbols in the union over all states.
        rows: places of those candidates among the N Q of the block, shape (K,).
        numbers: their symbols, numbered from 0, shape (K, ...).
        count: how many symbols these are.
    """

    symbols: int
    rows: Tensor
    numbers: Tensor
    count: int


def shared_symbols(symbol: Tensor) -> SharedSymbols:
    """The candidates whose token block is a candidate of another state too; `symbol` as in `BlockLaw`.

    Of a batch of laws, those that are shared in any law of the batch.
    """
    place = symbol.clamp_min(0).flatten(0, 1)
    symbols = int(place.max()) + 1
    present = (symbol >= 0).flatten(0, 1).long()
    owners = present.new_zeros(symbols, *place.shape[1:]).scatter_add_(0, place, present).gather(0, place)
    rows = ((owners > 1).reshape(len(place), -1).any(1)).nonzero()[:, 0]
    names, numbers = torch.unique(place[rows], return_inverse=True)
    return SharedSymbols(symbols, rows, numbers, len(names))


@dataclass(frozen=True)
class BlockLaw:
    """The law of one block: Z(s), P(x|s), P(u|s) and W(x|u,s).

    All fields may have the same further axes at the end, written `...`: many laws at once, as in the vector
    environment. They are last so that every operation runs along the laws. Cover and symbols that all laws share have
    size 1 there.

    Attributes:
        state_probs: Z(s), shape (N, ...), sums to 1.
        cover: the model's own P(x|s), shape (N, Q, ...), sums to 1 over x.
        symbol: shape (N, Q, ...), int64; states that share a token block share its number; -1 where `cover` is padded.
        p_label: P(u|s), shape (N, M, ...), sums to 1 over u.
        p_candidate: W(x|u,s), shape (N, M, Q, ...), sums to 1 over x, zero where `cover` is zero.
        shared: what `shared_symbols` finds in `symbol`, where that is known beforehand.
    """

    state_probs: Tensor
    cover: Tensor
    symbol: Tensor
    p_label: Tensor
    p_candidate: Tensor
    shared: SharedSymbols | None = None

    @property
    def labels(self) -> int:
        """M, the number of labels."""
        return self.p_label.shape[1]


@dataclass(frozen=True)
class JointLaw:
    """One `BlockLaw` per block of a tree.

    Attributes:
        blocks: the laws of blocks 1..B.
        block_length: L, tokens per block.
        tree: fingerprint of the tree that the law belongs to.
        message_sets: positions of V that carry the message, one tuple per block, if the agent chose them.
    """

    blocks: tuple[BlockLaw, ...]
    block_length: int
    tree: str
    message_sets: tuple[tuple[int, ...], ...] | None = None


def joint_probs(law: BlockLaw) -> Tensor:
    """P(s, u, x) over per-state candidates, shape (N, M, Q, ...), sums to 1."""
    return (law.state_probs[:, None] * law.p_label)[:, :, None] * law.p_candidate


def probs_given_state(law: BlockLaw) -> Tensor:
    """P(u, x | s), shape (N, M, Q, ...), sums to 1 over u and x."""
    return law.p_label[:, :, None] * law.p_candidate


def induced_cover(law: BlockLaw) -> Tensor:
    """P~(x|s) = sum_u P(u|s) W(x|u,s): what an observer without the key sees; shape (N, Q, ...), sums to 1 over x."""
    return probs_given_state(law).sum(1)


def symbol_label_probs(law: BlockLaw) -> Tensor:
    """P(x, u) over the union of all states' candidates, shape (symbols, M, ...), sums to 1."""
    return sum_by_symbol(joint_probs(law), law.symbol)


def sum_by_symbol(joint: Tensor, symbol: Tensor) -> Tensor:
    """Add up P(s, u, x), shape (N, M, Q, ...), by the symbol of (s, x), shape (N, Q, ...): (symbols, M, ...)."""
    return add_rows(joint.transpose(1, 2).flatten(0, 1), symbol.clamp_min(0).flatten(0, 1), int(symbol.max()) + 1)


def add_rows(rows: Tensor, place: Tensor, count: int) -> Tensor:
    """Add up rows of shape (K, M, ...) that have the same place 0..count-1, shape (K, ...): (count, M, ...)."""
    sums = rows.new_zeros(count, *rows.shape[1:])
    if place.numel() == len(rows):
        return sums.index_add_(0, place.flatten(), rows)
    return sums.scatter_add_(0, place[:, None].expand_as(rows), rows)


def advance(state_probs: Tensor, induced: Tensor, child: Tensor, states: int) -> Tensor:
    """The law Z' of the next block's state, shape (states, ...), sums to 1; exact.

    The paper's update of the augmented state: Z'(s') = sum_s Z(s) sum_{x: child(s,x) = s'} P~(x|s).

    Args:
        state_probs: Z(s), shape (N, ...).
        induced: P~(x|s), shape (N, Q, ...).
        child: next state of (s, x), shape (N, Q, ...), int64, -1 where there is none; size 1 at the end if it is the
            same for all laws.
        states: number of states of the next block.
    """
    mass = (state_probs[:, None] * induced).flatten(0, 1)
    place = child.clamp_min(0).flatten(0, 1).expand_as(mass)
    return mass.new_zeros(states, *mass.shape[1:]).scatter_add(0, place, mass)


def values_ahead(value: Tensor | None, child: Tensor) -> Tensor:
    """What follows every candidate: the value of the state that it leads to, shape (N, Q); 0 where there is none.

    Args:
        value: of the next block's states, shape (states,); None behind the last block.
        child: next state of (s, x), shape (N, Q), int64, -1 where there is none.
    """
    if value is None:
        return torch.zeros(child.shape, dtype=torch.float64, device=child.device)
    return torch.where(child >= 0, value[child.clamp_min(0)], 0)


def state_reach(tree: StateTree) -> tuple[Floats, ...]:
    """Probability of every state under the model's own law, one array (N,) per block, each sums to 1."""
    return tuple(occupations(tree, [block.cover for block in tree.blocks]))


def occupations(tree: StateTree, laws: Sequence[Floats]) -> list[Floats]:
    """Z(s) of every block under laws q(x|s) of shape (N, Q), shape (N,) each."""
    reach = [torch.as_tensor(tree.prior)]
    for law, block, following in zip(laws, tree.blocks, tree.blocks[1:], strict=False):
        reach.append(advance(reach[-1], torch.as_tensor(law), torch.as_tensor(block.child), len(following.cover)))
    return [probs.numpy() for probs in reach]


def roll_out(tree: StateTree, policy: Policy, dtype: torch.dtype = torch.float64) -> JointLaw:
    """Follow `policy` through all blocks of `tree`: Z(1) is the prior, Z(b+1) comes from `advance`."""
    state_probs = torch.as_tensor(tree.prior, dtype=dtype)
    laws: list[BlockLaw] = []
    for number, block in enumerate(tree.blocks):
        p_label, p_candidate = policy(number, state_probs)
        cover = torch.as_tensor(block.cover, dtype=dtype)
        law = BlockLaw(state_probs, cover, torch.as_tensor(block.symbol), p_label, p_candidate)
        laws.append(law)
        if number + 1 < len(tree.blocks):
            states = len(tree.blocks[number + 1].cover)
            state_probs = advance(state_probs, induced_cover(law), torch.as_tensor(block.child), states)
    return JointLaw(tuple(laws), tree.block_length, tree.fingerprint)


def save_law(law: JointLaw, path: Path) -> None:
    """Write P(u|s), W(x|u,s), the message sets and the tree's fingerprint to a safetensors file, in float64.

    The cover and the symbols are the tree's and are not repeated; Z follows from the policy.

    Raises:
        OSError: the folder cannot be written.
    """
    tensors = {}
    for number, block in enumerate(law.blocks):
        tensors[f"{number}.p_label"] = block.p_label.detach().cpu().double().contiguous().numpy()
        tensors[f"{number}.p_candidate"] = block.p_candidate.detach().cpu().double().contiguous().numpy()
    meta = {
        "blocks": len(law.blocks),
        "block_length": law.block_length,
        "tree": law.tree,
        "message_sets": None if law.message_sets is None else [list(positions) for positions in law.message_sets],
    }
    write_atomically(path, lambda temporary: write_tensors(temporary, LAW_FORMAT, tensors, meta))


def load_law(path: Path, tree: StateTree) -> JointLaw:
    """Read a law and join it to the tree it was made for.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged, of another format version, holds no law, or was made for another tree.
    """
    tensors, meta = read_tensors(path, LAW_FORMAT)
    try:
        made_for, sets = meta["tree"], meta["message_sets"]
        if made_for != tree.fingerprint:
            raise ValueError(
                f"made for tree {str(made_for)[:12]}, this tree is {tree.fingerprint[:12]}: "
                "pass the tree of the same run"
            )
        for name, needed in (("blocks", len(tree.blocks)), ("block_length", tree.block_length)):
            if arguments.integer(name, meta[name]) != needed:
                raise ValueError(f"{name}={meta[name]}, but its tree has {needed}: make the law again")
        policies = []
        for number, block in enumerate(tree.blocks):
            p_label, p_candidate = (
                torch.from_numpy(tensors[f"{number}.{name}"]) for name in ("p_label", "p_candidate")
            )
            check_conditionals(p_label, p_candidate, torch.as_tensor(block.cover))
            policies.append((p_label, p_candidate))
        law = roll_out(tree, lambda number, _: policies[number])
        return dataclasses.replace(law, message_sets=None if sets is None else _message_sets(sets, tree))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} lacks a part ({first_line(error)}): make the law again") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _message_sets(stored: Any, tree: StateTree) -> tuple[tuple[int, ...], ...]:
    sets = tuple(tuple(arguments.integer("message_sets", position) for position in positions) for positions in stored)
    sound = all(len(set(positions)) == len(positions) for positions in sets)
    if len(sets) != len(tree.blocks) or not sound or not set().union(*sets) <= set(range(tree.block_length)):
        raise ValueError(
            f"message_sets={stored}: for each of {len(tree.blocks)} blocks, distinct positions below "
            f"{tree.block_length} are needed"
        )
    return sets


def check_conditionals(p_label: Tensor, p_candidate: Tensor, cover: Tensor, tolerance: float = 1e-9) -> None:
    """Check that P(u|s) and W(x|u,s) are conditional laws on the support of the cover.

    Raises:
        ValueError: names the first fault: types or shapes, labels that are no power of two, a negative or non-finite
            entry, a sum that is not 1, or mass outside the support.
    """
    states, candidates = cover.shape
    labels = p_label.shape[-1] if p_label.ndim else 0
    if p_label.shape != (states, labels) or p_candidate.shape != (states, labels, candidates):
        raise ValueError(
            f"law of shape {tuple(p_label.shape)} and {tuple(p_candidate.shape)} does not fit "
            f"{states} states of {candidates} candidates"
        )
    if labels == 0 or labels & (labels - 1):
        raise ValueError(f"law with {labels} labels: a power of two is needed")
    if not p_label.dtype == p_candidate.dtype == cover.dtype:
        raise ValueError(f"law of {p_label.dtype} and {p_candidate.dtype} for a cover of {cover.dtype}")
    for name, law in (("P(u|s)", p_label), ("W(x|u,s)", p_candidate)):
        wrong = ~torch.isfinite(law).all(-1) | (law < 0).any(-1) | ((law.sum(-1) - 1).abs() > tolerance)
        if wrong.any():
            state = int(wrong.reshape(states, -1).any(1).nonzero()[0])
            raise ValueError(f"{name} of state {state} is not a probability law: rows must be >= 0 and sum to 1")
    if (p_candidate * (cover[:, None, :] == 0)).any():
        raise ValueError("W(x|u,s) has mass on a candidate that the cover does not have")
