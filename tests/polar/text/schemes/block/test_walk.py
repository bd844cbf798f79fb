from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.planner.coded import plan_coded
from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.text.arithmetic import ArithmeticReceiver, ArithmeticSender
from polar.text.keys.derivation import MessageKeys
from polar.text.keys.key import Key
from polar.text.scheme import NoMessageError
from polar.text.schemes.block.walk import CIRCLE, make_code, prefix_groups, walk_blocks
from wm_env.lm.pools.candidates import Pool
from wm_env.tree import StateTree, TreeBlock, TreeMeta

KEY = Key(bytes(range(32)))


def pool_of(texts, cover):
    with np.errstate(divide="ignore"):
        log2_prob = np.log2(cover)
    tokens = np.arange(len(texts))[:, None]
    return Pool(tokens, log2_prob, np.array(cover, dtype=np.float64), tuple(texts), exact=False, merged=0, dropped=0)


def pool_of_draws(draws):
    texts = sorted(set(draws))
    return pool_of(texts, [draws.count(text) / len(draws) for text in texts])


strings = st.lists(st.binary(max_size=3).map(lambda data: bytes(byte % 2 for byte in data)), min_size=1, unique=True)


@given(strings)
def test_groups_are_the_strings_that_continue_one_another(texts):
    groups = prefix_groups(tuple(texts))
    assert sorted(number for group in groups for number in group) == list(range(len(texts)))
    group_of = {texts[number]: index for index, group in enumerate(groups) for number in group}
    for first, second in product(texts, repeat=2):
        roots = [text for text in texts if first.startswith(text) and second.startswith(text)]
        assert (group_of[first] == group_of[second]) == bool(roots)


@given(st.lists(st.sampled_from([bytes([97 + number]) for number in range(20)]), min_size=16, max_size=16))
def test_a_sampled_pool_carries_its_min_entropy_and_keeps_its_shares(draws):
    pool = pool_of_draws(draws)
    code = make_code(pool, 0.0)
    for group, start, end in zip(code.groups, (0, *code.end[:-1]), code.end, strict=True):
        assert Fraction(end - start, CIRCLE) == Fraction(sum(draws.count(pool.text[number]) for number in group), 16)
    assert code.tv == 0
    assert code.bits == int(-np.log2(max(draws.count(text) for text in draws) / 16) + 1e-9)


def test_different_draws_carry_log2_q_bits():
    pool = pool_of_draws([bytes([number]) for number in range(64)])
    assert make_code(pool, 0.0).bits == 6
    assert make_code(pool_of_draws([b"a"] * 64), 0.0).bits == 0
    assert make_code(pool_of_draws([b"a", b"a", *(bytes([number]) for number in range(62))]), 0.0).bits == 5
    # No 63 equal shares can be divided into two equal words; turned by the key they still carry five bits.
    assert make_code(pool_of_draws([bytes([number]) for number in range(63)]), 0.0).bits == 5


@given(
    cover=st.lists(st.floats(0.001, 1.0), min_size=2, max_size=20),
    budget=st.sampled_from([0.0, 0.01, 0.1]),
    angle=st.integers(0, CIRCLE - 1),
)
def test_every_word_is_read_from_the_group_that_it_chose(cover, budget, angle):
    pool = pool_of([bytes([number]) for number in range(len(cover))], np.array(cover) / sum(cover))
    code = make_code(pool, budget)
    chosen = [code.group_at(word, angle) for word in range(2**code.bits)]
    assert [code.word_in(group, angle) for group in chosen] == list(range(2**code.bits))
    silent = set(range(len(code.groups))) - set(chosen)
    assert all(code.word_in(group, angle) is None for group in silent)
    # At the ends of all groups too, where rounding would show.
    for end in code.end:
        for near in (end - 1, end % CIRCLE):
            assert code.word_in(code.group_at(0, near), near) == 0


def induced(pool, tv_budget):
    """P(x) for any word, as the scheme draws it at a uniform angle: the share of the circle, by Fractions."""
    code = make_code(pool, tv_budget)
    law = np.zeros(len(pool.text))
    for group, start, end in zip(code.groups, (0, *code.end[:-1]), code.end, strict=True):
        for x in group:
            law[x] = float(Fraction(end - start, CIRCLE)) * pool.cover[x] / pool.cover[list(group)].sum()
    return code, law


