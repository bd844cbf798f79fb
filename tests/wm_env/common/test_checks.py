import numpy as np
import pytest

from wm_env.common.checks import integer, number


def test_numbers_of_python_and_numpy():
    assert number("epsilon", np.float32(0.5)) == number("epsilon", 0.5) == 0.5
    assert number("epsilon", np.int64(2)) == number("epsilon", 2) == 2.0
    assert integer("labels", np.int64(2)) == 2
    assert type(integer("labels", np.int64(2))) is int
    assert type(number("epsilon", 2)) is float


def test_numbers_that_are_none_or_that_no_float_holds():
    for value in (float("inf"), float("nan"), 10**400, -(10**400), True, "1", None):
        with pytest.raises(ValueError, match=r"^epsilon=.*: a finite number is needed$"):
            number("epsilon", value)
