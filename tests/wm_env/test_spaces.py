import pickle

import numpy as np
import pytest
from gymnasium.spaces import Dict
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from wm_env.spaces import TOLERANCE, ProductOfSimplices


def space(seed=0):
    return ProductOfSimplices(3, 4, 5, seed=seed)


def test_samples_are_laws():
    for _ in range(20):
        action = space().sample()
        assert action.shape == (3, 4, 6)
        assert action.dtype == np.float32
        for state in range(3):
            assert sum(float(action[state, label, 0]) for label in range(4)) == pytest.approx(1, abs=1e-6)
            for label in range(4):
                assert sum(float(p) for p in action[state, label, 1:]) == pytest.approx(1, abs=1e-6)


def test_samples_are_uniform_on_the_simplex():
    # A coordinate of a uniform point of the simplex of 5 vertices is Beta(1, 4): mean 1/5, second moment 1/15.
    draws = np.concatenate([space(seed).sample()[..., 1:].reshape(-1) for seed in range(400)]).astype(float)
    assert draws.mean() == pytest.approx(1 / 5, abs=1e-6)
    assert (draws**2).mean() == pytest.approx(1 / 15, rel=0.02)


def test_contains_checks_every_law():
    good = space().sample()
    assert good in space()
    for spoil in ("label", "candidate", "negative", "nan"):
        bad = good.copy()
        if spoil == "label":
            bad[1, 2, 0] += 3 * TOLERANCE
        elif spoil == "candidate":
            bad[2, 0, 3] += 3 * TOLERANCE
        elif spoil == "negative":
            bad[0, 0, 1] -= bad[0, 0, 1] + 1e-6
        else:
            bad[0, 1, 2] = np.nan
        assert bad not in space(), spoil
    assert good.astype(np.float64) not in space()
    assert good[:2] not in space()


def test_seeded_samples_repeat():
    assert np.array_equal(space(7).sample(), space(7).sample())
    assert not np.array_equal(space(7).sample(), space(8).sample())


def test_batched_space_keeps_the_simplices():
    batched = batch_space(Dict(action=space()), 2)["action"]
    assert batched == ProductOfSimplices(3, 4, 5, batch=(2,))
    sample = batched.sample()
    assert sample.shape == (2, 3, 4, 6)
    assert sample in batched
    items = list(iterate(batched, sample))
    assert len(items) == 2
    assert all(item in space() for item in items)
    out = create_empty_array(space(), n=2)
    assert np.array_equal(concatenate(space(), items, out), sample)


def test_equality_repr_and_pickle():
    assert space() == space(5)
    assert space() != ProductOfSimplices(3, 4, 4)
    assert pickle.loads(pickle.dumps(space())) == space()
    assert repr(space()) == "ProductOfSimplices(states=3, labels=4, candidates=5)"


def test_masks_are_refused():
    with pytest.raises(ValueError, match="takes no mask"):
        space().sample(mask=np.ones(3))
