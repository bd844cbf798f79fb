"""The scheme `parallel`: n tokens at once, and a receiver that needs no model, only its tokenizer."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from polar.text.scheme import Readers, Scheme, Writing, Written
from wm_env.common.help import paragraph_help

if TYPE_CHECKING:
    from polar.text.settings import Settings
    from wm_env.lm.tokenizer import TextTokenizer

MOST_PARITY = 128
"""Parity bytes: half of the longest codeword."""

MOST_POSITIONS = 1 << 16
"""More than any model reads."""

_QUICKLY_DESIGNED = 1 << 10
"""Positions whose design takes less than a second. A longer one is made when the model is known to read so many."""


@paragraph_help
@dataclass(frozen=True)
class Parallel(Scheme):
    """n tokens at once; the receiver needs no model, only its tokenizer."""

    name: ClassVar[str] = "parallel"
    needs_model: ClassVar[bool] = False

    positions: int = 16
    """n, tokens that the model fills in at once; a power of two."""
    hash_bits: int = 4
    """b, bits of a token's label."""
    effective_tokens: float = 32.0
    """The design, a nominal number of equally likely tokens that a token is chosen among."""
    bit_error: float = 0.02
    """The largest probability that a bit is lost which the design allows at a message position."""
    parity: int = 8
    """Parity bytes of the outer code; half as many wrong bytes are corrected."""

    def check(self, settings: "Settings") -> None:
        """As in `Scheme`."""
        if not 1 <= self.positions <= MOST_POSITIONS or self.positions & (self.positions - 1):
            raise ValueError(f"positions={self.positions}: a power of two is needed, such as 16")
        if not 1 <= self.hash_bits <= 8:
            raise ValueError(f"hash_bits={self.hash_bits}: a number from 1 to 8 is needed")
        if not 1 <= self.effective_tokens < math.inf:
            raise ValueError(f"effective_tokens={self.effective_tokens}: a number of at least 1 is needed")
        if not 0 < self.bit_error <= 0.5:
            raise ValueError(f"bit_error={self.bit_error}: a number above 0, at most 1/2, is needed")
        if not 0 <= self.parity <= MOST_PARITY:
            raise ValueError(f"parity={self.parity}: a number from 0 to {MOST_PARITY} is needed")
        if self.positions <= _QUICKLY_DESIGNED:
            # Imported only here: other schemes do without scipy.
            from polar.text.schemes.parallel.design import message_positions

            message_positions(self.positions, self.hash_bits, self.effective_tokens, self.bit_error)

    def longest_step(self, settings: "Settings") -> int:
        """As in `Scheme`."""
        return self.positions

    def write(self, writing: Writing) -> Written:
        """As in `Scheme`."""
        from polar.text.schemes.parallel.writing import write_parallel_text

        return write_parallel_text(self, writing)

    def tokenizer_readers(self, tokenizer: "TextTokenizer", settings: "Settings") -> Readers:
        """As in `Scheme`."""
        from polar.text.schemes.parallel.reading import tokenizer_readers

        return tokenizer_readers(self, tokenizer)


SCHEME = Parallel()
