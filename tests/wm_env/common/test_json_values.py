import json
from dataclasses import asdict, dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_env.common.json_values import entry, parse_json, read_as


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    size: int | None = None


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    on: bool
    sets: tuple[tuple[int, ...], ...] = ()
    length: int | Literal["auto"] = "auto"
    note: str = ""
    inner: Inner = field(default_factory=Inner)


finite = st.floats(allow_nan=False, allow_infinity=False)
characters = st.text(st.characters(exclude_categories=["Cs"]))
outer = st.builds(
    Outer,
    kind=st.sampled_from(["a", "b"]),
    on=st.booleans(),
    sets=st.lists(st.lists(st.integers(), max_size=3).map(tuple), max_size=3).map(tuple),
    length=st.integers() | st.just("auto"),
    note=characters,
    inner=st.builds(Inner, rate=finite, size=st.none() | st.integers()),
)


@given(outer)
def test_what_was_written_comes_back(value):
    assert read_as(Outer, parse_json(json.dumps(asdict(value)), "f"), "f") == value


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "x", b"\xff", "9" * 5000, "NaN", '{"a": [-Infinity]}'])
def test_what_is_no_json(text):
    with pytest.raises(ValueError, match=r"^f\.json is not JSON: .*$"):
        parse_json(text, "f.json")


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "b": 2, "a": 3}}]'])
def test_a_name_that_is_there_twice(text):
    with pytest.raises(ValueError, match=r"^f\.json is not JSON: the name 'a' is there twice in one object$"):
        parse_json(text, "f.json")
    assert parse_json('[{"a": 1}, {"a": {"a": 2}}]', "f.json") == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "c"}, "f: kind is 'c', 'a' or 'b' is needed"),
        ({"kind": ["a"]}, "f: kind is ['a'], 'a' or 'b' is needed"),
        ({"on": 1}, "f: on is 1, true or false is needed"),
        ({"sets": [[1], [2, "3"]]}, "f: sets[1][1] is '3', an integer is needed"),
        ({"sets": [[True]]}, "f: sets[0][0] is True, an integer is needed"),
        ({"sets": "12"}, "f: sets is '12', a list is needed"),
        ({"length": 2.0}, "f: length is 2.0, an integer or 'auto' is needed"),
        ({"note": "\ud800"}, "f: note is '\\ud800', text is needed"),
        ({"note": None}, "f: note is None, text is needed"),
        ({"inner": []}, "f: inner is [], an object is needed"),
        ({"inner": {"rate": "1"}}, "f: inner.rate is '1', a number is needed"),
        ({"inner": {"rate": float("nan")}}, "f: inner.rate is nan, a number is needed"),
        ({"inner": {"rate": True}}, "f: inner.rate is True, a number is needed"),
        ({"inner": {"size": False}}, "f: inner.size is False, an integer or null is needed"),
        ({"inner": {"sise": 1}}, "f: inner.sise is unknown"),
        ({"colour": 1}, "f: colour is unknown"),
    ],
)
def test_what_differs_is_named(change, says):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (compared below)
        read_as(Outer, {"kind": "a", "on": True} | change, "f")
    assert str(caught.value) == says


def test_missing_and_huge():
    with pytest.raises(ValueError, match=r"^f: on is missing$"):
        read_as(Outer, {"kind": "a"}, "f")
    with pytest.raises(ValueError, match=r"^f is \[\], an object is needed$"):
        read_as(Outer, [], "f")
    with pytest.raises(ValueError, match=r"^f: x.rate is 1000.*, a number is needed$") as caught:
        read_as(Inner, {"rate": 10**400}, "f", "x")
    assert len(str(caught.value)) < 120


def test_entries():
    assert entry({"a": 1}, "a", int, "f") == 1
    assert entry({"a": 1}, "a", float, "f") == 1.0
    assert entry({"a": [1, 2]}, "a", tuple[int, ...], "f") == (1, 2)
    for values, says in (({}, "f: a is missing"), ([], "f is"), (None, "f is None"), ({"a": None}, "f: a is None")):
        with pytest.raises(ValueError, match=says):
            entry(values, "a", int, "f")


def test_what_an_object_holds_is_looked_at_too():
    kind = dict[str, tuple[str, int]]
    assert read_as(kind, {"a": ["int8", 3]}, "file") == {"a": ("int8", 3)}
    for value, line in [
        ({"a": None}, r"file: shapes\.a is None, a list is needed"),
        ({"a": ["int8"]}, r"file: shapes\.a has 1 entries, 2 are needed"),
        ({"a": [3, 3]}, r"file: shapes\.a\[0\] is 3, text is needed"),
        ({"a": ["int8", "3"]}, r"file: shapes\.a\[1\] is '3', an integer is needed"),
        ([], r"file: shapes is \[\], an object is needed"),
    ]:
        with pytest.raises(ValueError, match=line):
            read_as(kind, value, "file", "shapes")
