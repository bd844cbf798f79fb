import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.text.framing import (
    CHECK_BITS,
    LONGEST_HEADER,
    BitString,
    frame_length,
    is_header_start,
    make_frame,
    open_frame,
    overhead_bits,
    parse_bits,
    payload_bits,
)

bit_texts = st.text(alphabet="01", max_size=300)
messages = st.binary(max_size=300) | bit_texts.map(parse_bits)


def padded_start(frame, following):
    return BitString(int(str(frame) + following, 2), frame.length + len(following)).first(LONGEST_HEADER)


@given(messages, st.text(alphabet="01", min_size=40, max_size=40))
def test_a_frame_gives_its_message_back_whatever_follows(message, following):
    frame = make_frame(message, zlib.crc32)
    assert frame_length(padded_start(frame, following)) == frame.length
    assert open_frame(frame, zlib.crc32) == message
    assert frame.length == payload_bits(message) + overhead_bits(message)


@given(messages, st.data())
def test_one_flipped_bit_of_payload_or_check_is_noticed(message, data):
    frame = make_frame(message, zlib.crc32)
    flipped = data.draw(st.integers(0, payload_bits(message) + CHECK_BITS - 1))
    assert open_frame(BitString(frame.value ^ 1 << flipped, frame.length), zlib.crc32) is None


@pytest.mark.parametrize(
    ("message", "bits"),
    [
        (b"", "01000000"),
        (b"\x05", "01000001" + "00000101"),
        (parse_bits("101"), "01100011" + "101"),
        (bytes(27), "01011011" + "0" * 216),
        (bytes(28), "01011100" + "00011100" + "0" * 224),
        (bytes(256), "01011101" + "0000000100000000" + "0" * 2048),
    ],
)
def test_layout(message, bits):
    assert str(make_frame(message, lambda _: 1)) == bits + "0" * 31 + "1"


@pytest.mark.parametrize(
    "start",
    [
        "00000000" + "0" * 32,  # version 0
        "10000000" + "0" * 32,  # version 2
        "01011100" + "00011011" + "0" * 24,  # size 27 in the long form
        "01011101" + "0" * 8 + "1" * 24,  # a size of one byte in two
    ],
)
def test_what_is_no_header(start):
    assert frame_length(BitString(int(start, 2), 40)) is None


def test_the_version_shows_in_the_first_byte():
    assert [is_header_start(BitString(value << 6, 8)) for value in range(4)] == [False, True, False, False]


def test_the_check_covers_the_length_of_a_bit_message():
    seen = []
    for text in ("0", "00"):
        make_frame(parse_bits(text), lambda data: seen.append(data) or 0)
    assert seen[0] != seen[1]


def test_bit_strings_are_checked():
    assert str(parse_bits("0010")) == "0010"
    assert parse_bits("").length == 0
    with pytest.raises(ValueError, match="0 and 1 only"):
        parse_bits("012")
    with pytest.raises(ValueError, match="no string of 2 bits"):
        BitString(4, 2)
