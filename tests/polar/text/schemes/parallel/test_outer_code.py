import numpy as np
import pytest
from frame_keys import HashKeys
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.text.framing import BitString, make_frame
from polar.text.schemes.parallel.outer_code import decode_frames, decode_shifted, encode_frame, open_bytes

KEYS = HashKeys()


def find(received, parity):
    for data in decode_frames(received, parity):
        message, _ = open_bytes(data, KEYS)
        if message is not None:
            return message
    return None


@settings(max_examples=30)
@given(st.binary(max_size=40), st.sampled_from([0, 2, 8, 16]), st.data())
def test_half_the_parity_of_wrong_bytes_is_corrected(message, parity, data):
    codeword = bytearray(encode_frame(make_frame(message, KEYS), parity))
    places = data.draw(st.lists(st.integers(0, len(codeword) - 1), unique=True, max_size=parity // 2))
    for place in places:
        codeword[place] ^= data.draw(st.integers(1, 255))
    assert find(bytes(codeword) + b"behind", parity) == message


@given(st.text("01", max_size=40))
@settings(max_examples=20)
def test_bit_strings_come_back(digits):
    message = BitString(int(digits, 2) if digits else 0, len(digits))
    assert find(encode_frame(make_frame(message, KEYS), 4), 4) == message


def test_more_wrong_bytes_give_no_message():
    codeword = bytearray(encode_frame(make_frame(b"user 4711", KEYS), 8))
    for place in (0, 3, 6, 9, 12):
        codeword[place] ^= 0x5A
    assert find(bytes(codeword), 8) is None
    assert find(b"", 8) is None


def test_frames_that_are_not_whole_are_not_compared():
    frame = encode_frame(make_frame(b"user", KEYS), 0)
    assert open_bytes(frame, KEYS) == (b"user", 1)
    assert open_bytes(frame + b"\0", KEYS) == (None, 0)
    assert open_bytes(frame[:4] + bytes([frame[4] ^ 0xC0]) + frame[5:], KEYS) == (None, 0)
    assert open_bytes(frame[:-1] + bytes([frame[-1] ^ 1]), KEYS) == (None, 1)


def test_bits_behind_the_frame_must_be_zero():
    frame = encode_frame(make_frame(BitString(0b10110, 5), KEYS), 0)
    assert open_bytes(frame, KEYS) == (BitString(0b10110, 5), 1)
    assert open_bytes(frame[:-1] + bytes([frame[-1] | 1]), KEYS) == (None, 0)


def test_too_long_a_message_says_how_long_it_may_be():
    with pytest.raises(ValueError, match="its frame has 256 bytes, with 8 parity bytes at most 247 are possible"):
        encode_frame(make_frame(bytes(250), KEYS), 8)


STEPS = [range(4 * step, 4 * step + 4) for step in range(24)]


@settings(max_examples=40)
@given(st.binary(max_size=30), st.integers(1, 2), st.sampled_from([5, 8, 12, 32]), st.data())
def test_edited_steps_are_found_whatever_they_shifted(message, edits, parity, data):
    """Each reading is right between two edited steps, and junk elsewhere; so is what follows the codeword."""
    codeword = encode_frame(make_frame(message, KEYS), parity)
    last = -(-len(codeword) // 4)
    edited = sorted(data.draw(st.sets(st.integers(0, last - 1), min_size=edits, max_size=edits)))
    shifts = data.draw(st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=edits, max_size=edits))
    length = 4 * last + data.draw(st.integers(0, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    readings = {shift: bytearray(rng.bytes(length)) for shift in (-2, -1, 0, 1, 2)}
    for first, behind, shift in zip([-1, *edited], [*edited, last], [0, *shifts], strict=True):
        part = slice(4 * (first + 1), 4 * behind)
        readings[shift][part] = codeword[part].ljust(part.stop - part.start, b"?")
    found = [
        open_bytes(data, KEYS)[0]
        for data in decode_shifted({s: bytes(r) for s, r in readings.items()}, STEPS[:last], edits, parity)
    ]
    assert (message in found) or 4 * edits >= parity


def test_what_is_no_codeword_is_hardly_ever_decoded():
    rng = np.random.default_rng(3)
    for edits in (1, 2):
        for _ in range(60):
            readings = {shift: rng.bytes(60) for shift in (-1, 0, 1)}
            assert not list(decode_shifted(readings, STEPS[:15], edits, 12))
