import pytest
from scipy.stats import binomtest

from wm_env.common.intervals import block_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1000), (500, 1000)])
def test_interval_is_clopper_and_pearsons(successes, trials):
    expected = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert block_interval(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_interval_of_a_fraction_is_rounded_outwards():
    low, high = block_interval(2.5, 20)
    assert low == pytest.approx(block_interval(2, 20)[0])
    assert high == pytest.approx(block_interval(3, 20)[1])
