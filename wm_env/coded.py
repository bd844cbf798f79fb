"""From the law of labels to the law of message bits: what the polar encoder does to a block, exactly.

The encoder fixes the bits of V at some positions A and draws the rest of V from P(V|s) given them. So everything
that the code does to a block is the channel P(x | V_A, s) computed here; the environment's coded objective, the
agents and the evaluation all use it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from wm_env.law import BlockLaw


def label_bits(labels: int) -> int:
    """k with M = 2^k labels.

    Raises:
        ValueError: `labels` is not a power of two.
    """
    if labels < 1 or labels & (labels - 1):
        raise ValueError(f"labels={labels}: a power of two is needed, such as {1 << max(labels, 1).bit_length()}")
    return labels.bit_length() - 1


def word_values(labels: int, block_length: int, positions: Sequence[int]) -> Tensor:
    """Value of V_A for every label, A = `positions`, the first position most significant; shape (M,), in [0, 2^|A|).

    Raises:
        ValueError: a position that is outside 0..L-1, repeated, or zero for every label (one of the first L - k).
    """
    free = block_length - label_bits(labels)
    if free < 0:
        raise ValueError(f"labels={labels}: blocks of {block_length} tokens have at most {2**block_length} words")
    if len(set(positions)) != len(positions) or any(not free <= position < block_length for position in positions):
        raise ValueError(
            f"positions {list(positions)}: with {labels} labels of length {block_length} "
            f"distinct positions {free} to {block_length - 1} are needed"
        )
    label = torch.arange(labels)
    value = torch.zeros(labels, dtype=torch.int64)
    for position in positions:
        value = 2 * value + (label >> (block_length - 1 - position)) % 2
    return value


def word_probs(law: BlockLaw, block_length: int, positions: Sequence[int]) -> Tensor:
    """P(V_A = a | s), shape (N, 2^|A|, ...), sums to 1 over a."""
    value = word_values(law.labels, block_length, positions).to(law.p_label.device)
    states, _, *laws = law.p_label.shape
    return law.p_label.new_zeros(states, 2 ** len(positions), *laws).index_add(1, value, law.p_label)


def label_given_word(law: BlockLaw, block_length: int, positions: Sequence[int]) -> Tensor:
    """P(u | V_{A(u)}, s), every label given its own word on A, shape (N, M, ...): what the encoder draws from.

    Where the word has probability 0 in a state the draw is uniform over the labels with that word; see `empty_words`.
    """
    value = word_values(law.labels, block_length, positions).to(law.p_label.device)
    mass = word_probs(law, block_length, positions)[:, value]
    uniform = 2 ** len(positions) / law.labels
    return torch.where(mass > 0, law.p_label / torch.where(mass > 0, mass, 1), uniform)


def empty_words(law: BlockLaw, block_length: int, positions: Sequence[int]) -> Tensor:
    """Probability over s, with V_A uniform, that the wanted word has probability 0 in the state; a scalar in [0, 1]."""
    return law.state_probs @ (word_probs(law, block_length, positions) == 0).to(law.p_label.dtype).mean(1)


def word_channel(law: BlockLaw, block_length: int, positions: Sequence[int]) -> Tensor:
    """P(x | V_A = a, s), shape (N, 2^|A|, Q, ...), sums to 1 over x."""
    value = word_values(law.labels, block_length, positions).to(law.p_label.device)
    draws = label_given_word(law, block_length, positions)[:, :, None] * law.p_candidate
    states, _, *rest = draws.shape
    return draws.new_zeros(states, 2 ** len(positions), *rest).index_add(1, value, draws)


def balanced_law(law: BlockLaw, block_length: int, message_set: Sequence[int]) -> BlockLaw:
    """The law of the labels once the message bits are uniform: P(u|s) = 2^-l P(u | V_M*(u), s).

    It has the same word channel as `law` and the same coded law, and the coded law's P~(x|s) is its own: a law that
    leaves nothing to the encoder.
    """
    p_label = label_given_word(law, block_length, message_set) * 2.0 ** -len(message_set)
    return BlockLaw(law.state_probs, law.cover, law.symbol, p_label, law.p_candidate)


def coded_law(law: BlockLaw, block_length: int, message_set: Sequence[int]) -> BlockLaw:
    """The law with the message in the place of the label: uniform message bits V_M*, then P(x | V_M*, s).

    Its rate is I(V_M*; X) in bits, since a uniform message is independent of S; its cost is the total variation of
    the induced law P~_XS averaged over messages.
    """
    channel = word_channel(law, block_length, message_set)
    states, words, _, *laws = channel.shape
    p_message = law.p_label.new_full((states, words, *laws), 2.0 ** -len(message_set))
    return BlockLaw(law.state_probs, law.cover, law.symbol, p_message, channel)
