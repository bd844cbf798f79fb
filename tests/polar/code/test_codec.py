import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from small_laws import noiseless_law, random_law, word_of

from polar.code.codec import code_channel, dither_runs, encode_blocks
from polar.code.construction import BlockCode
from polar.code.decoders import decision_table, label_evidence, word_evidence
from wm_env.synthetic import synthetic_tree

LENGTH = 4


def small_law(seed, sparse=False, labels=16):
    tree = synthetic_tree(2, blocks=2, candidates=3, block_length=LENGTH, entropy=1.2, overlap=0.4, seed=seed)
    return random_law(tree, labels, seed, sparse).blocks[1]


def same_blocks(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("label", "candidate", "empty"))


def interval_law(law, state, wanted, positions, low, high):
    """P(X = x, low <= r < high) by laying the pairs (V, X) with the wanted bits on [0, 1), one after the other."""
    labels = [u for u in range(law.labels) if word_of(u, LENGTH, positions) == wanted]
    probs = [float(law.p_label[state, u]) for u in labels]
    if sum(probs) == 0:
        probs = [1.0] * len(labels)
    answer, start = np.zeros(law.cover.shape[1]), 0.0
    for label, probability in zip(labels, probs, strict=True):
        for x in range(law.cover.shape[1]):
            end = start + probability / sum(probs) * float(law.p_candidate[state, label, x])
            answer[x] += max(min(end, high) - max(start, low), 0)
            start = end
    return answer


@settings(max_examples=20)
@given(
    st.integers(0, 1000),
    st.booleans(),
    st.sampled_from([((1, 3), (), 0), ((2,), (0, 3), 0), ((0, 2), (), 3), ((1,), (2,), 2), ((), (), 1)]),
)
def test_channel_equals_the_layout_of_pairs_on_the_unit_interval(seed, sparse, sets):
    law = small_law(seed, sparse)
    code = BlockCode(LENGTH, *sets)
    channel = code_channel(law, code)
    shifts = 2**code.dither_bits
    assert channel.shape == (len(law.cover), code.words, code.surplus_words, 3)
    for state in range(len(law.cover)):
        for word in range(code.words):
            for surplus in range(code.surplus_words):
                frozen, shift = divmod(surplus, shifts)
                wanted = word * 2 ** len(code.frozen_set) + frozen
                positions = code.message_set + code.frozen_set
                expected = shifts * interval_law(law, state, wanted, positions, shift / shifts, (shift + 1) / shifts)
                assert channel[state, word, surplus].tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.booleans(), st.integers(1, 6))
def test_dither_leaves_the_law_of_every_message_alone(seed, sparse, bits):
    law = small_law(seed, sparse)
    plain = code_channel(law, BlockCode(LENGTH, (0, 2)))[:, :, 0]
    dithered = code_channel(law, BlockCode(LENGTH, (0, 2), dither_bits=bits))
    assert torch.allclose(dithered.mean(2), plain, atol=1e-12)
    assert torch.allclose(dithered.sum(3), torch.ones(1, dtype=torch.float64), atol=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.booleans(), st.integers(1, 5), st.data())
def test_any_run_of_dithers_is_a_part_of_the_whole_channel(seed, sparse, bits, data):
    law = small_law(seed, sparse)
    code = BlockCode(LENGTH, (2,), (0,), bits)
    start = data.draw(st.integers(0, 2**bits - 1))
    stop = data.draw(st.integers(start + 1, 2**bits))
    whole = code_channel(law, code).reshape(len(law.cover), 2, 2, 2**bits, 3)
    part = code_channel(law, code, range(start, stop)).reshape(len(law.cover), 2, 2, stop - start, 3)
    assert torch.equal(part, whole[:, :, :, start:stop])


@pytest.mark.parametrize("bits", [0, 1, 17])
@pytest.mark.parametrize("message_set", [(), (1, 2), (0, 1, 2, 3)])
def test_runs_of_dithers_are_all_of_them_and_fit_into_memory(bits, message_set):
    law = small_law(3)
    code = BlockCode(LENGTH, message_set, dither_bits=bits)
    runs = list(dither_runs(law, code))
    assert [dither for run in runs for dither in run] == list(range(2**bits))
    assert all(law.cover.numel() * code.words * len(run) <= 2**23 for run in runs)


