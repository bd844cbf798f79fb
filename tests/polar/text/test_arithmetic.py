from fractions import Fraction
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.text.arithmetic import (
    GUARD,
    ArithmeticReceiver,
    ArithmeticSender,
    Interval,
    MessageTooLongError,
    NoEntropyError,
)
from polar.text.framing import parse_bits
from polar.text.keys.derivation import MessageKeys
from polar.text.keys.key import Key
from polar.text.scheme import NoMessageError

KEYS = MessageKeys(Key(bytes(range(32))), 3, b"stream")
weights = st.lists(st.integers(0, 2**60), min_size=1, max_size=6).filter(any)


@given(st.lists(weights, min_size=1, max_size=8), st.data())
def test_parts_tile_the_interval_in_proportion(steps, data):
    interval = Interval()
    for step in steps:
        total = sum(step)
        interval = interval.refined(total)
        ends = [sum(step[:index]) for index in range(len(step) + 1)]
        parts = [interval.part(start, end, total) for start, end in pairwise(ends)]
        assert parts[0].low == interval.low
        for part, following in pairwise(parts):
            assert part.low + part.width == following.low
        assert parts[-1].low + parts[-1].width == interval.low + interval.width
        for part, weight in zip(parts, step, strict=True):
            assert abs(Fraction(part.width, interval.width) - Fraction(weight, total)) < Fraction(1, 2**GUARD)
            assert (part.width > 0) == (weight > 0)
        point = data.draw(st.integers(interval.low, interval.low + interval.width - 1))
        place = interval.find(point, total)
        held_by = [index for index, end in enumerate(ends[1:]) if ends[index] <= place < end]
        assert parts[held_by[0]].low <= point < parts[held_by[0]].low + parts[held_by[0]].width
        interval = parts[held_by[0]]


@given(st.fractions(Fraction(1, 10**30), 1))
def test_information_and_width(width):
    interval = Interval(0, max(1, int(width * 2**200)), 200)
    bits = interval.information()
    exact = Fraction(interval.width, 2**200)
    assert Fraction(1, 2 ** (bits + 1)) < exact <= Fraction(1, 2**bits)
    assert interval.is_within(bits)
    assert not interval.is_within(bits + 1)


def transmit(message, steps, keys=KEYS, receiver_keys=KEYS):
    """Choices of one letter each; the text is the letters."""
    sender = ArithmeticSender(message, keys, most_tokens=10**6, patience=10**6)
    text = b""
    chosen = []
    for step in steps:
        if sender.done:
            break
        chosen.append(step)
        text += bytes([97 + sender.choose(step, lambda text, position: None)])
    if not sender.done:
        return None
    receiver = ArithmeticReceiver(text, receiver_keys)
    for step in chosen:
        assert not receiver.done
        receiver.choose(step, lambda text, position: text[position] - 97)
        receiver.put(text[receiver.position : receiver.position + 1])
    return receiver


@settings(max_examples=50)
@given(
    st.binary(max_size=40) | st.text(alphabet="01", max_size=70).map(parse_bits),
    st.lists(weights, min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_the_receiver_finds_the_message_at_the_sender_s_last_choice(message, pattern, nonce):
    keys = MessageKeys(Key(bytes(range(32))), nonce, b"stream")
    pattern = [*pattern, [1, 2, 3, 4]]
    receiver = transmit(message, pattern * 500, keys, keys)
    assert receiver.message == message
    assert receiver.attempts >= 1


def test_the_stop_rule_is_public():
    """How long a text gets depends on the weights chosen and the length of the frame, not on key or message."""
    sender = ArithmeticSender(b"abc", KEYS, 10**6, 10**6)
    width = Fraction(1)
    while not sender.done:
        assert width > Fraction(1, 2**sender.frame.length)
        index = sender.choose([5, 2, 1], lambda text, position: None)
        width *= Fraction([5, 2, 1][index], 8)
    assert width <= Fraction(1, 2**sender.frame.length)
    assert Fraction(sender.interval.width, 2**sender.interval.precision) == pytest.approx(width)


def test_other_keys_and_nonces_find_nothing():
    for receiver_keys in (MessageKeys(KEYS.key, 4, b"stream"), MessageKeys(Key(bytes(32)), 3, b"stream")):
        with pytest.raises(NoMessageError, match="no frame of this key"):
            transmit(b"secret", [[1, 1]] * 500, receiver_keys=receiver_keys)


def test_frames_differ_from_key_to_key():
    first_choices = {
        tuple(
            sender.choose([1] * 16, lambda text, position: None)
            for sender in [ArithmeticSender(b"same", MessageKeys(KEYS.key, nonce, b"stream"), 99, 99)]
            for _ in range(4)
        )
        for nonce in range(50)
    }
    assert len(first_choices) > 45


def test_receiver_refuses_impossible_and_short_texts():
    receiver = ArithmeticReceiver(b"ab", KEYS)
    with pytest.raises(NoMessageError, match="no choice of the key fits"):
        receiver.choose([0, 1], lambda text, position: 0)
    receiver.put(b"ab")
    with pytest.raises(NoMessageError, match="ends before"):
        receiver.choose([1, 1], lambda text, position: None)
    with pytest.raises(NoMessageError, match="no choice of the key fits"):
        ArithmeticReceiver(b"ab", KEYS).put(b"b")


def test_sender_gives_up_where_there_is_no_room():
    sender = ArithmeticSender(bytes(50), KEYS, most_tokens=100, patience=30)
    for count in range(1, 101):
        sender.choose([1] * 4, lambda text, position: None)
        if count == 100:
            with pytest.raises(MessageTooLongError, match=r"448 bits, 100 tokens carried 200; .* about 20 bytes"):
                sender.note_tokens(count)
        else:
            sender.note_tokens(count)


def test_sender_gives_up_where_there_is_no_choice():
    sender = ArithmeticSender(b"", KEYS, most_tokens=1000, patience=30)
    sender.choose([1, 1, 1, 1], lambda text, position: None)
    sender.note_tokens(1)
    for count in range(2, 31):
        sender.choose([7], lambda text, position: None)
        sender.note_tokens(count)
    with pytest.raises(NoEntropyError, match="30 tokens carried less than a bit"):
        sender.note_tokens(31)


class Pad:
    """A pad of given bits."""

    def __init__(self, value, length):
        self.value, self.length = value, length

    def leading(self, length):
        return self.value >> (self.length - length)


def test_what_the_last_choice_says_beyond_the_frame_is_checked():
    """A frame of 48 bits, read from 51: of the eight pads that agree on the 48, one fits the other three bits."""
    value = int.from_bytes(bytes(range(1, 65)))

    def stream(label, about=b"", flip=0):
        return Pad(value ^ flip << 512 - 51, 512) if label == "pad" else KEYS.stream(label, about)

    keys = [SimpleNamespace(check=KEYS.check, check_bits=32, stream=partial(stream, flip=flip)) for flip in range(8)]
    steps = [[1, 1]] * 47 + [[1] * 16]
    assert transmit(b"x", steps, keys[0], keys[0]).message == b"x"
    for other in keys[1:]:
        with pytest.raises(NoMessageError, match="no frame of this key"):
            transmit(b"x", steps, keys[0], other)
