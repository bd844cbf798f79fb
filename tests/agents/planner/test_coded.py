from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trees import uneven_tree

from agents.planner.coded import CodedPlan, plan_coded
from wm_env.coded import coded_law
from wm_env.common.arrays import Floats
from wm_env.information import measure
from wm_env.law import BlockLaw, check_conditionals, load_law, save_law
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import best_partition, block_limit
from wm_env.theory.steering import steered_limit, steered_pad_limit
from wm_env.tree import StateTree, check_tree, number_paths, number_symbols


def best_success(pmf: Floats, message_bits: int) -> float:
    """P0 over all maps of the candidates to words, one by one."""
    count = 2**message_bits
    maps = np.array(list(product(range(count), repeat=len(pmf))))
    loads = np.stack([(pmf * (maps == word)).sum(1) for word in range(count)])
    return float(np.minimum(loads, 1 / count).sum(0).max())


def joint_of_labels(law: BlockLaw) -> Floats:
    """P(symbol, label) by loops over states and candidates."""
    joint = np.zeros((int(law.symbol.max()) + 1, law.labels))
    for state in range(len(law.cover)):
        for candidate, symbol in enumerate(law.symbol[state].tolist()):
            if symbol >= 0:
                sent = law.p_label[state] * law.p_candidate[state, :, candidate]
                joint[symbol] += float(law.state_probs[state]) * sent.numpy()
    return joint


