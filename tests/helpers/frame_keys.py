"""Keys of frames by SHA-256, so that frames can be tested without the derivation."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Pad:
    """The same byte for ever, or bits of SHA-256."""

    seed: bytes

    def leading(self, length: int) -> int:
        data = b"".join(hashlib.sha256(self.seed + bytes([part])).digest() for part in range(length // 256 + 1))
        return int.from_bytes(data, "big") >> (8 * len(data) - length) if self.seed else 0


@dataclass(frozen=True)
class HashKeys:
    """Check value and streams by SHA-256; `plain` keys encrypt nothing."""

    check_bits: int = 32
    plain: bool = False

    def check(self, data: bytes) -> int:
        return int.from_bytes(hashlib.sha256(data).digest(), "big") >> (256 - self.check_bits)

    def stream(self, label: str, about: bytes = b"") -> Pad:
        return Pad(b"" if self.plain else label.encode() + about)
