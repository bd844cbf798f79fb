"""Messages over many blocks: the law of the text, the decoder, and the exact success probability."""

import itertools

import numpy as np
import pytest

from polar.text.offset_coding import Offset, block_weights, decode_text, draw_offset, encode_text
from wm_env.theory.long_texts import text_success

LAWS = [np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4]), np.array([0.25, 0.5, 0.25])]


def test_short_messages_come_back_from_likely_texts():
    rng = np.random.default_rng(0)
    weights = [block_weights(law) for law in LAWS] * 20
    for _ in range(50):
        offset, message = draw_offset(60, rng), int(rng.integers(1 << 20))
        assert decode_text(weights, encode_text(weights, message, 20, offset), 20, offset) == message


def test_every_message_has_the_law_of_the_cover_and_the_success_is_exact():
    """Offsets on a fine lattice, all of them: the law of the text and the success by counting."""
    weights = [block_weights(law) for law in LAWS]
    grid, bits = 9, 3
    counts, right = {}, 0
    for number in range(1 << grid):
        offset = Offset((2 * number + 1) << 511 - grid, 512)
        for message in range(1 << bits):
            text = tuple(encode_text(weights, message, bits, offset))
            counts[message, text] = counts.get((message, text), 0) + 1
            right += decode_text(weights, text, bits, offset) == message
    success = 0.0
    for text in itertools.product(range(3), range(2), range(3)):
        p = float(np.prod([law[x] for law, x in zip(LAWS, text, strict=True)]))
        success += min(p, 0.5**bits)
        for message in range(1 << bits):
            assert counts.get((message, text), 0) / (1 << grid) == pytest.approx(p, abs=2 / (1 << grid))
    assert right / (1 << grid + bits) == pytest.approx(success, abs=0.02)


def test_measured_success_lies_at_the_limit():
    rng = np.random.default_rng(1)
    covers, probs, blocks, bits = np.array([[0.5, 0.3, 0.2], [0.7, 0.2, 0.1]]), np.array([0.4, 0.6]), 30, 32
    weights = [block_weights(cover) for cover in covers]
    texts = 1500
    right = 0
    for _ in range(texts):
        laws = [weights[s] for s in rng.choice(2, size=blocks, p=probs)]
        offset, message = draw_offset(blocks, rng), int(rng.integers(1 << bits))
        right += decode_text(laws, encode_text(laws, message, bits, offset), bits, offset) == message
    limit = text_success(covers, probs, blocks, bits)
    assert limit.upper - limit.lower < 0.01
    assert right / texts == pytest.approx(limit.lower, abs=4 * np.sqrt(limit.lower * (1 - limit.lower) / texts) + 0.01)


def test_weights_are_the_law_in_whole_numbers():
    weights = block_weights(np.array([1 / 3, 2 / 3, 0.0]))
    assert sum(weights) == 1 << 48
    assert weights[2] == 0
    assert weights[0] / 2**48 == pytest.approx(1 / 3, abs=2**-47)
