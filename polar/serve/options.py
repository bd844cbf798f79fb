"""The options of `python -m polar serve`. Free of FastAPI and torch: help and refusals come at once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from polar.text.keys.ledger import check_ledger, ledger_beside
from polar.text.schemes.robust import MOST_TOKENS
from polar.text.schemes.robust.settings import MOST_CHARACTERS, RobustSettings
from wm_env.common.files import encoded
from wm_env.common.help import paragraph_help


@paragraph_help
@dataclass(frozen=True)
class ServeLimits:
    """What one request may ask for, and how many may wait."""

    most_characters: int = 20_000
    """Characters of a text that is read, and of a prompt."""
    most_tokens: int = 300
    """Tokens of a text that is written."""
    reading_seconds: float = 30.0
    """A text that takes longer to read is given up."""
    writing_seconds: float = 300.0
    """A text that takes longer to write is given up; no nonce comes back."""
    receiving_seconds: float = 10.0
    """The headers of a request must have arrived by then, and its body as long after them."""
    sending_seconds: float = 60.0
    """A client that leaves a piece of an answer untaken for longer is hung up on."""
    readers: int = 1
    """Processes that read texts."""
    waiting: int = 16
    """Requests that may wait to be read, and as many to be written; more are told to come again."""

    @property
    def most_bytes(self) -> int:
        """Bytes of a request: JSON may spell a character with twelve."""
        return 12 * self.most_characters + (1 << 16)

    def check(self) -> None:
        """Raise ValueError for a number out of its range."""
        ranges = {
            "most_characters": (1, MOST_CHARACTERS),
            "most_tokens": (1, MOST_TOKENS),
            "readers": (1, 256),
            "waiting": (0, 10_000),
            "reading_seconds": (0.1, 86_400),
            "writing_seconds": (0.1, 86_400),
            "receiving_seconds": (0.1, 86_400),
            "sending_seconds": (0.1, 86_400),
        }
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name}={getattr(self, name)}: a number from {least} to {most} is needed")


@paragraph_help
@dataclass(frozen=True)
class Serve:
    """Write and read marked texts (scheme robust) over HTTP, for programs and on a page for people."""

    key: Path
    """The key file."""
    ledger: Path | None = None
    """The file that notes used nonces; by default the key file's name with .nonces behind it."""
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 is every one that this machine has. Anyone who reaches it can write and read
    with the key."""
    port: int = 8000
    """The port; 0 takes a free one."""
    model: str = "mini"
    """"mini" (comes with the package), a folder with a checkpoint, or a hub id OWNER/NAME."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0."""
    arithmetic: Literal["exact", "float"] | None = None
    """As in embed; receivers of these texts need no model."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Number format of float arithmetic."""
    payload_bits: int = 32
    """Length of every message in bits, 1 to 256."""
    check_bits: Literal[32, 64] = 32
    """A wrong message is read with probability 2^-check_bits for each candidate compared."""
    sender: str = ""
    """Who writes, if several use one key."""
    search: int = 128
    """Nonces that are looked for, from 0 on, and all that the ledger has."""
    limits: tyro.conf.OmitArgPrefixes[ServeLimits] = field(default_factory=ServeLimits)

    @property
    def ledger_file(self) -> Path:
        """Where used nonces are noted."""
        return ledger_beside(self.key) if self.ledger is None else self.ledger

    @property
    def robust(self) -> RobustSettings:
        """What both ends agree on.

        Raises:
            ValueError: a number is out of its range, or the sender is no text.
        """
        return RobustSettings(self.payload_bits, self.check_bits, use=encoded(self.sender, "--sender").decode())

    def check(self) -> None:
        """Refuse what would not serve.

        Raises:
            ValueError: an option is out of range, or the ledger is damaged.
            OSError: the ledger cannot be written.
        """
        self.limits.check()
        _ = self.robust
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port={self.port}: a number from 0 to 65535 is needed")
        if not 1 <= self.search <= 1_000_000:
            raise ValueError(f"search={self.search}: a number from 1 to 1000000 is needed")
        check_ledger(self.ledger_file, None)
