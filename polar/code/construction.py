"""Polar code construction from the exact chain entropies of a block law: which positions of V carry what."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from polar.code.key_schedule import KeySchedule
from wm_env.coded import label_bits
from wm_env.information import entropy
from wm_env.law import BlockLaw, JointLaw, symbol_label_probs

_RESOLUTION = 12
"""Decimals to which entropies are compared, so that rounding noise does not choose the positions."""


@dataclass(frozen=True)
class ChainEntropies:
    """Entropy of every position of V given the earlier ones, in bits, each of shape (L,), in [0, 1].

    Attributes:
        given_state: H(V_i | V^{i-1}, S), what the encoder may choose freely where it is near 1.
        given_output: H(V_i | V^{i-1}, X), what the decoder knows where it is near 0; X over symbols.
        free: the first position that is not zero in every label, L - k.
    """

    given_state: tuple[float, ...]
    given_output: tuple[float, ...]
    free: int


@dataclass(frozen=True)
class BlockCode:
    """What both ends know of the code of a block, besides its law.

    Attributes:
        block_length: L.
        message_set: M*, positions of V that carry the padded message, its first bit first.
        frozen_set: positions of V that the key fixes.
        dither_bits: bits of the key that shift the point with which V and X are drawn.
    """

    block_length: int
    message_set: tuple[int, ...]
    frozen_set: tuple[int, ...] = ()
    dither_bits: int = 0

    @property
    def words(self) -> int:
        """2^l, the number of padded messages."""
        return 1 << len(self.message_set)

    @property
    def surplus_words(self) -> int:
        """Number of values of the key's surplus."""
        return 1 << (len(self.frozen_set) + self.dither_bits)


def conditional_chain(joint: Tensor, block_length: int) -> tuple[float, ...]:
    """H(V_i | V^{i-1}, side) for i = 0..L-1 in bits, from P(side, label), shape (sides, M = 2^k).

    The label is V in binary, so labels with a common prefix of V are neighbours; H is the difference of the entropies
    of two prefixes. The first L - k positions are zero in every label and have entropy 0.
    """
    free = block_length - label_bits(joint.shape[1])
    prefixes = joint
    entropies = [entropy(prefixes, (0, 1))]
    while prefixes.shape[1] > 1:
        prefixes = prefixes.reshape(len(joint), -1, 2).sum(2)
        entropies.append(entropy(prefixes, (0, 1)))
    entropies.reverse()
    steps = [float(longer - shorter) for shorter, longer in itertools.pairwise(entropies)]
    return (0.0,) * free + tuple(min(max(step, 0.0), 1.0) for step in steps)


def chain_entropies(law: BlockLaw, block_length: int) -> ChainEntropies:
    """Both chains of a block law: given the state, and given the symbol that the decoder sees."""
    return ChainEntropies(
        given_state=conditional_chain(law.state_probs[:, None] * law.p_label, block_length),
        given_output=conditional_chain(symbol_label_probs(law), block_length),
        free=block_length - label_bits(law.labels),
    )


def message_sets_of(law: JointLaw) -> tuple[tuple[int, ...] | None, ...]:
    """The law's own message set of every block, None where the construction is to choose."""
    return law.message_sets if law.message_sets is not None else (None,) * len(law.blocks)


def message_room(law: JointLaw) -> int:
    """The most message bits that every block of a law can carry: free positions of V, or those of its message sets."""
    room = [label_bits(block.labels) for block in law.blocks]
    return min(room + [len(positions) for positions in law.message_sets or ()])


def threshold_set(entropies: ChainEntropies, t_epsilon: float, t_delta: float) -> tuple[int, ...]:
    """M* = {i: H(V_i|V^{i-1},S) > 1 - T_epsilon and H(V_i|V^{i-1},X) < T_delta}, ascending. The paper's sets.

    Positions that are zero in every label carry nothing, however large T_epsilon is.
    """
    chains = list(enumerate(zip(entropies.given_state, entropies.given_output, strict=True)))
    return tuple(
        position for position, (state, output) in chains[entropies.free :] if state > 1 - t_epsilon and output < t_delta
    )


def length_set(entropies: ChainEntropies, message_bits: int) -> tuple[int, ...]:
    """The l positions with the largest H(V_i|V^{i-1},S) - H(V_i|V^{i-1},X), ascending; the earlier of equal ones.

    Raises:
        ValueError: the labels have fewer free positions.
    """
    positions = range(entropies.free, len(entropies.given_state))
    if not 0 <= message_bits <= len(positions):
        raise ValueError(
            f"message_bits={message_bits}: a law with {2 ** len(positions)} labels carries 0 to {len(positions)}"
        )
    gain = {i: round(entropies.given_state[i] - entropies.given_output[i], _RESOLUTION) for i in positions}
    return tuple(sorted(sorted(positions, key=lambda i: -gain[i])[:message_bits]))


def frozen_order(entropies: ChainEntropies, message_set: Sequence[int]) -> tuple[int, ...]:
    """The other free positions, those with the most entropy given the state first; the earlier of equal ones."""
    rest = [i for i in range(entropies.free, len(entropies.given_state)) if i not in message_set]
    return tuple(sorted(rest, key=lambda i: -round(entropies.given_state[i], _RESOLUTION)))


def design_code(entropies: ChainEntropies, schedule: KeySchedule, chosen: Sequence[int] | None = None) -> BlockCode:
    """The code of a block for a message length and a key.

    Args:
        entropies: of the block's law.
        schedule: message bits l and the use of the key.
        chosen: the message set of the agent that made the law; its first l positions are used as they are.

    Raises:
        ValueError: more message bits than the labels or the chosen set have, or more frozen bits than positions left.
    """
    bits = schedule.message_bits
    if chosen is not None and bits > len(chosen):
        raise ValueError(f"message_bits={bits}: this law was made for at most {len(chosen)}")
    message_set = length_set(entropies, bits) if chosen is None else tuple(chosen[:bits])
    length = len(entropies.given_state)
    if schedule.surplus == "dither":
        return BlockCode(length, message_set, dither_bits=schedule.surplus_bits)
    order = frozen_order(entropies, message_set)
    if schedule.surplus_bits > len(order):
        raise ValueError(
            f"keys={2**schedule.key_bits}: with {bits} message bits only {len(order)} positions are left to fix; "
            f"at most {2 ** (bits + len(order))} keys, or dither"
        )
    return BlockCode(length, message_set, order[: schedule.surplus_bits])


def design_codes(law: JointLaw, chains: Sequence[ChainEntropies], schedule: KeySchedule) -> list[BlockCode]:
    """The code of every block, on the law's own message sets where it has them; `chains` are those of the blocks."""
    return [design_code(chain, schedule, own) for chain, own in zip(chains, message_sets_of(law), strict=True)]