def decoded_words(joint: Floats, decoder: str, slots: int) -> list[int]:
    """The word that `decoder` returns for every symbol, from P(symbol, label), label = word * slots + slot."""
    likelihood = joint / joint.sum(0)
    words = []
    for row, likely in zip(joint, likelihood, strict=True):
        if decoder == "ml":
            words.append(int(likely.argmax()) // slots)
        elif decoder == "map":
            words.append(int(row.reshape(-1, slots).sum(1).argmax()))
        else:
            first, width = 0, len(row)
            while width > 1:
                width //= 2
                if row[first + width : first + 2 * width].sum() > row[first : first + width].sum() + 1e-15:
                    first += width
            words.append(first // slots)
    return words


def errors(plan: CodedPlan, number: int, decoder: str) -> tuple[float, float]:
    """Block error and bit error of uniform messages, decoded without knowing the state."""
    law = plan.law.blocks[number]
    assert plan.law.message_sets is not None
    bits = len(plan.law.message_sets[number])
    slots = law.labels >> bits
    joint = joint_of_labels(law)
    wrong = wrong_bits = 0.0
    for row, decoded in zip(joint, decoded_words(joint, decoder, slots), strict=True):
        for word, mass in enumerate(row.reshape(-1, slots).sum(1)):
            wrong += mass * (word != decoded)
            wrong_bits += mass * (word ^ decoded).bit_count() / bits
    return wrong, wrong_bits


def coded_variation(plan: CodedPlan, number: int) -> float:
    """Total variation of the block's law with uniform words, from the channel of the labels."""
    law = plan.law.blocks[number]
    induced = (law.p_label[:, :, None] * law.p_candidate).sum(1).numpy()
    return float((law.state_probs.numpy()[:, None] * abs(induced - law.cover.numpy())).sum() / 2)


@pytest.mark.parametrize("message_bits", [1, 2])
@pytest.mark.parametrize("epsilon", [0.0, 0.04, 0.08])
def test_success_is_that_of_the_best_map_plus_the_variation(message_bits: int, epsilon: float) -> None:
    """Against all 2^l-colourings of 7 candidates in every state; the law decides where the next block begins."""
    tree = synthetic_tree(2, 2, 7, block_length=4, entropy=1.9, seed=message_bits)
    plan = plan_coded(tree, message_bits, epsilon)
    assert plan.cost == pytest.approx(epsilon, abs=1e-12)
    spent = 0.0
    for number, law in enumerate(plan.law.blocks):
        base = np.array([best_success(row, message_bits) for row in law.cover.numpy()])
        variation = coded_variation(plan, number)
        spent += variation
        limit = float(law.state_probs.numpy() @ base) + variation
        assert plan.success[number] == pytest.approx(limit, abs=2e-4)
        for decoder in ("sc", "ml", "map"):
            assert errors(plan, number, decoder)[0] == pytest.approx(1 - limit, abs=2e-4)
    assert spent == pytest.approx(epsilon, abs=1e-12)


@pytest.mark.parametrize("entropy", [2.0, 3.0, 4.0])
@pytest.mark.parametrize("message_bits", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_twenty_candidates_reach_the_limits_with_every_decoder(
    entropy: float, message_bits: int, epsilon: float
) -> None:
    tree = synthetic_tree(8, 1, 20, entropy=entropy, seed=7)
    plan = plan_coded(tree, message_bits, epsilon)
    variation = coded_variation(plan, 0)
    assert variation <= epsilon + 1e-12
    limit = block_limit(tree.blocks[0].cover, tree.prior, message_bits)
    for decoder in ("sc", "ml", "map"):
        block_error, bit_error = errors(plan, 0, decoder)
        assert block_error == pytest.approx(limit.block_error(variation), abs=1e-3 + limit.gap)
        assert limit.bit_error(variation) - 1e-12 <= bit_error <= limit.bit_error(variation) + 5e-3


@pytest.mark.parametrize("entropy", [3.0, 4.0, 4.25])
@pytest.mark.parametrize("message_bits", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.0, 0.02])
def test_sixteen_shared_slots_reach_the_limit_of_shared_keys(entropy: float, message_bits: int, epsilon: float) -> None:
    tree = synthetic_tree(8, 1, 20, entropy=entropy, seed=8)
    plan = plan_coded(tree, message_bits, epsilon)
    law = plan.law.blocks[0]
    assert law.labels == 16 << message_bits
    by_slot = law.p_candidate.reshape(len(law.cover), 1 << message_bits, 16, -1)
    right = law.state_probs @ by_slot.amax(1).sum(2).mean(1) / (1 << message_bits)
    shared_key = np.minimum(law.cover.numpy(), 0.5**message_bits).sum(1).mean()
    variation = coded_variation(plan, 0)
    assert float(right) == pytest.approx(min(1.0, shared_key + variation), abs=5e-4)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    message_bits=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    epsilon=st.sampled_from([0.0, 0.03, 0.3, 5.0]),
    gamma=st.sampled_from([1.0, 0.9]),
    overlap=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_law_is_a_law_and_keeps_the_budget(
    seed: int, message_bits: list[int], epsilon: float, gamma: float, overlap: float
) -> None:
    tree = uneven_tree(3, 2, 6, overlap, seed)
    plan = plan_coded(tree, message_bits, epsilon, gamma)
    assert plan.law.message_sets is not None
    assert [len(positions) for positions in plan.law.message_sets] == message_bits
    cost = rate = 0.0
    for number, (law, positions) in enumerate(zip(plan.law.blocks, plan.law.message_sets, strict=True)):
        check_conditionals(law.p_label, law.p_candidate, law.cover, tolerance=1e-12)
        coded = measure(coded_law(law, tree.block_length, positions))
        assert float(coded.cost) == pytest.approx(coded_variation(plan, number), abs=1e-13)
        cost += gamma ** (number + 1) * float(coded.cost)
        rate += gamma ** (number + 1) * float(coded.rate)
        reachable = np.minimum(1, (law.cover.numpy() > 0).sum(1) / 2 ** message_bits[number])
        assert plan.success[number] <= law.state_probs.numpy() @ reachable + 1e-9
    assert (cost, rate) == pytest.approx((plan.cost, plan.rate), abs=1e-12)
    assert cost <= epsilon + 1e-12


def test_a_large_budget_leaves_no_error_and_is_not_used_up() -> None:
    tree = synthetic_tree(4, 2, 12, entropy=3.0, seed=3)
    plan = plan_coded(tree, 2, 5.0)
    assert plan.success == (pytest.approx(1.0, abs=1e-12), pytest.approx(1.0, abs=1e-12))
    assert plan.rate == pytest.approx(4.0, abs=1e-9)
    assert plan.cost < 1


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5])
def test_a_budget_that_binds_is_used_up(gamma: float) -> None:
    plan = plan_coded(synthetic_tree(2, 3, 6, entropy=2.0, seed=4), 2, 0.05, gamma)
    spent = sum(gamma ** (number + 1) * coded_variation(plan, number) for number in range(3))
    assert spent == pytest.approx(0.05, abs=1e-12)


def test_budget_buys_the_farthest_bits_first() -> None:
    """One state needs mass with two wrong bits, the others only with one; the first is served first."""
    tree = synthetic_tree(4, 1, 12, entropy=3.0, seed=5)
    cover = tree.blocks[0].cover
    cover[0] = np.array([0.9] + [0.1 / 11] * 11)
    plan = plan_coded(tree, 2, 0.01)
    changed = abs(plan.law.blocks[0].p_candidate.mean(1).numpy() - cover).sum(1) / 2
    assert changed == pytest.approx([0.04, 0, 0, 0], abs=1e-12)


