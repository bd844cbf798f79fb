"""What the receiver of the scheme parallel reads at every shift, beside a plain loop over steps and bits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.text.keys.derivation import message_keys
from polar.text.keys.key import Key
from polar.text.schemes.parallel import Parallel
from polar.text.schemes.parallel.labels import read_bits
from polar.text.schemes.parallel.outer_code import _times
from polar.text.schemes.parallel.reading import message_mask, shifted_readings, tokenizer_readers
from polar.text.settings import Settings
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.tokenizer import read_text_tokenizer

KEYS = message_keys(Key(bytes(range(32))), 7, Settings(Parallel()), "")


def one_by_one(labels, mask, shift):
    """Step j of the sender at token j n + shift, from the first one on, while all of its tokens are there."""
    width, held = mask.shape[1], []
    for step in range(len(labels) + 8):
        start = step * width + shift
        if start + width > len(labels) and start >= 0:
            break
        inside = labels[start : start + width] if start >= 0 else []
        held += read_bits(np.array([inside]), mask)[0].tolist() if len(inside) else [0] * int(mask.sum())
    pad = KEYS.stream("pad")
    pad_bits = [int(bit) for bit in f"{pad.leading(len(held)):0{len(held)}b}"] if held else []
    plain = [bit ^ other for bit, other in zip(held, pad_bits, strict=True)]
    return bytes(int("".join(map(str, plain[at : at + 8])), 2) for at in range(0, len(plain) - 7, 8))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(1, 4), (2, 3), (8, 1), (16, 4)]), st.integers(0, 90), st.integers(0, 99))
def test_every_shift_is_read_as_step_by_step(shape, length, seed):
    positions, bits = shape
    mask = message_mask(Parallel(positions=positions, hash_bits=bits, bit_error=0.5))
    labels = np.random.default_rng(seed).integers(0, 1 << bits, length)
    shifts = range(-4, 5)
    expected = [one_by_one(labels, mask, shift) for shift in shifts]
    assert shifted_readings(labels, mask, KEYS, shifts) == expected
    assert [shifted_readings(labels, mask, KEYS, [shift])[0] for shift in shifts] == expected


@pytest.mark.parametrize(("parity", "readers"), [(0, 1), (4, 1), (5, 2), (8, 2), (9, 3), (32, 3)])
def test_readers_that_have_no_parity_to_erase_a_step_are_left_out(parity, readers):
    """A step of the default design has 4 bytes; one byte must be left over to tell a codeword."""
    tokenizer = read_text_tokenizer(EMBEDDED)
    assert message_mask(Parallel()).sum() == 32
    assert len(tokenizer_readers(replace(Parallel(), parity=parity), tokenizer)) == readers


def test_products_of_bytes_are_those_of_polynomials():
    """Of polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1."""

    def product(first, second):
        total = 0
        for place in range(8):
            total ^= (first << place) * (second >> place & 1)
        for place in range(7, -1, -1):
            total ^= (0x11D << place) * (total >> place + 8 & 1)
        return total

    first, second = np.meshgrid(np.arange(256), np.arange(256))
    expected = [product(*pair) for pair in zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)]
    assert _times(first, second).ravel().tolist() == expected
