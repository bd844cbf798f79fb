"""Readings of a text against every combination of candidates, tried one by one."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from polar.evaluation.live.matching import read_blocks

STRINGS = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4, unique=True)


@given(st.lists(STRINGS, min_size=1, max_size=3), st.text("ab", max_size=8))
def test_all_combinations_that_spell_the_text(pools, text):
    data = text.encode()

    def branches(node):
        return [(string.encode(), number, node + 1) for number, string in enumerate(pools[node])]

    found, matched = read_blocks(data, [0], branches, len(pools))
    expected = [
        tuple(enumerate(choice))
        for choice in itertools.product(*(range(len(pool)) for pool in pools))
        if "".join(pool[x] for pool, x in zip(pools, choice, strict=True)) == text
    ]
    assert found == expected
    prefixes = [
        depth
        for depth in range(len(pools))
        for choice in itertools.product(*pools[:depth])
        if text.startswith("".join(choice))
    ]
    assert matched == (len(pools) if expected else max(prefixes))


def test_states_that_the_text_does_not_lead_to_are_not_asked():
    asked = []

    def branches(node):
        asked.append(node)
        return [(b"x", 0, "x"), (b"y", 1, "y")]

    found, matched = read_blocks(b"xy", ["start"], branches, 2)
    assert found == [(("start", 0), ("x", 1))]
    assert matched == 2
    assert asked == ["start", "x"]


def test_several_starts_give_several_readings():
    found, _ = read_blocks(b"a", [3, 5], lambda node: [(b"a", 0, None)], 1)
    assert found == [((3, 0),), ((5, 0),)]
