"""What a message looks like as bits: a keyed check value, a header that says where the message ends, the payload.

    check (32 or 64 bits) | version (2) | kind (1) | size (5) | 0, 8, 16, 24 or 32 further bits of size | payload

The size counts bytes (kind 0) or bits (kind 1). Sizes 0 to 27 stand in the 5 bits; 28 to 31 there mean that 1 to 4
bytes follow, and the shortest form is the only valid one. So a frame of up to 27 bytes costs 40 bits beyond its
payload.

The check value is a pseudo-random function of all that follows it, and what follows it is encrypted under a key that
depends on it (the construction SIV of Rogaway and Shrimpton, 2006). So two messages under one nonce share no key bits:
all that their frames tell is whether the messages are equal. Opened with other keys a frame is uniform bits, which pass
the check with probability 2^-32 or 2^-64.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polar.text.keys.derivation import MessageKeys

VERSION = 2
CHECK_BITS = 32
"""Bits of the check value, unless the settings say 64."""
SHORT_HEADER = 8
LONGEST_HEADER = 40

_DIRECT_SIZES = 28
_LARGEST_SIZE = (1 << 32) - 1


@dataclass(frozen=True)
class BitString:
    """`length` bits, the first one most significant in `value`."""

    value: int
    length: int

    def __post_init__(self) -> None:
        if self.length < 0 or not 0 <= self.value < 1 << self.length:
            raise ValueError(f"{self.value} is no string of {self.length} bits")

    def __str__(self) -> str:
        return f"{self.value:0{self.length}b}" if self.length else ""

    def first(self, length: int) -> "BitString":
        """The leading `length` bits."""
        return BitString(self.value >> (self.length - length), length)

    def after(self, length: int) -> "BitString":
        """What follows the leading `length` bits."""
        rest = self.length - length
        return BitString(self.value & ((1 << rest) - 1), rest)

    def then(self, other: "BitString") -> "BitString":
        """These bits with the other ones behind them."""
        return BitString(self.value << other.length | other.value, self.length + other.length)

    def to_bytes(self) -> bytes:
        """The bits as bytes, zeros in front where `length` is no multiple of 8."""
        return self.value.to_bytes((self.length + 7) // 8, "big")


Message = bytes | BitString
"""What users send: bytes, or a string of bits of any length."""


def parse_bits(text: str) -> BitString:
    """The bit string that `text`, zeros and ones, spells.

    Raises:
        ValueError: another character.
    """
    if set(text) - {"0", "1"}:
        raise ValueError("a message of bits is written with the digits 0 and 1 only")
    return BitString(int(text, 2) if text else 0, len(text))


def payload_bits(message: Message) -> int:
    """Number of bits of the message itself."""
    return message.length if isinstance(message, BitString) else 8 * len(message)


def make_frame(message: Message, keys: "MessageKeys") -> BitString:
    """The frame of a message.

    Raises:
        ValueError: 2^32 bytes or bits or more.
    """
    size = message.length if isinstance(message, BitString) else len(message)
    if size > _LARGEST_SIZE:
        raise ValueError(f"a message of size {size} is too long, at most {_LARGEST_SIZE} is possible")
    extra = 0 if size < _DIRECT_SIZES else (size.bit_length() + 7) // 8
    first = VERSION << 6 | isinstance(message, BitString) << 5 | (_DIRECT_SIZES - 1 + extra if extra else size)
    header = BitString(first, SHORT_HEADER).then(BitString(size if extra else 0, 8 * extra))
    payload = message if isinstance(message, BitString) else BitString(int.from_bytes(message, "big"), 8 * size)
    body = header.then(payload)
    check = BitString(keys.check(_checked_bytes(body)), keys.check_bits)
    return check.then(_sealed(body, check, keys))


def frame_bits(message: Message, check_bits: int = CHECK_BITS) -> int:
    """Length of the frame of a message."""
    size = message.length if isinstance(message, BitString) else len(message)
    extra = 0 if size < _DIRECT_SIZES else (size.bit_length() + 7) // 8
    return check_bits + SHORT_HEADER + 8 * extra + payload_bits(message)


def is_frame_start(bits: BitString, keys: "MessageKeys") -> bool:
    """Whether a frame of this version can begin with these bits, at least check value and `SHORT_HEADER` of them."""
    return _opened(bits.first(keys.check_bits + SHORT_HEADER), keys).first(2).value == VERSION


def header_end(bits: BitString, keys: "MessageKeys") -> int:
    """Where the header of a frame ends that begins with these bits, as many as `is_frame_start` needs."""
    size = _opened(bits.first(keys.check_bits + SHORT_HEADER), keys).value & 31
    return keys.check_bits + SHORT_HEADER + 8 * max(0, size - _DIRECT_SIZES + 1)


def frame_length(bits: BitString, keys: "MessageKeys") -> int | None:
    """Length in bits of the frame that begins with these bits, check value and `LONGEST_HEADER` at least; None if none
    does.
    """
    start = _opened(bits.first(min(bits.length, keys.check_bits + LONGEST_HEADER)), keys)
    header = _read_header(start.then(BitString(0, LONGEST_HEADER)))
    return None if header is None else keys.check_bits + header.length + header.payload


def open_frame(frame: BitString, keys: "MessageKeys") -> Message | None:
    """The message in a whole frame, None if the check value is not the right one."""
    body = _opened(frame, keys)
    header = _read_header(body.then(BitString(0, LONGEST_HEADER)))
    if header is None or frame.first(keys.check_bits).value != keys.check(_checked_bytes(body)):
        return None
    payload = body.after(header.length)
    return payload if header.is_bits else payload.to_bytes()


def _opened(frame: BitString, keys: "MessageKeys") -> BitString:
    """What follows the check value, decrypted."""
    return _sealed(frame.after(keys.check_bits), frame.first(keys.check_bits), keys)


def _sealed(body: BitString, check: BitString, keys: "MessageKeys") -> BitString:
    """The body under the key that belongs to the check value (xor, so this opens it too)."""
    return BitString(body.value ^ keys.stream("seal", check.to_bytes()).leading(body.length), body.length)


@dataclass(frozen=True)
class _Header:
    length: int
    payload: int
    is_bits: bool


def _read_header(bits: BitString) -> _Header | None:
    if bits.first(2).value != VERSION:
        return None
    first = bits.first(SHORT_HEADER).value
    size, extra = first & 31, 0
    if size >= _DIRECT_SIZES:
        extra = size - _DIRECT_SIZES + 1
        size = bits.after(SHORT_HEADER).first(8 * extra).value
        if size < _DIRECT_SIZES or (size.bit_length() + 7) // 8 != extra:
            return None
    is_bits = bool(first >> 5 & 1)
    return _Header(SHORT_HEADER + 8 * extra, size if is_bits else 8 * size, is_bits)


def _checked_bytes(body: BitString) -> bytes:
    return body.length.to_bytes(8, "big") + body.to_bytes()
