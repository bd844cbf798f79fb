import numpy as np
import pytest

from polar.text.schemes.parallel.design import message_positions, split_law


@pytest.mark.parametrize("effective_tokens", [2.0, 8.0, 64.0])
def test_split_law_has_the_moments_of_a_random_split(effective_tokens):
    share = split_law(effective_tokens)
    assert share.mean() == pytest.approx(0.5)
    assert share.var() == pytest.approx(1 / (4 * effective_tokens), rel=0.02)


@pytest.mark.parametrize("effective_tokens", [4.0, 16.0, 64.0])
@pytest.mark.parametrize("bit_error", [0.01, 0.05, 0.2])
def test_no_chosen_position_of_two_loses_more_than_allowed(effective_tokens, bit_error):
    share = split_law(effective_tokens)[::8]
    first, second = np.meshgrid(share, share)
    even = first * second + (1 - first) * (1 - second)
    on_parity = np.abs(even - 0.5).mean()
    given_even = even * np.abs(first * second / even - 0.5)
    given_odd = (1 - even) * np.abs(first * (1 - second) / (1 - even) - 0.5)
    losses = np.array([on_parity, (given_even + given_odd).mean()])
    try:
        chosen = message_positions(2, 1, effective_tokens, bit_error)[0]
    except ValueError:
        chosen = np.zeros(2, dtype=bool)
    assert (losses[chosen] <= bit_error * 1.01).all()
    assert not chosen[losses > 1.5 * bit_error].any()


def test_more_entropy_or_more_patience_gives_more_positions():
    counts = [message_positions(16, 2, tokens, 0.02).sum() for tokens in (8.0, 32.0, 128.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert message_positions(16, 2, 8.0, 0.001).sum() < message_positions(16, 2, 8.0, 0.1).sum()
    assert message_positions(16, 3, 32.0, 0.02).shape == (3, 16)


def test_the_next_bit_level_has_half_the_tokens():
    levels = message_positions(16, 3, 64.0, 0.02)
    for number, tokens in enumerate((64.0, 32.0, 16.0)):
        assert levels[number].tolist() == message_positions(16, 1, tokens, 0.02)[0].tolist()
    assert levels[0].sum() > levels[2].sum()


def test_a_design_without_any_position_says_so():
    with pytest.raises(ValueError, match="carry no message bit under a design of 1 effective tokens"):
        message_positions(2, 1, 1.0, 0.01)
