"""What both ends agree on, and how far the sender goes. Free of torch, so that wrong settings are refused at once."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from polar.text.scheme import Scheme
from polar.text.schemes import NAMES, load_schemes
from wm_env.common.checks import check_choices
from wm_env.common.help import paragraph_help
from wm_env.common.json_values import entry

Ending = Literal["sentence", "none"]

LARGEST = 1 << 20
"""More tokens than any memory holds."""


@paragraph_help
@dataclass(frozen=True)
class LawSettings:
    """The law that the tokens of a text are drawn from."""

    block_length: int = 8
    """L, tokens that the model fills in from left to right before it sees new masks; a power of two."""
    temperature: float = 0.7
    """tau of p_tau = softmax(logits / tau)."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability are said."""
    form: Literal["canonical", "any"] = "canonical"
    """canonical: texts have one space between words and no line ends, so that they survive copying; the total variation
    that this costs is printed. any: whatever the model says; copying must keep every byte."""

    def check(self) -> None:
        """Raise ValueError for a number out of its range, or a word that is no choice."""
        check_choices(self)
        if not 1 <= self.block_length <= LARGEST or self.block_length & (self.block_length - 1):
            raise ValueError(f"block_length={self.block_length}: a power of two is needed, such as 8")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}: a positive number is needed")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: a number above 0, at most 1, is needed")


@dataclass(frozen=True)
class Settings:
    """What both ends must agree on, besides key, model and prompt.

    Attributes:
        scheme: how bits choose tokens, with its own settings.
        law: the law of the tokens.
        sender: who writes, if several use one key: no two senders share anything.
        check_bits: bits of the check value, 32 or 64.
    """

    scheme: Scheme = field(default_factory=lambda: load_schemes()[NAMES[0]])
    law: LawSettings = field(default_factory=LawSettings)
    sender: str = ""
    check_bits: int = 32

    def check(self) -> None:
        """Raise ValueError for a number out of its range."""
        if self.check_bits not in (32, 64):
            raise ValueError(f"check_bits={self.check_bits}: choose 32 or 64")
        self.law.check()
        self.scheme.check(self)

    def to_json(self) -> dict[str, Any]:
        """As JSON types; `from_json` reads them."""
        return asdict(self) | {"name": self.scheme.name}


def settings_from_json(values: Mapping[str, Any], source: object) -> Settings:
    """What `to_json` gave, checked; it may come from anyone.

    Raises:
        ValueError: an entry is missing, unknown, of another type or out of its range.
    """
    name, schemes = entry(values, "name", str, source), load_schemes()
    if name not in schemes:
        raise ValueError(f"{source}: name is {name!r}, the schemes are {', '.join(schemes)}")
    known = {key: value for key, value in values.items() if key not in ("name", "scheme")}
    scheme = entry(values, "scheme", type(schemes[name]), source)
    settings = Settings(
        scheme,
        entry(known, "law", LawSettings, source),
        entry(known, "sender", str, source),
        entry(known, "check_bits", int, source),
    )
    if unknown := sorted(known.keys() - settings.to_json().keys()):
        raise ValueError(f"{source}: {unknown[0]} is unknown")
    settings.check()
    return settings


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
    soon as possible."""

    def check(self) -> None:
        """Raise ValueError for a number out of its range, or a word that is no choice."""
        check_choices(self)
        if self.max_blocks < 1 or self.patience < 1:
            raise ValueError("max_blocks and patience must be at least 1")
