"""Exact evaluation against own enumerations, Monte Carlo, and bounds that no code can break."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from small_laws import random_law, word_of
from torch.utils._python_dispatch import TorchDispatchMode

from polar.code.codec import code_channel
from polar.code.construction import BlockCode, chain_entropies, design_codes
from polar.code.decoders import decision_table, label_evidence, word_evidence
from polar.code.key_schedule import KeySchedule
from polar.evaluation.covertness import message_laws, message_variations
from polar.evaluation.exact import error_rates, evaluate, schedule_groups
from polar.evaluation.settings import EvaluationSettings
from wm_env.information import total_variation
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import shared_key_success

TREE = synthetic_tree(3, 2, 5, 4, 1.9, overlap=0.4, seed=5)
SETTINGS = EvaluationSettings(message_bits=(1, 2, 3), keys=(1, 2, 4, 8, 16), transmissions=0)


@pytest.mark.parametrize(
    "wrong", [{"keys": (1, 1 << 30)}, {"keys": (1 << 64,)}, {"keys": (1,), "transmissions": 100_000_000_000}]
)
def test_numbers_that_fit_into_no_memory_are_refused(wrong):
    law = random_law(TREE, 16, 5)
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        evaluate(TREE, law, EvaluationSettings((1,), **wrong))


@pytest.fixture(scope="module")
def law():
    return random_law(TREE, 16, 5)


@pytest.fixture(scope="module")
def points(law):
    return evaluate(TREE, law, dataclasses.replace(SETTINGS, transmissions=2000))


@pytest.mark.parametrize("code", [BlockCode(4, (1, 3)), BlockCode(4, (0, 2), (3,)), BlockCode(4, (1, 2, 3), (), 1)])
@pytest.mark.parametrize("decoder", ["sc", "ml", "map"])
def test_error_rates_equal_a_loop_over_states_messages_keys_and_candidates(law, code, decoder):
    block = law.blocks[0]
    channel = code_channel(block, code)
    evidence = word_evidence(block, channel)
    table = decision_table(decoder, code, evidence, label_evidence(block))
    bits = len(code.message_set)
    ber = bler = 0.0
    for s, z in enumerate(block.state_probs.tolist()):
        for message in range(code.words):
            for pad in range(code.words):
                for surplus in range(code.surplus_words):
                    for x in range(block.cover.shape[1]):
                        p = z * float(channel[s, message ^ pad, surplus, x]) / code.words**2 / code.surplus_words
                        decoded = int(table[int(block.symbol[s, x]), surplus]) ^ pad
                        ber += p * bin(decoded ^ message).count("1") / bits
                        bler += p * (decoded != message)
    assert error_rates(evidence, table) == pytest.approx((ber, bler), abs=1e-12)


def test_exact_rates_agree_with_monte_carlo_within_four_sigma(points):
    blocks = 2 * 2000
    assert len(points) > 100
    for point in points:
        # The fraction of wrong bits of a block has at most the variance of a coin of the same mean.
        sigma = np.sqrt(point.ber * (1 - point.ber) / blocks)
        assert abs(point.ber - point.ber_mc) <= 4 * sigma
        assert point.ber_mc_ci95[0] <= point.ber_mc <= point.ber_mc_ci95[1]
    outside = [p for p in points if not p.ber_mc_ci95[0] <= p.ber <= p.ber_mc_ci95[1]]
    assert len(outside) <= 0.05 * len(points)


def test_points_cover_every_combination_that_the_labels_allow(points):
    found = {(p.message_bits, p.keys, p.surplus_key) for p in points}
    expected = set()
    for bits in (1, 2, 3):
        for key_bits in range(5):
            surplus = max(key_bits - bits, 0)
            if surplus == 0:
                expected.add((bits, 2**key_bits, "none"))
                continue
            expected.add((bits, 2**key_bits, "dither"))
            if bits + surplus <= 4:
                expected.add((bits, 2**key_bits, "frozen"))
    assert found == expected
    assert len(points) == 6 * len(expected)
    assert [(p.message_bits, p.keys) for p in points] == sorted((p.message_bits, p.keys) for p in points)


def test_total_variation_falls_with_the_pad_and_dither_does_not_move_it(points):
    for bits in (1, 2, 3):
        padded = {p.keys: p.tv_mean for p in points if p.message_bits == bits and p.surplus_key == "none"}
        values = [padded[keys] for keys in sorted(padded)]
        assert values == sorted(values, reverse=True)
        dithered = [p for p in points if p.message_bits == bits and p.surplus_key == "dither"]
        for point in dithered:
            assert point.tv_mean == pytest.approx(padded[2**bits], abs=1e-12)
            assert point.tv_text == pytest.approx(
                next(p.tv_text for p in points if p.message_bits == bits and p.keys == 2**bits), abs=1e-12
            )


def test_dither_never_raises_the_error_of_the_posterior_decoder(points):
    for bits in (1, 2, 3):
        for knowledge in ("marginal", "path"):
            mine = [p for p in points if (p.message_bits, p.decoder, p.state_knowledge) == (bits, "map", knowledge)]
            errors = [p.bler for p in mine if p.surplus_key == "dither" or p.keys == 2**bits]
            assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(errors))
            assert errors[-1] < errors[0]


def test_posterior_decoder_is_the_best_and_the_path_helps(points):
    by_code = {}
    for p in points:
        by_code.setdefault((p.message_bits, p.keys, p.surplus_key), {})[p.decoder, p.state_knowledge] = p.bler
    for blers in by_code.values():
        for knowledge in ("marginal", "path"):
            assert blers["map", knowledge] <= min(blers["sc", knowledge], blers["ml", knowledge]) + 1e-12
        assert blers["map", "path"] <= blers["map", "marginal"] + 1e-12


def test_no_success_beyond_the_one_shot_limit(points, law):
    for p in points:
        limit = np.mean(
            [
                float(block.state_probs.numpy() @ shared_key_success(block.cover.numpy(), p.message_bits))
                for block in law.blocks
            ]
        )
        assert 1 - p.bler <= limit + p.tv_mean + 1e-12


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers of any tensor that is made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.most = max(self.most, made.numel())
        return made


def test_the_most_keys_take_no_more_memory_than_any():
    tree = synthetic_tree(12, 2, 5, 4, 1.9, overlap=0.4, seed=5)
    settings = EvaluationSettings((1,), (1 << 16,), ("map",), ("marginal",), ("dither",), transmissions=0)
    with LargestTensor() as tensors:
        evaluate(tree, random_law(tree, 16, 5), settings)
    # 60 states, 2 words and 2^15 surplus words of 5 candidates are 20 million numbers.
    assert tensors.most < 1.1 * 2**23


def test_points_do_not_depend_on_how_many_dithers_are_held_at_once(law, monkeypatch):
    settings = EvaluationSettings((1, 2), (1, 4, 64), transmissions=100)
    whole = evaluate(TREE, law, settings)
    monkeypatch.setattr("polar.code.codec._MOST_NUMBERS", 700)
    for point, expected in zip(evaluate(TREE, law, settings), whole, strict=True):
        mine, other = dataclasses.asdict(point), dataclasses.asdict(expected)
        assert {name: mine.pop(name) for name in ("ber_mc", "ber_mc_ci95")} == {
            name: other.pop(name) for name in ("ber_mc", "ber_mc_ci95")
        }
        assert mine == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_too_little_key_costs_total_variation(law, bits):
    # Average over m of TV(P^m, p) >= 1 - P_e - 2^(r - l), per state with a decoder that knows the state.
    for block in law.blocks:
        channel = code_channel(block, BlockCode(4, tuple(range(4 - bits, 4))))[:, :, 0]
        for key_bits in range(bits):
            laws = message_laws(channel[:, :, None], key_bits)
            for s in range(len(channel)):
                success = float(channel[s].max(0).values.sum()) / 2**bits
                mean = float(total_variation(laws[s], block.cover[s]).mean())
                assert mean >= success - 2.0 ** (key_bits - bits) - 1e-12


def test_empty_words_are_counted():
    sparse = random_law(TREE, 16, 6, sparse=True)
    point = evaluate(TREE, sparse, EvaluationSettings((3,), (8,), ("map",), ("path",), transmissions=0))[0]
    chains = [chain_entropies(block, 4) for block in sparse.blocks]
    codes = design_codes(sparse, chains, KeySchedule(3, 3))
    expected = []
    for block, code in zip(sparse.blocks, codes, strict=True):
        empty = 0.0
        for z, row in zip(block.state_probs.tolist(), block.p_label.tolist(), strict=True):
            words = {word_of(u, 4, code.message_set) for u, p in enumerate(row) if p > 0}
            empty += z * (8 - len(words)) / 8
        expected.append(empty)
    assert point.empty_word == pytest.approx(np.mean(expected), abs=1e-13)
    assert point.empty_word > 0


def test_covertness_is_averaged_over_blocks_and_its_maximum_taken(points, law):
    point = next(p for p in points if p.message_bits == 2 and p.keys == 2)
    chains = [chain_entropies(block, 4) for block in law.blocks]
    codes = design_codes(law, chains, KeySchedule(2, 1))
    values = [
        message_variations(block, message_laws(code_channel(block, code), 1))
        for block, code in zip(law.blocks, codes, strict=True)
    ]
    assert point.tv_mean == pytest.approx(np.mean([float(v.mean()) for v in values]))
    assert point.tv_max == pytest.approx(max(float(v.max()) for v in values))
    assert point.tv_text <= 2 * point.tv_mean + 1e-12


def test_message_sets_of_the_law_are_used(law):
    chosen = dataclasses.replace(law, message_sets=((3, 0), (1, 2)))
    codes = design_codes(chosen, [chain_entropies(block, 4) for block in law.blocks], KeySchedule(2, 2))
    assert [code.message_set for code in codes] == [(3, 0), (1, 2)]


def test_groups_share_a_code(law):
    for group in schedule_groups(law, 2, SETTINGS):
        assert len({schedule.surplus_bits for schedule in group}) == 1
    with pytest.raises(ValueError, match="power of two"):
        schedule_groups(law, 2, dataclasses.replace(SETTINGS, keys=(3,)))


def test_same_seed_same_results(law):
    settings = EvaluationSettings((2,), (4,), ("map",), ("path",), transmissions=50, seed=9)
    assert evaluate(TREE, law, settings) == evaluate(TREE, law, settings)
    other = dataclasses.replace(settings, seed=10)
    assert evaluate(TREE, law, settings)[0].ber_mc != evaluate(TREE, law, other)[0].ber_mc
