"""The decoders, as tables from what the receiver sees and the key's surplus to a word on M*.

Both kinds of state knowledge are one algorithm on an observation number: `marginal` sees the symbol of the block only
and averages over the states (the paper); `path` also knows the symbols of the earlier blocks, so its observation is
the pair (earlier symbols, symbol), and averaging over the states that fit is the posterior given what was received.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polar.code.construction import BlockCode
from wm_env.coded import label_bits, word_values
from wm_env.law import BlockLaw, symbol_label_probs
from wm_env.tree import StateTree, number_paths

Decoder = Literal["sc", "ml", "map"]
"""The paper's successive rule; argmax_V P(X|V); the posterior of the message given X and the key."""

Knowledge = Literal["marginal", "path"]
"""What the decoder knows of the state: its law Z only, or also the blocks received before."""

_ROUNDING = 1e-12


@dataclass(frozen=True)
class LabelEvidence:
    """What the received block says about V under the law P(V, X), for the paper's two rules.

    Attributes:
        prefixes: P(o, first bits of V) for every length after the leading zeros, shape (observations, 2^d), d = 1..k.
        likelihood: P(o | V) of every label, shape (observations, M); 0 for labels that are never used.
    """

    prefixes: tuple[Tensor, ...]
    likelihood: Tensor


def observations(tree: StateTree, knowledge: Knowledge) -> tuple[Tensor, ...]:
    """Number of what the decoder sees when candidate x is sent in state s, (N, Q) for every block; -1 where padded."""
    if knowledge == "marginal":
        return tuple(torch.from_numpy(block.symbol) for block in tree.blocks)
    return tuple(map(torch.from_numpy, number_paths(tree)))


def observe(law: BlockLaw, observation: Tensor) -> BlockLaw:
    """The block law with the decoder's observation in the place of the symbol."""
    return dataclasses.replace(law, symbol=observation)


def label_evidence(law: BlockLaw) -> LabelEvidence:
    """Evidence about V of a law with observations for symbols."""
    joint = symbol_label_probs(law)
    depths = range(1, label_bits(law.labels) + 1)
    return LabelEvidence(
        prefixes=tuple(joint.reshape(len(joint), 1 << depth, -1).sum(2) for depth in depths),
        likelihood=joint / joint.sum(0).clamp_min(torch.finfo(joint.dtype).tiny),
    )


def word_evidence(law: BlockLaw, channel: Tensor) -> Tensor:
    """P(o, w, e) for uniform words and surplus, shape (observations, 2^l, E), sums to 1.

    Args:
        law: with observations for symbols.
        channel: P(x | w, e, s), shape (N, 2^l, E, Q), see `codec.code_channel`.
    """
    states, words, surplus, candidates = channel.shape
    uniform = law.p_label.new_full((states, words * surplus), 1 / (words * surplus))
    flat = dataclasses.replace(law, p_label=uniform, p_candidate=channel.reshape(states, -1, candidates))
    return symbol_label_probs(flat).reshape(-1, words, surplus)


def decision_table(decoder: Decoder, code: BlockCode, words: Tensor, labels: LabelEvidence) -> Tensor:
    """The word on M* that a decoder returns for every observation and surplus, shape (observations, E), int64.

    `sc` and `ml` are the paper's: they work on the law P(V, X) and know the frozen bits, but not the dither, which is
    no part of that law. Ties go to the smaller word.

    Args:
        decoder: which one.
        code: of the block.
        words: P(o, w, e) of the code, see `word_evidence`.
        labels: what the observations say about V.
    """
    if decoder == "map":
        # Sums that differ by rounding are ties, and so they do not depend on the order of summation.
        return (words >= words.amax(1, keepdim=True) * (1 - _ROUNDING)).to(torch.uint8).argmax(1)
    decode = successive_labels if decoder == "sc" else likeliest_labels
    value = word_values(labels.likelihood.shape[1], code.block_length, code.message_set)
    return value[decode(labels, code)].repeat_interleave(words.shape[2] >> len(code.frozen_set), 1)


def successive_labels(evidence: LabelEvidence, code: BlockCode) -> Tensor:
    """V^_i = argmax P(V_i | X, V^_0..i-1), i = 0..L-1, frozen bits from the key; (observations, 2^F) label numbers.

    The sum over the later positions of V runs over all words, frozen ones included, as in the paper.
    """
    free = code.block_length - len(evidence.prefixes)
    frozen = len(code.frozen_set)
    values = torch.arange(1 << frozen)
    label = torch.zeros(len(evidence.likelihood), 1 << frozen, dtype=torch.int64)
    for position, mass in enumerate(evidence.prefixes, start=free):
        if position in code.frozen_set:
            bit = (values >> (frozen - 1 - code.frozen_set.index(position)) & 1).expand_as(label)
        else:
            bit = (mass.gather(1, 2 * label + 1) > mass.gather(1, 2 * label)).to(torch.int64)
        label = 2 * label + bit
    return label


def likeliest_labels(evidence: LabelEvidence, code: BlockCode) -> Tensor:
    """V^ = argmax_V P(X|V) over the words with the key's frozen bits; (observations, 2^F) label numbers."""
    likelihood = evidence.likelihood
    value = word_values(likelihood.shape[1], code.block_length, code.frozen_set)
    by_frozen = torch.argsort(value, stable=True).reshape(1 << len(code.frozen_set), -1)
    best = [labels[likelihood[:, labels].argmax(1)] for labels in by_frozen]
    return torch.stack(best, 1)