def test_turned_by_all_angles_every_word_has_the_shares_of_the_circle():
    pool = pool_of([bytes([number]) for number in range(5)], [0.1, 0.3, 0.15, 0.25, 0.2])
    code = make_code(pool, 0.2)
    assert code.bits == 2
    steps = 4096
    for word in range(4):
        angles = (np.arange(steps) * (CIRCLE // steps) + 12345).tolist()
        seen = np.bincount([code.group_at(word, angle) for angle in angles], minlength=5) / steps
        assert np.allclose(seen, np.diff(code.end, prepend=0) / CIRCLE, atol=1 / steps)


@pytest.mark.parametrize("budget", [0.002, 0.02, 0.1])
def test_the_code_of_a_top_pool_keeps_the_budget(budget):
    rng = np.random.default_rng(5)
    for _ in range(20):
        cover = np.sort(rng.dirichlet(np.ones(24)))[::-1]
        code, law = induced(pool_of([bytes([number]) for number in range(24)], cover), budget)
        tv = abs(law - cover).sum() / 2
        assert tv == pytest.approx(code.tv, abs=1e-9)
        assert tv <= budget + 1e-9
        # U is what any code with shared key reaches, and the next length would cost more than the budget.
        assert code.tv == pytest.approx(sum(max(p - 0.5**code.bits, 0) for p in cover), abs=1e-9)
        longer = sum(max(p - 0.5 ** (code.bits + 1), 0) for p in cover)
        assert longer > budget or 2 ** (code.bits + 1) > 24
    assert make_code(pool_of([b"a", b"b"], [0.6, 0.4]), 0.05).bits == 0
    assert make_code(pool_of([b"a", b"b"], [0.6, 0.4]), 0.11).bits == 1


def test_it_delivers_what_the_planner_s_coded_law_does_with_the_most_dither():
    """One state, a sampled pool, four words: at budget 0 neither errs; without shared key the planner's law would."""
    draws = [bytes([97 + number]) for number in (0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4)]
    pool = pool_of_draws(draws)
    code = make_code(pool, 0.0)
    assert code.bits == 2
    count = len(pool.text)
    tree_block = TreeBlock(
        cover=pool.cover[None],
        log2_prob=pool.log2_prob[None],
        symbol=np.arange(count)[None],
        child=np.full((1, count), -1),
        tokens=np.arange(count)[None, :, None].repeat(8, 2),
        retained=np.ones(1),
        exact=np.zeros(1, dtype=bool),
        text=(pool.text,),
    )
    meta = TreeMeta("synthetic", "", "", block_length=8, candidates=count, temperature=1.0, pool="synthetic")
    planned = plan_coded(StateTree((tree_block,), np.ones(1), ("",), meta), message_bits=2, epsilon=0.0).law
    for dither_bits, right in ((0, 14 / 16), (4, 1.0)):
        polar = BlockCode(8, planned.message_sets[0], dither_bits=dither_bits)
        channel = code_channel(planned.blocks[0], polar)[0].numpy()
        assert channel.max(0).sum() / channel.shape[0] / channel.shape[1] == pytest.approx(right, abs=1e-9)


def test_averaged_over_keys_the_law_is_the_model_s():
    """All pools of 4 draws from a model of 3 blocks, each with its probability, and uniform words: TV 0."""
    model = {b"a": 0.5, b"ab": 0.3, b"c": 0.2}
    total = dict.fromkeys(model, 0.0)
    for draws in product(model, repeat=4):
        chance = np.prod([model[text] for text in draws])
        pool = pool_of_draws(list(draws))
        _, law = induced(pool, 0.0)
        for text, probability in zip(pool.text, law, strict=True):
            total[text] += chance * probability
    assert sum(abs(total[text] - model[text]) for text in model) / 2 < 1e-15


def keyed_pool(tokens, seed=0):
    """16 draws of short texts, some of which continue others, equal for both ends."""
    rng = np.random.default_rng([seed, len(tokens), *tokens[-2:]])
    return pool_of_draws([bytes(rng.choice([97, 98], size=rng.integers(1, 6)).tolist()) for _ in range(16)])


@pytest.mark.parametrize("nonce", [0, 1, 7, 30])
def test_messages_come_back_from_texts_that_continue_one_another(nonce):
    keys = MessageKeys(KEY, nonce, b"block")
    message = bytes(range(nonce))
    sender = ArithmeticSender(message, keys, 10**5, 10**5)
    sent = []
    sender.put = sent.append
    tokens = walk_blocks(keys, sender, 0.0, keyed_pool)
    text = b"".join(sent)
    assert len(tokens) == len(sent)
    receiver = ArithmeticReceiver(text, keys)
    assert walk_blocks(keys, receiver, 0.0, keyed_pool) == tokens
    assert receiver.message == message
    with pytest.raises(NoMessageError):
        walk_blocks(keys, ArithmeticReceiver(text[:-3], keys), 0.0, keyed_pool)


@pytest.mark.parametrize("tiny", [1e-20, 5e-324])
def test_a_candidate_that_hardly_has_a_probability_is_sent_if_the_budget_says_so(tiny):
    pool = pool_of((b"a", b"b"), (1.0, tiny))
    assert make_code(pool, 0.4).bits == 0
    assert make_code(pool, 0.5).bits == 1
    for nonce in range(4):
        keys = MessageKeys(KEY, nonce, b"block")
        tokens = walk_blocks(keys, ArithmeticSender(b"x", keys, 10**5, 10**5), 0.5, lambda _: pool)
        receiver = ArithmeticReceiver(bytes(ord("a") + token for token in tokens), keys)
        walk_blocks(keys, receiver, 0.5, lambda _: pool)
        assert receiver.message == b"x"


def test_what_has_no_probability_is_never_sent():
    code = make_code(pool_of((b"a", b"b", b"c"), (0.5, 0.0, 0.5)), 0.9)
    assert code.bits == 1
    assert {code.groups[code.group_at(word, angle)] for word in (0, 1) for angle in range(0, CIRCLE, CIRCLE // 64)} == {
        (0,),
        (2,),
    }