def test_a_long_row_of_blocks_is_drawn_in_pieces_like_the_blocks_one_by_one(monkeypatch):
    law, code = small_law(4, sparse=True), BlockCode(LENGTH, (0, 2), dither_bits=2)
    states, words, surplus = np.random.default_rng(1).integers([len(law.cover), 4, 4], size=(50, 3)).T
    whole = encode_blocks(law, code, states, words, surplus, np.random.default_rng(2))
    monkeypatch.setattr("polar.code.codec._MOST_NUMBERS", 7 * law.labels)
    assert same_blocks(encode_blocks(law, code, states, words, surplus, np.random.default_rng(2)), whole)


@pytest.mark.parametrize(("frozen", "dither"), [((), 0), ((3,), 0), ((), 2), ((3,), 1)])
def test_encoder_draws_from_the_channel(frozen, dither):
    law = small_law(5, sparse=True)
    code = BlockCode(LENGTH, (0, 2), frozen, dither)
    channel = code_channel(law, code)
    rng = np.random.default_rng(7)
    count = 20_000
    for state, word, surplus in [(0, 1, 0), (2, 3, code.surplus_words - 1)]:
        states, words, keys = (np.full(count, value) for value in (state, word, surplus))
        sent = encode_blocks(law, code, states, words, keys, rng)
        wanted = word * 2 ** len(frozen) + surplus // 2**dither
        assert {word_of(int(u), LENGTH, code.message_set + frozen) for u in set(sent.label)} == {wanted}
        expected = channel[state, word, surplus].numpy() * count
        present = expected > 1e-9
        observed = np.bincount(sent.candidate, minlength=3)
        assert observed[~present].sum() == 0
        if present.sum() > 1:
            assert chisquare(observed[present], expected[present]).pvalue > 1e-4


def test_encoder_never_leaves_the_support_and_counts_empty_words():
    law = small_law(1, sparse=True)
    code = BlockCode(LENGTH, (0, 1, 2))
    rng = np.random.default_rng(0)
    states = rng.integers(len(law.cover), size=5000)
    words = rng.integers(8, size=5000)
    sent = encode_blocks(law, code, states, words, np.zeros(5000, dtype=np.int64), rng)
    probability = law.p_label.numpy()[states, sent.label] * law.p_candidate.numpy()[states, sent.label, sent.candidate]
    for state, word, empty, joint in zip(states, words, sent.empty, probability, strict=True):
        mass = sum(float(law.p_label[state, u]) for u in range(16) if word_of(u, LENGTH, (0, 1, 2)) == word)
        assert empty == (mass == 0)
        assert empty or joint > 0
    assert sent.empty.any()
    assert not sent.empty.all()


def test_same_seed_same_blocks():
    law = small_law(2)
    code = BlockCode(LENGTH, (1,), dither_bits=3)
    first, second = (
        encode_blocks(law, code, np.arange(6), np.ones(6, int), np.full(6, 5), np.random.default_rng(3))
        for _ in range(2)
    )
    assert same_blocks(first, second)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("message_set", [(0, 1, 2), (1, 3), (0, 1, 2, 3), (2,)])
@pytest.mark.parametrize("decoder", ["sc", "ml", "map"])
def test_all_messages_pass_a_noiseless_law(seed, message_set, decoder):
    law = noiseless_law(5, 16, seed)
    code = BlockCode(LENGTH, message_set)
    table = decision_table(decoder, code, word_evidence(law, code_channel(law, code)), label_evidence(law))
    rng = np.random.default_rng(11)
    for state in range(5):
        messages = np.tile(np.arange(code.words), 20)
        zeros = np.zeros(len(messages), dtype=np.int64)
        sent = encode_blocks(law, code, zeros + state, messages, zeros, rng)
        seen = law.symbol.numpy()[state, sent.candidate]
        assert np.array_equal(table.numpy()[seen, 0], messages)
