from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import answer

from agents.coded_planner import plan_coded
from polar.arithmetic import NoMessageError, Receiver, Sender
from polar.block import make_code, prefix_groups, walk
from polar.records import RecordedPool
from polar.secrets import Key, MessageKeys
from wm_env.coded import word_channel
from wm_env.tree import StateTree, TreeBlock, TreeMeta

KEY = Key(bytes(range(32)))


def pool_of(texts, cover):
    return RecordedPool(
        tokens=np.arange(len(texts))[:, None],
        text=tuple(texts),
        cover=np.array(cover, dtype=np.float64),
        log2_prob=np.log2(cover),
    )


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
def test_a_sampled_pool_gets_words_of_equal_mass(draws):
    pool = pool_of_draws(draws)
    code = make_code(pool, 0.0)
    mass = [Fraction()] * 2**code.bits
    for group, word in zip(code.groups, code.word, strict=True):
        for number in group:
            mass[word] += Fraction(draws.count(pool.text[number]), 16)
    assert set(mass) == {Fraction(1, 2**code.bits)}
    assert code.tv == 0
    h_min = -np.log2(max(draws.count(text) for text in draws) / 16)
    assert code.bits <= h_min + 1e-9


def test_different_draws_carry_log2_q_bits():
    pool = pool_of_draws([bytes([number]) for number in range(64)])
    assert make_code(pool, 0.0).bits == 6
    assert make_code(pool_of_draws([b"a"] * 64), 0.0).bits == 0
    assert make_code(pool_of_draws([b"a", b"a", *(bytes([number]) for number in range(62))]), 0.0).bits == 5


def induced(pool, tv_budget):
    """P(x) for uniform words, as the scheme draws, by loops."""
    code = make_code(pool, tv_budget)
    law = np.zeros(len(pool.text))
    for word in range(2**code.bits):
        members = [x for group, bits in zip(code.groups, code.word, strict=True) if bits == word for x in group]
        for x in members:
            law[x] += 2.0**-code.bits * pool.cover[x] / pool.cover[members].sum()
    return code, law


@pytest.mark.parametrize("budget", [0.002, 0.02, 0.1])
def test_the_code_of_a_top_pool_keeps_the_budget(budget):
    rng = np.random.default_rng(5)
    for _ in range(20):
        cover = np.sort(rng.dirichlet(np.ones(24)))[::-1]
        code, law = induced(pool_of([bytes([number]) for number in range(24)], cover), budget)
        tv = abs(law - cover).sum() / 2
        assert tv == pytest.approx(code.tv, abs=1e-9)
        assert tv <= budget + 1e-9
    assert make_code(pool_of([b"a", b"b"], [0.6, 0.4]), 0.05).bits == 0
    assert make_code(pool_of([b"a", b"b"], [0.6, 0.4]), 0.11).bits == 1


def test_the_law_is_the_planner_s_coded_law():
    """One state, a sampled pool: P(x | word) of the coded planner at budget 0 is what this scheme draws from."""
    draws = [bytes([97 + number]) for number in (0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)]
    pool = pool_of_draws(draws)
    code = make_code(pool, 0.0)
    assert code.bits == 2
    count = len(pool.text)
    tree_block = TreeBlock(
        cover=pool.cover[None],
        log2_prob=pool.log2_prob[None],
        symbol=np.arange(count)[None],
        child=np.full((1, count), -1),
        tokens=np.arange(count)[None, :, None].repeat(4, 2),
        retained=np.ones(1),
        exact=np.zeros(1, dtype=bool),
        text=(pool.text,),
    )
    meta = TreeMeta("synthetic", "", "", block_length=4, candidates=count, temperature=1.0, pool="synthetic")
    planned = plan_coded(StateTree((tree_block,), np.ones(1), ("",), meta), message_bits=2, epsilon=0.0).law
    channel = word_channel(planned.blocks[0], 4, planned.message_sets[0])[0].numpy()
    mine = np.zeros((4, count))
    for group, word in zip(code.groups, code.word, strict=True):
        mine[word, list(group)] = 4 * pool.cover[list(group)]
    assert np.allclose(sorted(map(tuple, channel)), sorted(map(tuple, mine)), atol=1e-12)


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
    keys = MessageKeys(KEY, nonce, "block")
    message = bytes(range(nonce))
    sender = Sender(message, keys, 10**5, 10**5)
    sent = []
    sender.put = sent.append
    tokens = answer(walk(keys, sender, 0.0), keyed_pool)
    text = b"".join(sent)
    assert len(tokens) == len(sent)
    receiver = Receiver(text, keys)
    assert answer(walk(keys, receiver, 0.0), keyed_pool) == tokens
    assert receiver.message == message
    with pytest.raises(NoMessageError):
        answer(walk(keys, Receiver(text[:-3], keys), 0.0), keyed_pool)
