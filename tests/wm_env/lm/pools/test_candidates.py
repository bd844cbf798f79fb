import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from tiny_lm import TINY_TOKENS, brute_force, write_lm

from wm_env.lm.models.load import load_lm
from wm_env.lm.pools.candidates import (
    SCORE_STEP,
    forward_rows,
    inverse_cdf,
    keyed_uniforms,
    make_pools,
)
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import token_bytes

CONTEXT = [0, 1, 2, 3]
LENGTH = 4


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load_lm(write_lm(tmp_path_factory.mktemp("lm") / "tiny"))


@pytest.fixture(scope="module")
def vocabulary(lm):
    return token_bytes(lm.tokenizer)


@pytest.fixture(scope="module")
def law(lm):
    """log2 probability of all 6^4 blocks after CONTEXT at tau = 1.5."""
    return brute_force(lm, len(TINY_TOKENS), CONTEXT, LENGTH, 1.5)


@pytest.fixture(scope="module")
def text_law(law):
    """text -> its blocks, best first, of all blocks that are text."""
    spellings = {}
    for block in sorted(law, key=lambda block: (-round(law[block] / SCORE_STEP), block)):
        text = text_of(block)
        if text.decode(errors="replace").count("�") == 0:
            spellings.setdefault(text, []).append(block)
    return spellings


def settings(pool="top", **changes):
    base = PoolSettings(pool, LENGTH, candidates=5, temperature=1.5, beam_width=8, rows=8, key=b"key")
    return dataclasses.replace(base, **changes)


def one_pool(lm, vocabulary, context=CONTEXT, **changes):
    return make_pools(lm, vocabulary, np.array([context]), settings(**changes))[0]


def text_of(block):
    return b"".join(TINY_TOKENS[token] for token in block)


def mass(law, blocks):
    return sum(2.0 ** law[tuple(block)] for block in blocks)


def test_the_law_sums_to_one(law):
    assert mass(law, law) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("candidates", [1, 5, 40])
def test_wide_beam_finds_the_most_likely_texts(lm, vocabulary, law, text_law, candidates):
    pool = one_pool(lm, vocabulary, candidates=candidates, beam_width=len(law))
    masses = {text: mass(law, blocks) for text, blocks in text_law.items()}
    best = sorted(masses, key=lambda text: (-round(np.log2(masses[text]) / SCORE_STEP), text_law[text][0]))[:candidates]
    assert list(pool.text) == best
    assert pool.tokens.tolist() == [list(text_law[text][0]) for text in best]
    assert np.exp2(pool.log2_prob) == pytest.approx([masses[text] for text in best], rel=2e-4)
    kept = np.array([masses[text] for text in best])
    assert pool.cover == pytest.approx(kept / kept.sum(), rel=2e-4)
    assert pool.exact
    assert pool.dropped == len(law) - sum(map(len, text_law.values())) > 0
    assert pool.merged == sum(map(len, text_law.values())) - len(text_law) > 0


@pytest.mark.parametrize("beam_width", range(5, 30))
def test_certified_pools_are_the_most_likely_blocks(lm, vocabulary, law, text_law, beam_width):
    pool = one_pool(lm, vocabulary, beam_width=beam_width)
    kept = {tuple(block) for block in pool.tokens.tolist()}
    weakest = min(law[block] for block in kept)
    spelled = {block for text in pool.text for block in text_law[text]}
    missed = [
        block
        for blocks in text_law.values()
        for block in blocks
        if law[block] > weakest + SCORE_STEP and block not in spelled
    ]
    assert not (pool.exact and missed)


def test_greedy_search_is_certified_only_where_it_is_right(tmp_path):
    lm = load_lm(write_lm(tmp_path / "letters", tokens=(b"a", b"b", b"c", b"d", b"e", b"f"), merges=()))
    greedy = settings(block_length=2, candidates=1, beam_width=1, temperature=0.5)
    certified = wrong = 0
    for context in itertools.product(range(4), repeat=3):
        pool = make_pools(lm, token_bytes(lm.tokenizer), np.array([context]), greedy)[0]
        law = brute_force(lm, 6, context, 2, greedy.temperature)
        loss = max(law.values()) - law[tuple(pool.tokens[0].tolist())]
        certified += pool.exact
        wrong += loss > SCORE_STEP
        assert not (pool.exact and loss > SCORE_STEP)
    assert certified > 0
    assert wrong > 0


def test_certificate_is_given_and_withheld(lm, vocabulary):
    narrow = [one_pool(lm, vocabulary, candidates=3, beam_width=width).exact for width in range(3, 60)]
    assert not all(narrow)
    assert narrow[-1]
    # A wider beam drops less, so it never loses the certificate.
    assert narrow == sorted(narrow)


