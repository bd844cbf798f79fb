import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.text.framing import BitString, make_frame
from polar.text.schemes.parallel.outer_code import decode_frames, encode_frame, open_bytes


def check(data):
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big")


def find(received, parity):
    for data in decode_frames(received, parity):
        message, _ = open_bytes(data, check)
        if message is not None:
            return message
    return None


@settings(max_examples=30)
@given(st.binary(max_size=40), st.sampled_from([0, 2, 8, 16]), st.data())
def test_half_the_parity_of_wrong_bytes_is_corrected(message, parity, data):
    codeword = bytearray(encode_frame(make_frame(message, check), parity))
    places = data.draw(st.lists(st.integers(0, len(codeword) - 1), unique=True, max_size=parity // 2))
    for place in places:
        codeword[place] ^= data.draw(st.integers(1, 255))
    assert find(bytes(codeword) + b"behind", parity) == message


@given(st.text("01", max_size=40))
@settings(max_examples=20)
def test_bit_strings_come_back(digits):
    message = BitString(int(digits, 2) if digits else 0, len(digits))
    assert find(encode_frame(make_frame(message, check), 4), 4) == message


def test_more_wrong_bytes_give_no_message():
    codeword = bytearray(encode_frame(make_frame(b"user 4711", check), 8))
    for place in (0, 3, 6, 9, 12):
        codeword[place] ^= 0x5A
    assert find(bytes(codeword), 8) is None
    assert find(b"", 8) is None


def test_frames_that_are_not_whole_are_not_compared():
    frame = encode_frame(make_frame(b"user", check), 0)
    assert open_bytes(frame, check) == (b"user", 1)
    assert open_bytes(frame + b"\0", check) == (None, 0)
    assert open_bytes(bytes([frame[0] ^ 0xC0]) + frame[1:], check) == (None, 0)
    assert open_bytes(frame[:-1] + bytes([frame[-1] ^ 1]), check) == (None, 1)


def test_bits_behind_the_frame_must_be_zero():
    frame = encode_frame(make_frame(BitString(0b10110, 5), check), 0)
    assert open_bytes(frame, check) == (BitString(0b10110, 5), 1)
    assert open_bytes(frame[:-1] + bytes([frame[-1] | 1]), check) == (None, 0)


def test_too_long_a_message_says_how_long_it_may_be():
    with pytest.raises(ValueError, match="its frame has 256 bytes, with 8 parity bytes at most 247 are possible"):
        encode_frame(make_frame(bytes(250), check), 8)
