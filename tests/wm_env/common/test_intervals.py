import pytest
from scipy.stats import binomtest

from wm_env.common.intervals import block_interval, mean_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1000), (500, 1000)])
def test_interval_is_clopper_and_pearsons(successes, trials):
    expected = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert block_interval(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_interval_of_a_fraction_is_rounded_outwards():
    low, high = block_interval(2.5, 20)
    assert low == pytest.approx(block_interval(2, 20)[0])
    assert high == pytest.approx(block_interval(3, 20)[1])


def test_mean_and_interval_of_known_numbers():
    mean, (low, high) = mean_interval([1.0, 2.0, 3.0, 4.0])
    # s / sqrt(4) = 0.645497, t(0.975, 3) = 3.182446
    assert (mean, low, high) == pytest.approx((2.5, 2.5 - 2.054260, 2.5 + 2.054260), abs=1e-5)
