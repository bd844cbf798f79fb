"""A few problems of the search for codes that beat a limit; `python benchmarks/limit_search.py` takes a thousand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limit_search import KINDS, SLACK, Kind, best_code


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_code_beats_a_limit_and_one_attains_it_where_that_is_said(kind: Kind, seed: int) -> None:
    found = kind.problem(np.random.default_rng(seed))
    assert found.best <= found.limit + SLACK
    if kind.attained:
        assert found.best >= (found.limit if found.reached is None else found.reached) - SLACK


def test_the_search_finds_codes_that_are_known() -> None:
    """Two even candidates carry a bit; (.9, .1) carry it as often as the light one allows; one symbol guesses."""
    one = np.ones(1)
    assert best_code(np.array([[0.5, 0.5]]), np.array([[0, 1]]), one, 1, 0.0) == pytest.approx(1)
    assert best_code(np.array([[0.9, 0.1]]), np.array([[0, 1]]), one, 1, 0.0) == pytest.approx(0.6)
    assert best_code(np.array([[0.9, 0.1]]), np.array([[0, 1]]), one, 1, 0.2) == pytest.approx(0.8)
    assert best_code(np.array([[0.9, 0.1]]), np.array([[0, 0]]), one, 1, 0.2) == pytest.approx(0.5)
