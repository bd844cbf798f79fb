import hashlib

import pytest
from frame_keys import HashKeys
from hypothesis import given
from hypothesis import strategies as st

from polar.text.framing import (
    BitString,
    frame_bits,
    frame_length,
    header_end,
    is_frame_start,
    make_frame,
    open_frame,
    parse_bits,
    payload_bits,
)

bit_texts = st.text(alphabet="01", max_size=300)
messages = st.binary(max_size=300) | bit_texts.map(parse_bits)
key_sets = st.sampled_from([HashKeys(32), HashKeys(64)])


@given(messages, st.text(alphabet="01", min_size=72, max_size=72), key_sets)
def test_a_frame_gives_its_message_back_whatever_follows(message, following, keys):
    frame = make_frame(message, keys)
    bits = frame.then(parse_bits(following))
    start = bits.first(keys.check_bits + 8)
    assert is_frame_start(start, keys)
    assert frame_length(bits.first(header_end(start, keys)), keys) == frame.length
    assert open_frame(frame, keys) == message
    assert frame.length == frame_bits(message, keys.check_bits)


@given(messages, st.data(), key_sets)
def test_one_flipped_bit_of_payload_or_check_is_noticed(message, data, keys):
    frame = make_frame(message, keys)
    flipped = data.draw(st.one_of(*[st.integers(0, payload_bits(message) - 1)] * (payload_bits(message) > 0),
                                  st.integers(frame.length - keys.check_bits, frame.length - 1)))  # fmt: skip
    assert open_frame(BitString(frame.value ^ 1 << flipped, frame.length), keys) is None


def test_what_follows_the_check_value_is_encrypted_under_it():
    """By hand: the body is xored with the stream that belongs to the check value."""
    keys = HashKeys(32)
    body = bytes([0b10000010]) + b"hi"
    check = hashlib.sha256((24).to_bytes(8, "big") + body).digest()[:4]
    pad = hashlib.sha256(b"seal" + check + b"\0").digest()[:3]
    sealed = bytes(a ^ b for a, b in zip(body, pad, strict=True))
    assert make_frame(b"hi", keys).to_bytes() == check + sealed


@pytest.mark.parametrize(
    ("message", "bits"),
    [
        (b"", "10000000"),
        (b"\x05", "10000001" + "00000101"),
        (parse_bits("101"), "10100011" + "101"),
        (bytes(27), "10011011" + "0" * 216),
        (bytes(28), "10011100" + "00011100" + "0" * 224),
        (bytes(256), "10011101" + "0000000100000000" + "0" * 2048),
    ],
)
def test_layout(message, bits):
    assert str(make_frame(message, HashKeys(plain=True)).after(32)) == bits


@pytest.mark.parametrize(
    "start",
    [
        "00000000" + "0" * 32,  # version 0
        "01000000" + "0" * 32,  # version 1
        "10011100" + "00011011" + "0" * 24,  # size 27 in the long form
        "10011101" + "0" * 8 + "1" * 24,  # a size of one byte in two
    ],
)
def test_what_is_no_header(start):
    assert frame_length(BitString(int(start, 2), 72), HashKeys(plain=True)) is None


def test_the_version_shows_behind_the_check_value():
    starts = [BitString(value << 6, 40) for value in range(4)]
    assert [is_frame_start(start, HashKeys(plain=True)) for start in starts] == [False, False, True, False]


def test_the_check_covers_the_length_of_a_bit_message():
    checks = {make_frame(parse_bits(text), HashKeys()).first(32) for text in ("0", "00")}
    assert len(checks) == 2


def test_bit_strings_are_checked():
    assert str(parse_bits("0010")) == "0010"
    assert parse_bits("").length == 0
    with pytest.raises(ValueError, match="0 and 1 only"):
        parse_bits("012")
    with pytest.raises(ValueError, match="no string of 2 bits"):
        BitString(4, 2)
