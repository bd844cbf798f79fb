"""How candidate blocks are chosen. Free of torch, so that a command line refuses wrong settings at once."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PoolSettings:
    """How the candidates of a state are chosen; everything here is part of the tree.

    Attributes:
        pool: "top", the Q most likely blocks, or "sampled", Q independent draws.
        block_length: L, tokens per block, a power of two.
        candidates: Q.
        temperature: tau > 0.
        beam_width: W >= Q, prefixes that the search for the top blocks keeps.
        rows: canvases in a forward pass, see `rows_at`. In exact arithmetic it changes the speed and nothing else. In
            floats BLAS and GPU kernels choose their summation order by the shape of the batch, so a fixed shape is what
            makes a state's numbers independent of the states computed beside it. On a CPU only a multiple of 8: what is
            left of a vector at a tensor's end is computed by other instructions.
        key: at most 64 bytes; it decides the draws of a sampled pool.
    """

    pool: str
    block_length: int
    candidates: int
    temperature: float
    beam_width: int
    rows: int
    key: bytes = b""

    def __post_init__(self) -> None:
        if self.pool not in ("top", "sampled"):
            raise ValueError(f"pool={self.pool!r}: choose top or sampled")
        if self.block_length < 1 or self.block_length & (self.block_length - 1):
            raise ValueError(f"block_length={self.block_length}: a power of two is needed, such as 8")
        if self.candidates < 1 or self.rows < 1:
            raise ValueError("candidates and rows must be at least 1")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}: a positive number is needed")
        if self.pool == "top" and self.beam_width < self.candidates:
            raise ValueError(f"beam_width={self.beam_width}: at least candidates={self.candidates} is needed")
        if len(self.key) > 64:
            raise ValueError(f"the key has {len(self.key)} bytes, at most 64 are allowed")

    @property
    def width(self) -> int:
        """Most prefixes of one state that are extended in a step."""
        return self.beam_width if self.pool == "top" else self.candidates

    def rows_at(self, step: int) -> int:
        """Canvases in every pass of a step: in the first, which has one canvas a state, fewer than later, by eights."""
        return self.rows if step else min(self.rows, 8 * -(-self.rows // (8 * self.width)))

    def at_block(self, number: int) -> "PoolSettings":
        """The settings of a block, 0..B-1: few prompts are equally long, so a pass of block 0 holds only one state."""
        return self if number else replace(self, rows=min(self.rows, self.width))
