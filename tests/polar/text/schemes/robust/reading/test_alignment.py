import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.text.schemes.robust.reading.alignment import MOST_SKIPPED, EditModel, Ratios, align, evidence, start_law

MODEL = EditModel(replaced=0.2, deleted=0.1, added=0.15, more=0.3, stray=0.05, back=0.2, enter=0.1, start=0.6)


def total_over_paths(known, unknown, begin, model):
    """The sum over all paths, one path at a time; and the sum over those on which word 1 is kept."""
    length, size = known.shape
    lengths = model.more ** np.arange(MOST_SKIPPED)
    skips = [1 - model.deleted, *(model.deleted * lengths / lengths.sum())]
    kept_at_1 = np.zeros(size)

    def walk(word, state, place, weight, kept):
        if word == length:
            if kept is not None:
                kept_at_1[kept] += weight
            return weight
        total = 0.0

        def arrive(target, share, ratios):
            mark = target if word == 1 else kept
            part = walk(word + 1, "kept", target, weight * share * (1 - model.replaced) * ratios[word, target], mark)
            return part + walk(word + 1, "replaced", target, weight * share * model.replaced, kept)

        if state == "outside":
            enter = model.start if word == 0 else model.enter
            total += walk(word + 1, "outside", None, weight * (1 - enter), kept)
            for target in range(size):
                total += arrive(target, enter * begin[target], unknown)
            return total
        if state in ("kept", "replaced"):
            total += walk(word + 1, "extra", place, weight * model.added, kept)
            total += walk(word + 1, "stray", place, weight * model.stray, kept)
            share = 1 - model.added - model.stray
        elif state == "extra":
            total += walk(word + 1, "extra", place, weight * model.more, kept)
            share = 1 - model.more
        else:
            total += walk(word + 1, "stray", place, weight * (1 - model.back), kept)
            for target in range(place + 1, size):
                total += arrive(target, model.back / size, unknown)
            return total
        for skipped, weight_of in enumerate(skips):
            target = place + 1 + skipped
            if target < size:
                straight = state == "kept" and skipped == 0
                total += arrive(target, share * weight_of, known if straight else unknown)
        return total

    return walk(0, "outside", None, 1.0, None), kept_at_1


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_the_evidence_and_the_posterior_are_sums_over_all_paths(seed):
    rng = np.random.default_rng(seed)
    known, unknown = rng.exponential(size=(2, 3, 4))
    begin = start_law(4, 1)
    total, kept = total_over_paths(known, unknown, begin, MODEL)
    found = align(Ratios(known, unknown), MODEL, begin)
    assert 2**found.log2_evidence == pytest.approx(total)
    assert evidence(Ratios(known, unknown), MODEL, begin) == pytest.approx(found.log2_evidence)
    assert (found.known + found.unknown)[1] == pytest.approx(kept / total)


def test_without_a_mark_the_mean_evidence_is_at_most_1():
    ones = np.ones((6, 9))
    total = 2 ** evidence(Ratios(ones, ones), MODEL, start_law(9))
    assert 0.5 < total <= 1 + 1e-12


def test_a_law_of_beginnings_sums_to_1():
    for start in (None, 0, 3):
        assert start_law(20, start).sum() == pytest.approx(1)
    assert start_law(20, 3).argmax() == 3
