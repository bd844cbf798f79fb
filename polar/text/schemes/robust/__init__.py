"""The scheme `robust`: the model's own law, read without the model, after edits, inside other texts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from polar.text.scheme import Scheme, Writing, Written
from polar.text.schemes.robust.tape import NONCES
from wm_env.common.help import paragraph_help

if TYPE_CHECKING:
    from polar.text.decoding import Decoded
    from polar.text.framing import Message
    from polar.text.keys.key import Key
    from polar.text.settings import Settings
    from wm_env.lm.tokenizer import TextTokenizer

MOST_TOKENS = 448
"""With the end of the last sentence a text has at most as many words as one nonce."""


@paragraph_help
@dataclass(frozen=True)
class Robust(Scheme):
    """The model's own law; read with the key and the tokenizer alone, after edits too."""

    name: ClassVar[str] = "robust"
    needs_model: ClassVar[bool] = False
    finds_nonces: ClassVar[bool] = True
    nonce_limit: ClassVar[int] = NONCES

    payload_bits: int = 32
    """Length of every message in bits, 1 to 256; whole bytes come back as bytes."""
    clock: Literal["words", "tokens"] = "words"
    """What is counted to tell places in a text apart. words: best for texts from left to right. tokens: for samplers
    that fill places in any order."""
    tokens: int = 200
    """Tokens of a text, before its last sentence ends. Only the sender uses it."""

    def check(self, settings: "Settings") -> None:
        """As in `Scheme`."""
        from polar.text.schemes.robust.settings import RobustSettings

        RobustSettings(self.payload_bits, settings.check_bits, self.clock, settings.sender)
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise ValueError(f"tokens={self.tokens}: a number from 1 to {MOST_TOKENS} is needed")

    def write(self, writing: Writing) -> Written:
        """As in `Scheme`."""
        from polar.text.schemes.robust.writing import write_robust_text

        return write_robust_text(self, writing)

    def sent_bits(self, message: "Message", check_bits: int) -> int:
        """As in `Scheme`: no header, since both ends know the length."""
        return self.payload_bits + check_bits

    def find(
        self, tokenizer: "TextTokenizer", text: bytes, key: "Key", settings: "Settings", nonces: Iterable[int]
    ) -> "Decoded":
        """As in `Scheme`."""
        from polar.text.schemes.robust.messages import find

        return find(self, tokenizer, text, key, settings, nonces)


SCHEME = Robust()
