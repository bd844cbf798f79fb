from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.text.arithmetic import ArithmeticReceiver
from polar.text.keys.derivation import MessageKeys
from polar.text.keys.key import Key
from polar.text.schemes.block.evidence import log2_evidence
from polar.text.vocabulary import Vocabulary
from wm_env.lm.pools.candidates import Pool

STRINGS = [b"a", b"ab", b"abb", b"b", b"ba", b"a"]
VOCABULARY = Vocabulary(dict(enumerate(STRINGS)))


def pool_of(draws, model):
    """As the program makes one: of the draws with one text, the block drawn first, with the mass of all of them."""
    first = {}
    for block in draws:
        first.setdefault(b"".join(STRINGS[token] for token in block), block)
    mass = {text: sum(model[x] for x in set(draws) if text_of(x) == text) for text in first}
    return Pool(
        exact=False,
        merged=0,
        dropped=0,
        tokens=np.array(list(first.values())),
        text=tuple(first),
        cover=np.full(len(first), np.nan),
        log2_prob=np.log2([mass[text] for text in first]),
    )


def text_of(block):
    return b"".join(STRINGS[token] for token in block)


@pytest.mark.parametrize("text", [b"abbab", b"aaaaa", b"babab", b"cab"])
@pytest.mark.parametrize("seed", [1, 2])
def test_keys_that_made_no_text_find_evidence_1_at_most_in_the_mean(text, seed):
    """All pools of 3 draws from a random model of 8 blocks of two tokens, and the candidate of each that says most."""
    rng = np.random.default_rng(seed)
    blocks = [(0, 3), (1, 0), (5, 3), (0, 0), (2, 4), (0, 5), (4, 3), (1, 1)]
    model = dict(zip(blocks, rng.dirichlet(np.full(8, 0.5)), strict=True))
    mean = 0.0
    for draws in product(model, repeat=3):
        pool = pool_of(draws, model)
        matches = [number for number, string in enumerate(pool.text) if text.startswith(string)]
        evidence = [2.0 ** log2_evidence(VOCABULARY, pool, number, 3, text) for number in matches]
        mean += np.prod([model[block] for block in draws]) * max(evidence, default=0.0)
    assert mean <= 1 + 1e-12
    assert (mean > 0) == text.startswith((b"a", b"b"))


def test_evidence_by_hand():
    """In "abbab" begin "abb" (first), "ab", and two "a"; then "ab" and two "a"."""
    pool = Pool(np.array([[1, 3], [2, 5]]), np.log2([0.001, 0.01]), np.ones(2), (b"abb", b"abba"), False, 0, 0)
    assert 2.0 ** log2_evidence(VOCABULARY, pool, 0, 64, b"abbab") == pytest.approx(
        (0.25 * 0.75) * (0.75 * 0.25) / (64 * 0.001)
    )
    assert 2.0 ** log2_evidence(VOCABULARY, pool, 1, 64, b"abbab") == pytest.approx(
        0.75 * (0.25**2 * 0.75) / (64 * 0.01)
    )


@given(st.binary(max_size=6).map(lambda data: bytes(97 + byte % 3 for byte in data)))
def test_matches_are_all_tokens_that_a_text_begins_with(text):
    found = VOCABULARY.matches(text)
    expected = [token for token, string in enumerate(STRINGS) if text.startswith(string)]
    assert found == sorted(expected, key=lambda token: (-len(STRINGS[token]), token))


def test_evidence_that_shrinks_again_is_kept():
    """A supermartingale that reaches e does so with probability at most 1/e, wherever it goes from there."""
    receiver = ArithmeticReceiver(b"", MessageKeys(Key(bytes(32)), 0, b"block"))
    for bits in (3.0, 4.0, -6.0, -5.0, 2.0):
        receiver.note_evidence(bits)
    assert receiver.log2_evidence == 7.0
    receiver.note_evidence(20.0)
    assert receiver.log2_evidence == 18.0
