"""The rows of the results: what one code achieves with one key, one decoder and one knowledge of the state."""

from dataclasses import dataclass

from polar.code.decoders import Knowledge


@dataclass(frozen=True)
class CodeFigures:
    """How well a code is read, and how well it hides.

    Attributes:
        ber: exact bit error rate of the message.
        bler: exact probability that a block is not read as it was sent.
        tv_mean: V(P~^m Z, P Z), the total variation of a block, mean over messages and blocks.
        tv_max: its largest value over messages and blocks.
        tv_text: the same for whole texts, mean over messages; null where the sum is too large.
        tv_untruncated_bound: bound on the total variation against the text of the untruncated model.
        ber_mc: bit error rate measured over the transmissions; null if there were none.
        ber_mc_ci95: its 95 % interval.
    """

    ber: float
    bler: float
    tv_mean: float
    tv_max: float
    tv_text: float | None
    tv_untruncated_bound: float | None
    ber_mc: float | None
    ber_mc_ci95: tuple[float, float] | None


@dataclass(frozen=True)
class OperatingPoint(CodeFigures):
    """A code whose messages all have the same length.

    Attributes:
        message_bits: l per block.
        rate_bits_per_token: l / L.
        key_bits: log2 K per block.
        keys: K.
        surplus_key: "none" while the key is no longer than the message, then "frozen" or "dither".
        decoder: a name in `polar.code.decoders.DECODERS`.
        state_knowledge: marginal or path.
        empty_word: probability that the state has no word V with the wanted bits.
    """

    message_bits: int
    rate_bits_per_token: float
    key_bits: int
    keys: int
    surplus_key: str
    decoder: str
    state_knowledge: Knowledge
    empty_word: float


@dataclass(frozen=True)
class AdaptivePoint(CodeFigures):
    """A code whose message length follows the state, with a pad as long as the message.

    A block that is decoded with another length than it was sent with counts as wrong in all its bits.

    Attributes:
        mean_bits: E[l], bits per block.
        limit: no code whose length is a function of state and key has more bits without error at `tv_mean` and this
            law of the states, with any key.
        longest: the most bits of any state.
        dither_bits: d, bits of the key beyond the pad.
        share_by_length: probability of the states with 0, 1, ..., longest bits.
    """

    mean_bits: float
    limit: float
    longest: int
    dither_bits: int
    share_by_length: tuple[float, ...]
