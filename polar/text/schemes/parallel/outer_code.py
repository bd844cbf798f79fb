"""The outer code of the scheme `parallel`: a Reed-Solomon code over bytes around the frame (library reedsolo).

A step loses bits where the model's law forces them, and an edited token spoils the bits of its step, so errors come in
bursts: a code over bytes counts a spoilt byte once. The frame, filled up with zeros to whole bytes, k of them, gets P
parity bytes; up to P / 2 wrong bytes are corrected. The receiver does not know k. It tries all lengths, and the check
value of the frame decides.
"""

from collections.abc import Iterator

from reedsolo import ReedSolomonError, RSCodec

from polar.text.framing import CHECK_BITS, SHORT_HEADER, BitString, FrameKeys, Message, frame_length, open_frame

LONGEST_CODEWORD = 255
"""Bytes: a Reed-Solomon code over bytes has no more positions."""


def encode_frame(frame: BitString, parity: int) -> bytes:
    """The codeword: the frame in whole bytes, then `parity` bytes.

    Raises:
        ValueError: it would be longer than a codeword can be.
    """
    size = -(-frame.length // 8)
    most = LONGEST_CODEWORD - parity
    if size > most:
        raise ValueError(
            f"the message does not fit: its frame has {size} bytes, with {parity} parity bytes at most {most} are "
            "possible; send it in parts, or with the scheme stream"
        )
    data = frame.then(BitString(0, 8 * size - frame.length)).to_bytes()
    return bytes(RSCodec(parity).encode(data)) if parity else data


def decode_frames(received: bytes, parity: int, check_bits: int = CHECK_BITS) -> Iterator[bytes]:
    """The frames that codewords at the beginning of `received` may hold, in whole bytes, the shortest first."""
    codec = RSCodec(parity) if parity else None
    for end in range((check_bits + SHORT_HEADER) // 8 + parity, min(len(received), LONGEST_CODEWORD) + 1):
        if codec is None:
            yield received[:end]
            continue
        try:
            yield bytes(codec.decode(received[:end])[0])
        except ReedSolomonError:
            continue


def open_bytes(data: bytes, keys: FrameKeys) -> tuple[Message | None, int]:
    """The message of a frame in whole bytes if it fills them and its check value is right; check values compared."""
    bits = BitString(int.from_bytes(data, "big"), 8 * len(data))
    length = frame_length(bits, keys)
    if length is None or -(-length // 8) != len(data) or bits.after(length).value:
        return None, 0
    return open_frame(bits.first(length), keys), 1
