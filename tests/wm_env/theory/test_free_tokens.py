"""Limits of free and stuck tokens against enumeration, and against codes."""

import math
from itertools import product

import numpy as np
import pytest

from wm_env.theory.capacity import corollary
from wm_env.theory.free_tokens import (
    FreeTokens,
    corollary_labels,
    known_state_success,
    label_capacity,
    message_limit,
)


def best_success(law: FreeTokens, tokens: int, bits: int) -> float:
    """E over states of the mass of the likeliest 2^(k-l) flip patterns of k free tokens, one pattern after another."""
    total = 0.0
    for free in product((False, True), repeat=tokens):
        count = sum(free)
        flips = product((0, 1), repeat=count)
        chances = [math.prod(law.flip if bit else 1 - law.flip for bit in each) for each in flips]
        room, mass = 2.0 ** (count - bits), 0.0
        for chance in sorted(chances, reverse=True):
            mass += chance * min(1.0, room)
            room = max(room - 1, 0.0)
        total += math.prod(law.free if bit else 1 - law.free for bit in free) * mass
    return total


@pytest.mark.parametrize("flip", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("bits", [0, 1, 2, 4])
def test_success_with_known_states_is_that_of_the_likeliest_patterns(flip: float, bits: int) -> None:
    law = FreeTokens(0.6, flip)
    assert known_state_success(law, 6, bits) == pytest.approx(best_success(law, 6, bits), abs=1e-12)


def test_no_linear_code_beats_the_limit() -> None:
    """All messages of random linear codes at known states, maximum likelihood, enumerated; keys are cosets."""
    rng = np.random.default_rng(0)
    law, tokens, bits = FreeTokens(0.7, 0.1), 5, 2
    words = np.array(list(product((0, 1), repeat=tokens)))
    for _ in range(50):
        generator = rng.integers(2, size=(bits, tokens))
        book = np.array(list(product((0, 1), repeat=bits))) @ generator % 2
        success = 0.0
        for free in product((False, True), repeat=tokens):
            mask = np.array(free)
            share = math.prod(law.free if bit else 1 - law.free for bit in free)
            distance = ((words[:, None] ^ book)[:, :, mask]).sum(2)
            likelihood = law.flip**distance * (1 - law.flip) ** (mask.sum() - distance)
            success += share * likelihood.max(1).sum() / len(book) / 2 ** int((~mask).sum())
        assert success <= known_state_success(law, tokens, bits) + 1e-12


def test_the_capacity_without_edits_is_the_share_of_free_tokens_and_that_of_the_corollary() -> None:
    law = corollary_labels(64, 0.0)
    assert label_capacity(law).rate == pytest.approx(law.free, abs=1e-6)
    assert law.free == pytest.approx(float(corollary(64).rate))


def test_limits_lie_below_the_capacity_in_the_end_and_fall_with_edits() -> None:
    found = [message_limit(corollary_labels(64, replaced), 256, 0.01) / 256 for replaced in (0, 0.05, 0.1, 0.2)]
    assert found == sorted(found, reverse=True)
    assert found[0] < label_capacity(corollary_labels(64, 0)).rate


def test_wrong_laws_are_refused() -> None:
    with pytest.raises(ValueError, match="free=0"):
        FreeTokens(0.0, 0.1)
    with pytest.raises(ValueError, match=r"flip=0\.5"):
        FreeTokens(0.5, 0.5)
