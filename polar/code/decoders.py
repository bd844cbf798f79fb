"""The decoders: from what the receiver sees and the key's surplus to a word on M*, as tables.

A decoder is a `Decoder` in the table `DECODERS`; a new one is a function and a line there. What the receiver knows of
the state changes none of them, because it only changes the observation. With knowledge `marginal` the receiver sees the
symbol of the block and averages over all states (the paper). With `path` it also knows the symbols of the earlier
blocks: the observation is the pair (earlier symbols, symbol), and the average over the states that fit the earlier
symbols is the posterior given what was received.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from polar.code.construction import BlockCode
from wm_env.coded import label_bits, word_values
from wm_env.common.checks import check_known
from wm_env.law import BlockLaw, symbol_label_probs
from wm_env.tree import StateTree, number_paths

Knowledge = Literal["marginal", "path"]
"""What the decoder knows of the state: its law Z only, or also the blocks received before."""

KNOWLEDGE: Mapping[Knowledge, str] = {"marginal": "unknown", "path": "from earlier blocks"}
"""What is known of the state, in the words of tables and figures."""

TIE = 1e-12
"""Sums that differ by less than this fraction differ by rounding: they are ties, whatever the order of summation."""


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
    check_known("knowledge", knowledge, get_args(Knowledge))
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


@dataclass(frozen=True)
class Decoder:
    """A rule that chooses a word on M* for every observation and surplus.

    Attributes:
        name: in options and results, such as "sc".
        title: in figures.
        rule: what it returns, in a few words, for the legend of the tables.
        needs: what the receiver must have besides the received block.
        marker: in figures, one of matplotlib's.
        decide: the rule. Its arguments are `word_evidence`, `label_evidence` and the code of the block; its result is
            the word for every observation and surplus, shape (observations, E), int64. Of equally good words it takes
            the smallest.
    """

    name: str
    title: str
    rule: str
    needs: str
    marker: str
    decide: Callable[[Tensor, LabelEvidence, BlockCode], Tensor]


def decoder_named(name: str) -> Decoder:
    """The decoder of that name.

    Raises:
        ValueError: there is none; names those that there are.
    """
    check_known("decoder", name, DECODERS)
    return DECODERS[name]


def decision_table(decoder: str, code: BlockCode, words: Tensor, labels: LabelEvidence) -> Tensor:
    """The word on M* that a decoder returns for every observation and surplus, shape (observations, E), int64.

    `decoder` is a name in `DECODERS`, `words` the code's `word_evidence`, `labels` the `label_evidence` of the
    observations.

    Raises:
        ValueError: there is no such decoder.
    """
    return decoder_named(decoder).decide(words, labels, code)


def likeliest_words(words: Tensor, labels: LabelEvidence, code: BlockCode) -> Tensor:
    """The likeliest word of the message for each observation o and number e of surplus keys: argmax_w P(w | o, e).

    The first of words that tie. No decoder has a smaller block error.
    """
    return likeliest(words)


def likeliest(words: Tensor) -> Tensor:
    """The number along axis 1 of the largest mass; of those that tie up to rounding, the first."""
    return (words >= words.amax(1, keepdim=True) * (1 - TIE)).to(torch.uint8).argmax(1)


def _of_labels(
    decide: Callable[[LabelEvidence, BlockCode], Tensor],
) -> Callable[[Tensor, LabelEvidence, BlockCode], Tensor]:
    """A rule of the paper as a rule on words.

    The paper's rules choose a label from the law P(V, X) and the frozen bits. They do not use the dither, which is no
    part of that law. `decide` returns label numbers, shape (observations, 2^F).
    """

    def words_of_labels(words: Tensor, labels: LabelEvidence, code: BlockCode) -> Tensor:
        value = word_values(labels.likelihood.shape[1], code.block_length, code.message_set)
        return value[decide(labels, code)].repeat_interleave(words.shape[2] >> len(code.frozen_set), 1)

    return words_of_labels


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


_DECODERS = (
    Decoder(
        "sc", "successive (SC)", "successive, the paper's rule", "law, frozen bits", "o", _of_labels(successive_labels)
    ),
    Decoder(
        "ml", "maximum likelihood (ML)", "the likeliest word", "law, frozen bits", "s", _of_labels(likeliest_labels)
    ),
    Decoder(
        "map", "message posterior (MAP)", "the likeliest message", "law, frozen bits, dither", "^", likeliest_words
    ),
)

DECODERS: Mapping[str, Decoder] = {decoder.name: decoder for decoder in _DECODERS}
"""All decoders by name, in the order of tables and figures."""
