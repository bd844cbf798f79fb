import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_env.synthetic import gaussian_pmf, synthetic_tree


def bits(row):
    return -sum(p * math.log2(p) for p in row if p > 0)


@settings(max_examples=30)
@given(st.integers(2, 40), st.floats(0.02, 1.0), st.integers(0, 10**6))
def test_pmf_has_the_entropy_asked_for(candidates, share, seed):
    wanted = share * math.log2(candidates)
    pmf = gaussian_pmf(candidates, wanted, np.random.default_rng(seed))
    assert bits(pmf) == pytest.approx(wanted, abs=1e-9)
    assert pmf.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(pmf) <= 0).all()


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("block_length", [1, 8])
def test_overlap_is_the_share_of_common_candidates(overlap, block_length):
    tree = synthetic_tree(3, blocks=2, candidates=8, block_length=block_length, entropy=2.0, overlap=overlap, seed=1)
    for block in tree.blocks:
        sets = [set(row) for row in block.symbol.tolist()]
        assert all(len(names) == 8 for names in sets)
        common = set.intersection(*sets)
        assert len(common) == round(8 * overlap)
        own = [names - common for names in sets]
        assert len(set().union(*own)) == sum(len(names) for names in own)


@pytest.mark.parametrize("block_length", [1, 2, 16])
def test_many_candidates_keep_distinct_tokens(block_length):
    tree = synthetic_tree(60, blocks=2, candidates=20, block_length=block_length, entropy=3.0)
    assert len(np.unique(tree.blocks[1].symbol)) == 60 * 20 * 20


def test_seeds_decide():
    first, again, other = (synthetic_tree(2, seed=seed) for seed in (4, 4, 5))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.states == 2 + 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": 0}, "at least 1"),
        ({"prompts": 1, "entropy": 4.4}, "20 candidates allow"),
        ({"prompts": 1, "entropy": 0.0}, "20 candidates allow"),
        ({"prompts": 2, "entropy": 1e-3}, "entropy=0.001: some of 20 candidates would have probability 0; take more"),
        ({"prompts": 1, "overlap": 1.1}, "between 0 and 1"),
        ({"prompts": 1, "block_length": 6}, "power of two"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        synthetic_tree(**arguments)