def test_scores_are_those_of_one_by_one_rescoring(lm, vocabulary, law, text_law):
    pool = one_pool(lm, vocabulary, candidates=8, beam_width=8)
    for block, text, log2_prob in zip(pool.tokens.tolist(), pool.text, pool.log2_prob, strict=True):
        spellings = text_law[text]
        found = [
            mass(law, chosen) for n in range(1, len(spellings) + 1) for chosen in itertools.combinations(spellings, n)
        ]
        assert tuple(block) in spellings
        assert min(abs(2**log2_prob / value - 1) for value in found) < 1e-5


def test_candidates_are_different_texts_in_order(lm, vocabulary):
    pool = one_pool(lm, vocabulary, candidates=20, beam_width=60)
    assert len(set(pool.text)) == len(pool.text) == 20
    assert (np.diff(pool.log2_prob) <= SCORE_STEP).all()
    assert all(text == text_of(block) for text, block in zip(pool.text, pool.tokens, strict=True))
    assert pool.tokens.max() < len(TINY_TOKENS)


def test_too_few_texts_give_a_short_pool(lm, vocabulary, text_law):
    everything = one_pool(lm, vocabulary, candidates=1296, beam_width=1296)
    assert len(everything.text) == len(text_law) < 1296
    assert everything.exact
    assert everything.cover.sum() == pytest.approx(1)
    short = one_pool(lm, vocabulary, candidates=8, beam_width=8)
    assert len(short.text) < 8
    assert not short.exact


def test_a_temperature_near_zero_leaves_one_candidate(tmp_path):
    lm = load_lm(write_lm(tmp_path / "cold", tokens=(b"a", b"b", b"c"), merges=()))
    pool = make_pools(lm, token_bytes(lm.tokenizer), np.array([[0]]), settings(temperature=1e-8))[0]
    assert pool.cover.tolist() == [1.0]
    assert len(pool.text) == len(pool.tokens) == len(pool.log2_prob) == 1
    hot = make_pools(lm, token_bytes(lm.tokenizer), np.array([[0]]), settings(temperature=1e8))[0]
    assert hot.cover == pytest.approx([0.2] * 5, abs=1e-6)


def test_no_text_at_all(tmp_path):
    lm = load_lm(write_lm(tmp_path / "cut", tokens=(b"a", b"\xc3", b"\xa9"), merges=()))
    lm.banned[0] = True
    with pytest.raises(ValueError, match="none of the 2 best blocks is text"):
        make_pools(lm, token_bytes(lm.tokenizer), np.array([[0]]), settings(block_length=1, candidates=2, beam_width=2))
    with pytest.raises(ValueError, match="none of 4 drawn blocks is text"):
        make_pools(lm, token_bytes(lm.tokenizer), np.array([[0]]), settings("sampled", block_length=1, candidates=4))


