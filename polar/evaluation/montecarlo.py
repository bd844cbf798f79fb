"""Transmissions with real messages, keys and random draws, beside the exact evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polar.code.codec import encode_blocks
from polar.code.construction import BlockCode
from polar.code.key_schedule import KeySchedule
from wm_env.common.arrays import Ints
from wm_env.common.intervals import block_interval
from wm_env.law import BlockLaw


@dataclass(frozen=True)
class SentBlocks:
    """T blocks as sent; arrays of shape (T,)."""

    state: Ints
    message: Ints
    key: Ints
    candidate: Ints

    def at(self, rows: NDArray[np.bool_]) -> "SentBlocks":
        """Only these blocks."""
        return SentBlocks(self.state[rows], self.message[rows], self.key[rows], self.candidate[rows])


def send_blocks(
    law: BlockLaw, code: BlockCode, schedule: KeySchedule, count: int, rng: np.random.Generator
) -> SentBlocks:
    """Send `count` blocks: states from Z, uniform messages and keys, the candidates from the encoder."""
    z = law.state_probs.numpy()
    state = rng.choice(len(z), size=count, p=z / z.sum())
    message = rng.integers(1 << schedule.message_bits, size=count)
    key = rng.integers(1 << schedule.key_bits, size=count)
    sent = encode_blocks(law, code, state, message ^ schedule.pad(key), schedule.surplus_word(key), rng)
    return SentBlocks(state, message, key, sent.candidate)


def receive(sent: SentBlocks, schedule: KeySchedule, observation: Tensor, decisions: Tensor, surplus: Ints) -> Ints:
    """Decode every block: look the word up, take the pad off; messages, shape (T,).

    Args:
        sent: the blocks.
        schedule: of their keys.
        observation: what is seen of a candidate in a state, shape (N, Q).
        decisions: word for an observation and a surplus, see `decoders.decision_table`.
        surplus: column of the table for every block, shape (T,).
    """
    seen = observation.numpy()[sent.state, sent.candidate]
    message: Ints = decisions.numpy()[seen, surplus] ^ schedule.pad(sent.key)
    return message


def estimate_errors(
    sent: Sequence[Ints], received: Sequence[Ints], message_bits: int
) -> tuple[float, tuple[float, float]]:
    """The fraction of wrong bits in the blocks of all transmissions, l >= 1 bits each, and its 95 % interval.

    Clopper-Pearson. It counts blocks, not bits: the bits of a block err together, and the fraction of wrong bits of a
    block has at most the variance p (1 - p) of one coin toss.
    """
    wrong = np.bitwise_count(np.concatenate(sent) ^ np.concatenate(received)) / message_bits
    return float(wrong.mean()), block_interval(float(wrong.sum()), len(wrong))
