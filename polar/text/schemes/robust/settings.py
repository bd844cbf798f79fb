"""What both ends of the scheme `robust` agree on besides the key."""

from dataclasses import dataclass
from typing import Literal

from wm_env.common.checks import check_choices

MOST_PAYLOAD = 256
"""Bits of the longest payload."""

MOST_CHARACTERS = 200_000
"""Longer texts are refused."""


@dataclass(frozen=True)
class RobustSettings:
    """Settings of the scheme `robust`.

    Attributes:
        payload_bits: K, length of every payload, 1 to 256.
        check_bits: a message that was not sent is reported with probability 2^-check_bits for each candidate compared.
        clock: what counts as one step of the tape. "words" for samplers that go from left to right: edits of a word
            move no other word. "tokens" for samplers that fill places in any order.
        use: what the key is used for here, such as a sender's name; different uses share no randomness.
    """

    payload_bits: int = 32
    check_bits: int = 32
    clock: Literal["words", "tokens"] = "words"
    use: str = ""

    def __post_init__(self) -> None:
        check_choices(self)
        if not 1 <= self.payload_bits <= MOST_PAYLOAD:
            raise ValueError(f"payload_bits={self.payload_bits}: a number from 1 to {MOST_PAYLOAD} is needed")
        if not 1 <= self.check_bits <= 64:
            raise ValueError(f"check_bits={self.check_bits}: a number from 1 to 64 is needed")

    @property
    def by_token(self) -> bool:
        """Whether every token is a step of the tape."""
        return self.clock == "tokens"

    @property
    def purpose(self) -> str:
        """All that separates the randomness of different settings; `check_bits` is the receiver's."""
        return f"{self.clock} {self.payload_bits} {self.use}"
