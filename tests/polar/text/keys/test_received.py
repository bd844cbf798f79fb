"""Which nonces a receiver tries, and in what order."""

from hypothesis import given
from hypothesis import strategies as st

from polar.text.keys.key import NONCE_LIMIT
from polar.text.keys.received import Seen, nonces_to_try


def seen_of(*entries):
    return [Seen(sender, nonce, "use", text, "message") for sender, nonce, text in entries]


def test_a_text_that_was_read_is_tried_with_its_nonce_first():
    """Six of eight nonces lie above what was seen; what lies further below is not tried, whatever the text."""
    seen = seen_of(("", 3, "first"), ("", 5, "second"), ("", 4, "third"), ("other", 2, "first"))
    assert nonces_to_try(seen, "", 8, ["new"]) == [6, 7, 8, 9, 10, 11, 5, 4]
    assert nonces_to_try(seen, "", 8, ["new", "third"]) == [4, 6, 7, 8, 9, 10, 11, 5]
    assert nonces_to_try(seen, "", 8, ["first"]) == [6, 7, 8, 9, 10, 11, 5, 4]
    assert nonces_to_try(seen, "other", 8, ["first"]) == [2, 3, 4, 5, 6, 7, 8, 1]


def test_as_many_nonces_are_tried_where_few_are_below_or_above():
    assert nonces_to_try([], "", 128) == list(range(128))
    assert nonces_to_try(seen_of(("", 0, "x")), "", 128) == [*range(1, 128), 0]
    assert nonces_to_try(seen_of(("", 1, "x")), "", 128) == [*range(2, 128), 1, 0]
    assert nonces_to_try(seen_of(("", 40, "x")), "", 128) == [*range(41, 137), *range(40, 8, -1)]
    last = NONCE_LIMIT - 1
    assert nonces_to_try(seen_of(("", last - 2, "x")), "", 8) == [last - 1, last, *range(last - 2, last - 8, -1)]
    assert nonces_to_try(seen_of(("", last, "x")), "", 8) == list(range(last, last - 8, -1))


@given(
    st.lists(st.tuples(st.sampled_from(["", "a"]), st.integers(0, 300), st.sampled_from(["x", "y", "z"])), max_size=20),
    st.integers(1, 200),
)
def test_a_text_changes_the_order_of_the_nonces_only(entries, count):
    seen = seen_of(*entries)
    plain, ordered = nonces_to_try(seen, "", count), nonces_to_try(seen, "", count, ["x"])
    assert len(plain) == len(set(plain)) == count
    assert sorted(ordered) == sorted(plain)
    read = [nonce for sender, nonce, text in entries if (sender, text) == ("", "x") and nonce in plain]
    assert set(ordered[: len(set(read))]) == set(read)
    rest = ordered[len(set(read)) :]
    assert rest == [nonce for nonce in plain if nonce in rest]
