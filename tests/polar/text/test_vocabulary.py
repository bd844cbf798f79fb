import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.text.vocabulary import Vocabulary

strings = st.lists(
    st.text(alphabet="ab\u00ff", min_size=1, max_size=4).map(lambda text: text.encode("latin-1")), min_size=1
)


def nodes(vocabulary, node, prefix=b""):
    yield prefix, node
    for byte in node.next_bytes:
        yield from nodes(vocabulary, vocabulary.child(node, byte), prefix + bytes([byte]))


@given(strings)
def test_every_prefix_is_one_range_of_ranks(tokens):
    vocabulary = Vocabulary(dict(enumerate(tokens)))
    seen = set()
    for prefix, node in nodes(vocabulary, vocabulary.root):
        seen.add(prefix)
        ranks = [rank for rank, string in enumerate(vocabulary.strings) if string.startswith(prefix)]
        own = [rank for rank in ranks if vocabulary.strings[rank] == prefix]
        starts = [ranks[0], ranks[0] + len(own)]
        for byte in node.next_bytes:
            longer = [r for r in ranks if vocabulary.strings[r].startswith(prefix + bytes([byte]))]
            assert longer[0] == starts[-1]
            starts.append(longer[-1] + 1)
        assert node.bounds.tolist() == starts
        assert starts[-1] == ranks[-1] + 1
        assert node.depth == len(prefix)
    assert seen == {token[:length] for token in tokens for length in range(len(token) + 1)}


@given(strings)
def test_ids_and_strings_belong_together(tokens):
    vocabulary = Vocabulary(dict(enumerate(tokens)))
    assert [tokens[token] for token in vocabulary.ids] == list(vocabulary.strings) == sorted(tokens)
    assert vocabulary.text(tuple(range(len(tokens)))) == b"".join(tokens)


def test_what_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Vocabulary({})
    with pytest.raises(ValueError, match="token 3 has no bytes"):
        Vocabulary({1: b"a", 3: b""})
