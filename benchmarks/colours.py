"""A keyed-colour watermark for parallel steps, in the manner of MPAC: biased, and read without a model.

The message is cut into symbols of b bits. A keyed hash gives every token one of r = 2^b colours, and a key stream gives
every place of the text one of the symbols and a shift. At a place, the tokens of colour symbol xor shift get delta
added to their logits (natural log). The receiver counts, for every symbol, which value its places vote for.

MPAC takes places and shifts from the tokens before; in a parallel step those are not known yet, so their number in the
text decides. That makes all shifts independent, and the scheme less easy to see than where contexts repeat.
"""

import numpy as np

from wm_env.common.arrays import Floats, Ints

MESSAGE_BITS = 32


class Colours:
    """One message in one text.

    Attributes:
        bits: b, bits of a symbol.
    """

    def __init__(self, message: Ints, bits: int, colour: Ints, seed: int, delta: float) -> None:
        """Hide `message`, 0s and 1s, with `colour` (V,) the colours of the tokens and `seed` the key of the places."""
        self.bits = bits
        self._message = np.pad(message, (0, -len(message) % bits)).reshape(-1, bits)
        self._symbols = self._message @ (1 << np.arange(bits)[::-1])
        self._colour, self._seed, self._delta = colour, seed, delta

    def places(self, count: int) -> tuple[Ints, Ints]:
        """Which symbol the first `count` places carry, and their shifts."""
        rng = np.random.default_rng(self._seed)
        drawn = rng.random((count, 2))
        return (drawn[:, 0] * len(self._symbols)).astype(np.int64), (drawn[:, 1] * 2**self.bits).astype(np.int64)

    def bias(self, laws: Floats, start: int) -> Floats:
        """The biased marginals of the places from `start` on, (n, V) -> (n, V)."""
        symbol, shift = (row[start:] for row in self.places(start + len(laws)))
        favoured = self._colour[None] == (self._symbols[symbol] ^ shift)[:, None]
        weighed = laws * np.where(favoured, np.exp(self._delta), 1.0)
        biased: Floats = weighed / weighed.sum(1, keepdims=True)
        return biased

    def variation(self, masses: Floats) -> float:
        """Bound on the total variation of a step against the marginals, for whoever knows the colours but no shifts.

        Then the places are independent, and every colour is favoured with probability 1/r: the sum over the places of
        the total variation of one. `masses` (n, r) are the marginals' masses of the colours.
        """
        gain = np.exp(self._delta)
        totals = 1 + (gain - 1) * masses
        mixed = masses * ((1 / totals).sum(1, keepdims=True) + (gain - 1) / totals) / masses.shape[1]
        return float(np.abs(mixed - masses).sum() / 2)

    def wrong_bits(self, colours: Ints) -> int:
        """Bits of the message that the colours of a text's tokens vote wrongly for; ties go to the smaller symbol."""
        symbol, shift = self.places(len(colours))
        votes = np.zeros((len(self._symbols), 2**self.bits), dtype=np.int64)
        np.add.at(votes, (symbol, colours ^ shift), 1)
        read = votes.argmax(1)[:, None] >> np.arange(self.bits)[::-1] & 1
        return int((read != self._message).reshape(-1)[:MESSAGE_BITS].sum())
