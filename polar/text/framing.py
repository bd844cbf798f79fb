"""What a message looks like as bits: a header that says where it ends, the payload, and a keyed check value.

    version (2 bits) | kind (1) | size (5) | 8, 16, 24 or 32 further bits of size, if needed | payload | check (32)

The size counts bytes (kind 0) or bits (kind 1). Sizes 0 to 27 stand in the 5 bits; 28 to 31 there mean that 1 to 4
bytes follow, and the shortest form is the only valid one. So a frame of up to 27 bytes costs 40 bits beyond its
payload. The frame is encrypted before it is embedded, so none of this can be seen in a text, and decrypting with
another key or nonce gives uniform bits: they pass the check with probability 2^-32.
"""

from collections.abc import Callable
from dataclasses import dataclass

VERSION = 1
CHECK_BITS = 32
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

Check = Callable[[bytes], int]
"""The keyed check value of some bytes, in [0, 2^CHECK_BITS)."""


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


def make_frame(message: Message, check: Check) -> BitString:
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
    return body.then(BitString(check(_checked_bytes(body)), CHECK_BITS))


def overhead_bits(message: Message) -> int:
    """Bits that the frame adds to this message."""
    return make_frame(message, lambda _: 0).length - payload_bits(message)


def is_header_start(bits: BitString) -> bool:
    """Whether a frame of this version can begin with these bits, at least `SHORT_HEADER` of them."""
    return bits.first(2).value == VERSION


def frame_length(bits: BitString) -> int | None:
    """Length in bits of the frame that begins with these bits, `LONGEST_HEADER` at least; None if none does."""
    header = _read_header(bits)
    return None if header is None else header.length + header.payload + CHECK_BITS


def open_frame(frame: BitString, check: Check) -> Message | None:
    """The message in a whole frame, None if the check value is not the right one."""
    header = _read_header(frame.then(BitString(0, LONGEST_HEADER)))
    body = frame.first(frame.length - CHECK_BITS)
    if header is None or frame.after(body.length).value != check(_checked_bytes(body)):
        return None
    payload = body.after(header.length)
    return payload if header.is_bits else payload.to_bytes()


@dataclass(frozen=True)
class _Header:
    length: int
    payload: int
    is_bits: bool


def _read_header(bits: BitString) -> _Header | None:
    if not is_header_start(bits):
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
