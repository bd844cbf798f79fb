"""The scheme `block`: in every block the message chooses one of Q candidates."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from polar.text.framing import Message
from polar.text.scheme import Readers, Scheme, Writing, Written
from wm_env.common.help import paragraph_help
from wm_env.lm.pools.settings import PoolSettings

if TYPE_CHECKING:
    from polar.text.channel import Channel
    from polar.text.records import Answers
    from polar.text.settings import LawSettings, Settings
    from wm_env.common.tensors import Arrays

POOL_ROWS = 16
"""Canvases in a forward pass when candidate blocks are drawn."""

MOST_CANDIDATES = 1 << 20
"""More than any memory holds."""


@paragraph_help
@dataclass(frozen=True)
class Block(Scheme):
    """In every block of L tokens one of Q candidates."""

    name: ClassVar[str] = "block"
    has_evidence: ClassVar[bool] = True

    pool: Literal["sampled", "top"] = "sampled"
    """Q keyed draws from the model (exact), or its Q most likely blocks (not covert; says how far)."""
    candidates: int = 64
    """Q, candidates per block."""
    tv_budget: float = 0.01
    """With a top pool: total variation per block that the code may cost against the truncated law."""

    def check(self, settings: "Settings") -> None:
        """As in `Scheme`."""
        if not 2 <= self.candidates <= MOST_CANDIDATES:
            raise ValueError(f"candidates={self.candidates}: a number from 2 to {MOST_CANDIDATES} is needed")
        if not 0 <= self.tv_budget < 1:
            raise ValueError(f"tv_budget={self.tv_budget}: a number from 0 to below 1 is needed")
        if settings.law.top_p < 1:
            raise ValueError(f"top_p={settings.law.top_p}: the scheme block draws from the whole law, leave top_p at 1")
        self.pool_settings(settings.law, b"")

    @property
    def code_budget(self) -> float:
        """Total variation that the code of a block may cost against the law of its pool."""
        return self.tv_budget if self.pool == "top" else 0.0

    @property
    def draws(self) -> int:
        """Number of keyed draws in a pool."""
        return self.candidates if self.pool == "sampled" else 0

    def pool_settings(self, law: "LawSettings", key: bytes) -> PoolSettings:
        """How candidate blocks are chosen."""
        return PoolSettings(
            pool=self.pool,
            block_length=law.block_length,
            candidates=self.candidates,
            temperature=law.temperature,
            beam_width=self.candidates + 4,
            rows=POOL_ROWS,
            key=key,
        )

    def write(self, writing: Writing) -> Written:
        """As in `Scheme`."""
        from polar.text.schemes.block.coding import write_block_text

        return write_block_text(self, writing)

    def readers(self, channel: "Channel") -> Readers:
        """As in `Scheme`."""
        from polar.text.schemes.block.coding import block_model_reader

        return (block_model_reader(self, channel),)

    def answers(self, arrays: "Arrays", settings: "Settings") -> "Answers":
        """As in `Scheme`."""
        from polar.text.schemes.block.answers import read_block_answers

        return read_block_answers(arrays, self.candidates, settings.law.block_length)

    def answers_readers(self, answers: "Answers") -> Readers:
        """As in `Scheme`."""
        from polar.text.schemes.block.answers import PoolAnswers
        from polar.text.schemes.block.coding import block_recorded_reader

        assert isinstance(answers, PoolAnswers)
        return (block_recorded_reader(self, answers),)

    def estimate(self, channel: "Channel", message: Message) -> str:
        """As in `Scheme`."""
        from polar.text.schemes.block.coding import estimate_line

        return estimate_line(self, channel, message)


SCHEME = Block()