def test_a_shared_candidate_is_decoded_without_knowing_the_state() -> None:
    tree = synthetic_tree(6, 1, 16, entropy=3.8, overlap=0.25, seed=6)
    plan = plan_coded(tree, 2, 0.0)
    assert errors(plan, 0, "map")[0] == pytest.approx(1 - plan.success[0], abs=1e-9)
    assert errors(plan, 0, "map")[0] < 0.02


def test_a_decoder_that_knows_the_state_needs_no_common_words() -> None:
    tree = synthetic_tree(6, 1, 12, entropy=3.2, overlap=1.0, seed=6)
    base = np.mean([best_partition(row, 2, nodes=0)[1] for row in tree.blocks[0].cover])
    known = plan_coded(tree, 2, 0.0, seen=[np.arange(72).reshape(6, 12)])
    assert known.success[0] == pytest.approx(base, abs=1e-6)
    # Decoded without the state, the words of the states contradict each other.
    assert errors(known, 0, "map")[0] > 0.2
    assert errors(plan_coded(tree, 2, 0.0), 0, "map")[0] < errors(known, 0, "map")[0] / 2


def test_the_law_survives_its_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("law") / "law.safetensors"
    tree = synthetic_tree(2, 2, 6, entropy=2.0)
    plan = plan_coded(tree, [2, 1], 0.05)
    save_law(plan.law, path)
    loaded = load_law(path, tree)
    assert loaded.message_sets == plan.law.message_sets == ((2, 3), (2,))
    for first, second in zip(loaded.blocks, plan.law.blocks, strict=True):
        assert torch.equal(first.p_candidate, second.p_candidate)
        assert torch.allclose(first.state_probs, second.state_probs, atol=1e-15, rtol=0)


@pytest.mark.parametrize(
    ("message_bits", "epsilon", "gamma", "labels", "message"),
    [
        (3, -1.0, 1.0, None, "epsilon=-1.0: a budget of 0 or more"),
        (3, 0.1, 0.0, None, "gamma=0.0: a discount"),
        (3, 0.1, 1.0, 4, "message_bits=3: 4 labels carry 1 to 2"),
        (3, 0.1, 1.0, 12, "labels=12: a power of two"),
        (9, 0.1, 1.0, None, "message_bits=9: 256 labels carry 1 to 8"),
        ([3], 0.1, 1.0, None, r"message_bits=\[3\]: one length or one for each of the 2 blocks"),
    ],
)
def test_refuses_what_cannot_be_planned(
    message_bits: int | list[int], epsilon: float, gamma: float, labels: int | None, message: str
) -> None:
    tree: StateTree = synthetic_tree(2, 2, 6, entropy=2.0)
    with pytest.raises(ValueError, match=message):
        plan_coded(tree, message_bits, epsilon, gamma, labels)


def test_the_planner_steers_to_states_that_carry_more():
    """Candidate b leads to a state with one candidate. Its mass moves to c: the first block stays even, the second
    is never in doubt."""
    tree = synthetic_tree(1, 2, 3, 4, 1.5)
    first = np.array([[0.5, 0.25, 0.25]])
    second = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    blocks = []
    for block, cover in zip(tree.blocks, (first, second), strict=True):
        present = cover > 0
        text = tuple(
            tuple(name if kept else b"" for name, kept in zip(names, row, strict=True))
            for names, row in zip(block.text, present, strict=True)
        )
        with np.errstate(divide="ignore"):
            log2_prob = np.log2(cover)
        blocks.append(
            replace(
                block,
                cover=cover,
                log2_prob=log2_prob,
                symbol=number_symbols(text),
                tokens=np.where(present[:, :, None], block.tokens, -1),
                text=text,
            )
        )
    tree = replace(tree, blocks=tuple(blocks))
    check_tree(tree)
    plan = plan_coded(tree, 1, 0.25, seen=number_paths(tree))
    assert plan.cost <= 0.25 + 1e-9
    assert 1 - np.mean(plan.success) == pytest.approx(0.0, abs=1e-8)
    assert steered_pad_limit(tree, 1, 0.25) == pytest.approx(0.0, abs=1e-8)
    half = plan_coded(tree, 1, 0.125, seen=number_paths(tree))
    assert 1 - np.mean(half.success) == pytest.approx(steered_limit(tree, 1, 0.125).block_error, abs=1e-8)