def test_more_candidates_than_blocks(lm, vocabulary):
    with pytest.raises(ValueError, match="6 tokens make only 1296 blocks"):
        one_pool(lm, vocabulary, candidates=1297, beam_width=1297)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"block_length": 6}, "power of two"),
        ({"block_length": 0}, "power of two"),
        ({"candidates": 0}, "at least 1"),
        ({"rows": 0}, "at least 1"),
        ({"beam_width": 4}, "at least candidates=5"),
        ({"pool": "best"}, "top or sampled"),
        ({"key": bytes(65)}, "64"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_canvas_longer_than_the_model_reads(lm, vocabulary):
    with pytest.raises(ValueError, match="at most 40"):
        one_pool(lm, vocabulary, context=[0] * 37)


@pytest.mark.parametrize("pool", ["top", "sampled"])
def test_a_pool_does_not_depend_on_its_neighbours(lm, vocabulary, pool):
    contexts = np.random.default_rng(0).integers(0, len(TINY_TOKENS), size=(9, 5))
    size = {"candidates": 40, "beam_width": 40}
    together = make_pools(lm, vocabulary, contexts, settings(pool, **size))
    for context, first in zip(contexts, together, strict=True):
        alone = one_pool(lm, vocabulary, context=context.tolist(), pool=pool, **size)
        assert alone.text == first.text
        for name in ("tokens", "log2_prob", "cover"):
            assert np.array_equal(getattr(alone, name), getattr(first, name))
        assert (alone.exact, alone.merged, alone.dropped) == (first.exact, first.merged, first.dropped)


def test_every_pass_has_the_same_shape_and_copies_are_cut_off(lm):
    canvases = torch.randint(0, 6, (10, 7), generator=torch.Generator().manual_seed(0))
    parts = list(forward_rows(lm, canvases, 3, 2.0, rows=4))
    assert [part for part, _ in parts] == [slice(0, 4), slice(4, 8), slice(8, 10)]
    singly = torch.cat([lm.log2_probs(canvas[None], 3, 2.0) for canvas in canvases])
    assert torch.allclose(torch.cat([scores for _, scores in parts]), singly, atol=1e-5)


def test_equal_scores_are_ordered_by_token_ids(tmp_path):
    lm = load_lm(write_lm(tmp_path / "flat", scale=0.0))
    pool = make_pools(
        lm, token_bytes(lm.tokenizer), np.array([[0]]), settings(block_length=2, candidates=4, beam_width=4)
    )[0]
    assert pool.tokens.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert not pool.exact


def test_sampled_frequencies_follow_the_law(lm, vocabulary, law, text_law):
    draws = 4000
    pool = one_pool(lm, vocabulary, pool="sampled", candidates=draws, rows=64)
    counts = dict(zip(pool.text, np.round(pool.cover * (draws - pool.dropped)), strict=True))
    expected = {text: mass(law, blocks) for text, blocks in text_law.items()}
    kept = draws - pool.dropped
    assert pool.dropped / draws == pytest.approx(1 - sum(expected.values()), abs=4 * 0.5 / np.sqrt(draws))
    total = sum(expected.values())
    common = [text for text in expected if kept * expected[text] / total >= 5]
    observed = [counts.get(text, 0) for text in common]
    wanted = [kept * expected[text] / total for text in common]
    rest = kept - sum(wanted)
    assert len(common) > 20
    assert chisquare([*observed, kept - sum(observed)], [*wanted, rest]).pvalue > 1e-3


def draw_by_hand(law, uniforms):
    """Inverse-CDF draws, token by token, from a table of all blocks."""
    draws = []
    for row in uniforms:
        prefix = ()
        for value in row:
            weights = [
                mass(law, [block for block in law if block[: len(prefix) + 1] == (*prefix, token)])
                for token in range(6)
            ]
            cells = np.cumsum(weights) / sum(weights)
            prefix = (*prefix, int(np.searchsorted(cells, value, side="right")))
        draws.append(prefix)
    return draws


def test_sampled_pool_is_made_of_its_draws(lm, vocabulary, law, text_law):
    count = 120
    draws = draw_by_hand(law, keyed_uniforms(b"key", np.array(CONTEXT), settings("sampled", candidates=count)))
    spellings = {}
    for block in draws:
        spellings.setdefault(text_of(block), []).append(block)
    spellings = {text: blocks for text, blocks in spellings.items() if text in text_law}
    kept = sum(map(len, spellings.values()))
    pool = one_pool(lm, vocabulary, pool="sampled", candidates=count)
    assert set(pool.text) == set(spellings)
    assert any(len(set(blocks)) > 1 for blocks in spellings.values())
    assert any(len(blocks) > len(set(blocks)) for blocks in spellings.values())
    for block, text, log2_prob, cover in zip(pool.tokens.tolist(), pool.text, pool.log2_prob, pool.cover, strict=True):
        assert tuple(block) == spellings[text][0]
        assert cover == pytest.approx(len(spellings[text]) / kept)
        assert 2**log2_prob == pytest.approx(mass(law, set(spellings[text])), rel=2e-4)
    assert (np.diff(pool.log2_prob) <= SCORE_STEP).all()
    assert pool.merged == sum(len(set(blocks)) for blocks in spellings.values()) - len(spellings)
    assert pool.dropped == count - kept
    assert not pool.exact


def test_draws_depend_on_the_key_and_the_context_only(lm, vocabulary):
    first = one_pool(lm, vocabulary, pool="sampled", candidates=30)
    again = one_pool(lm, vocabulary, pool="sampled", candidates=30, rows=7)
    other = one_pool(lm, vocabulary, pool="sampled", candidates=30, key=b"other")
    assert first.text == again.text
    assert first.text != other.text
    prefix = one_pool(lm, vocabulary, pool="sampled", candidates=10)
    assert set(prefix.text) <= set(first.text)


def test_keyed_uniforms_are_uniform_and_differ():
    wanted = settings("sampled", candidates=500)
    values = keyed_uniforms(b"key", np.array([1, 2, 3]), wanted)
    assert values.shape == (500, LENGTH)
    assert ((values >= 0) & (values < 1)).all()
    assert kstest(values.ravel(), "uniform").pvalue > 1e-3
    assert len(np.unique(values)) == values.size
    for key, context in ((b"yek", [1, 2, 3]), (b"key", [1, 2, 4]), (b"key", [1, 2]), (b"", [1, 2, 3])):
        assert not np.isin(keyed_uniforms(key, np.array(context), wanted), values).any()


def test_inverse_cdf_never_draws_what_is_impossible():
    log2_prob = torch.log2(torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64))
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(log2_prob, uniforms).tolist() == [1, 1, 3, 3, 4, 4]
    tenths = torch.log2(torch.tensor([0.1] * 10 + [0.0], dtype=torch.float64))
    assert inverse_cdf(tenths, uniforms[-1:]).tolist() == [9]
