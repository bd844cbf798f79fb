"""What both ends agree on, and how far the sender goes. Free of torch, so that wrong settings are refused at once."""

import math
from dataclasses import dataclass
from typing import Literal

from wm_env.common.help import paragraph_help
from wm_env.lm.pools.settings import PoolSettings

Ending = Literal["sentence", "none"]

POOL_ROWS = 16
"""Canvases in a forward pass when candidate blocks are drawn."""

LARGEST = 1 << 20
"""More tokens or candidates than any memory holds."""

MOST_PARITY = 128
"""Parity bytes: half of the longest codeword."""


@paragraph_help
@dataclass(frozen=True)
class Settings:
    """What both ends must agree on, besides key, model and prompt."""

    scheme: Literal["stream", "block", "parallel"] = "stream"
    """stream: token by token, all of the model's entropy. block: in every block one of Q candidates. parallel: n tokens
    at once; the receiver needs no model, only its tokenizer."""
    block_length: int = 8
    """L, tokens that the model fills in from left to right before it sees new masks; a power of two."""
    temperature: float = 1.0
    """tau of p_tau = softmax(logits / tau)."""
    pool: Literal["sampled", "top"] = "sampled"
    """Scheme block: Q keyed draws from the model (exact), or its Q most likely blocks (not covert; says how far)."""
    candidates: int = 64
    """Scheme block: Q, candidates per block."""
    tv_budget: float = 0.01
    """Scheme block with a top pool: total variation per block that the code may cost against the truncated law."""
    positions: int = 16
    """Scheme parallel: n, tokens that the model fills in at once; a power of two."""
    hash_bits: int = 4
    """Scheme parallel: b, bits of a token's label."""
    effective_tokens: float = 32.0
    """Scheme parallel: the design, a nominal number of equally likely tokens that a token is chosen among."""
    bit_error: float = 0.02
    """Scheme parallel: the largest probability that a bit is lost which the design allows at a message position."""
    parity: int = 8
    """Scheme parallel: parity bytes of the outer code; half as many wrong bytes are corrected."""

    def check(self) -> None:
        """Raise ValueError for a number out of its range."""
        for name in ("block_length", "candidates", "positions"):
            if getattr(self, name) > LARGEST:
                raise ValueError(f"{name}={getattr(self, name)}: at most {LARGEST} is possible")
        if self.scheme == "block" and self.candidates == 1:
            raise ValueError("candidates=1: one candidate carries no message; take more")
        if not 0 <= self.tv_budget < 1:
            raise ValueError(f"tv_budget={self.tv_budget}: a number from 0 to below 1 is needed")
        if self.positions < 2 or self.positions & (self.positions - 1):
            raise ValueError(f"positions={self.positions}: a power of two is needed, such as 16")
        if not 1 <= self.hash_bits <= 8:
            raise ValueError(f"hash_bits={self.hash_bits}: a number from 1 to 8 is needed")
        if not 1 <= self.effective_tokens < math.inf:
            raise ValueError(f"effective_tokens={self.effective_tokens}: a number of at least 1 is needed")
        if not 0 < self.bit_error <= 0.5:
            raise ValueError(f"bit_error={self.bit_error}: a number above 0, at most 1/2, is needed")
        if not 0 <= self.parity <= MOST_PARITY:
            raise ValueError(f"parity={self.parity}: a number from 0 to {MOST_PARITY} is needed")
        self.pool_settings(b"")

    @property
    def code_budget(self) -> float:
        """Total variation that the code of a block may cost against the law of its pool."""
        return self.tv_budget if self.pool == "top" else 0.0

    @property
    def draws(self) -> int:
        """Number of keyed draws in a pool."""
        return self.candidates if self.pool == "sampled" else 0

    def pool_settings(self, key: bytes) -> PoolSettings:
        """How candidate blocks are chosen."""
        return PoolSettings(
            pool=self.pool,
            block_length=self.block_length,
            candidates=self.candidates,
            temperature=self.temperature,
            beam_width=self.candidates + 4,
            rows=POOL_ROWS,
            key=key,
        )


@paragraph_help
@dataclass(frozen=True)
class Limits:
    """How far the sender goes."""

    max_blocks: int = 512
    """Most blocks of L tokens for the message."""
    patience: int = 256
    """Give up when so many tokens in a row carried less than a bit."""
    ending: Ending = "sentence"
    """Where the text ends once the message is in: at the end of a sentence, or 64 tokens on if none comes before; or as
    soon as possible. A text of the scheme parallel ends with a whole step."""

    def check(self) -> None:
        """Raise ValueError for a number out of its range."""
        if self.max_blocks < 1 or self.patience < 1:
            raise ValueError("max_blocks and patience must be at least 1")
