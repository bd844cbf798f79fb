"""The competing schemes of benchmarks/peers.py against their definitions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from peer_schemes import discop, imec, keyed_colours, od_stega, sparsamp
from peer_schemes.weights import quantise
from peer_texts import compare_texts
from scipy.optimize import minimize

WEIGHTS = st.lists(st.integers(1, 40), min_size=1, max_size=9)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=30))
def test_quantised_weights_are_within_one_unit_and_sum_up(masses: list[float]) -> None:
    pmf = np.array(masses) / sum(masses)
    weights = quantise(pmf, 20)
    assert sum(weights) == 2**20
    assert np.abs(np.array(weights) - pmf * 2**20).max() <= 1


@given(WEIGHTS, WEIGHTS)
def test_a_coupling_has_its_margins(first: list[int], second: list[int]) -> None:
    one, two = [a * sum(second) for a in first], [b * sum(first) for b in second]
    rows, columns = [0] * len(one), [0] * len(two)
    joint = imec.greedy_coupling(one, two)
    for i, j, mass in joint:
        assert mass > 0
        rows[i] += mass
        columns[j] += mass
    assert rows == one
    assert columns == two
    assert len(joint) <= len(one) + len(two) - 1


def test_a_coupling_by_hand() -> None:
    assert imec.greedy_coupling([4, 4], [5, 2, 1]) == [(0, 0, 4), (1, 1, 2), (1, 0, 1), (1, 2, 1)]


def test_margins_of_different_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="have no coupling"):
        imec.greedy_coupling([1], [2])


@given(WEIGHTS, st.integers(1, 3))
def test_imec_has_the_law_over_a_uniform_pad(weights: list[int], bits: int) -> None:
    scaled = [weight << bits for weight in weights]
    channel = imec.message_channel(scaled, bits)
    assert channel.sum(1) == pytest.approx(1)
    assert channel.mean(0) == pytest.approx(np.array(weights) / sum(weights))


def test_beliefs_are_the_posterior() -> None:
    law = quantise(np.array([0.4, 0.3, 0.2, 0.1]))
    beliefs = imec.Beliefs(2, 3)
    joint = imec.greedy_coupling(beliefs.chunks[0], law)
    beliefs.observe(0, joint, 0)
    table = np.zeros((8, 4))
    for value, token, mass in joint:
        table[value, token] = mass
    assert sum(beliefs.chunks[0]) == 2**48
    assert np.array(beliefs.chunks[0]) / 2**48 == pytest.approx(table[:, 0] / table[:, 0].sum())
    assert beliefs.next_chunk() == 1
    assert beliefs.decisions()[1] == 0


@given(WEIGHTS, st.integers(1, 12), st.integers(0, 2**sparsamp.ANGLE_BITS - 1))
def test_survivors_are_the_messages_of_the_cell(weights: list[int], messages: int, angle: int) -> None:
    cumulative = [0, *itertools.accumulate(weights)]
    chosen = [sparsamp.choose(cumulative, messages, message, angle) for message in range(messages)]
    for cell in range(len(weights)):
        found = sparsamp.survivors((cumulative[cell], cumulative[cell + 1]), cumulative[-1], messages, angle)
        named = [(found.start + rank) % messages for rank in range(found.count)]
        assert sorted(named) == [message for message in range(messages) if chosen[message] == cell]


@given(WEIGHTS, st.integers(1, 8))
def test_sparsamp_has_the_law_for_every_message(weights: list[int], messages: int) -> None:
    """All angles that are multiples of 1 / (2 messages total), counted in fractions at the middle of their arcs."""
    cumulative = [0, *itertools.accumulate(weights)]
    steps = messages * cumulative[-1]
    for message in range(messages):
        counts = [0] * len(weights)
        for step in range(steps):
            angle = round(Fraction(2 * step + 1, 2 * steps) * 2**sparsamp.ANGLE_BITS)
            counts[sparsamp.choose(cumulative, messages, message, angle)] += 1
        assert [Fraction(count, steps) for count in counts] == [Fraction(weight, cumulative[-1]) for weight in weights]
        assert sparsamp.message_law(cumulative, messages, message) == pytest.approx(np.array(counts) / steps)


def test_block_choices_are_the_choices_one_by_one() -> None:
    rng = np.random.default_rng(0)
    pmf = rng.dirichlet(np.ones(6), 3)
    angles = rng.random(5)
    blocks = sparsamp.block_choices(pmf, 2, angles)
    for state, word, number in itertools.product(range(3), range(4), range(5)):
        cumulative = [0, *itertools.accumulate(quantise(pmf[state]))]
        angle = int(Fraction(float(angles[number])) * 2**sparsamp.ANGLE_BITS)
        assert blocks[state, word, number] == sparsamp.choose(cumulative, 4, word, angle)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), st.integers(0, 2**40))
def test_discop_reads_what_it_sends(weights: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = discop.huffman_tree(weights)
    pointers = [int(pointer) for pointer in rng.integers(2**62, size=8) * 4]
    bits = [int(bit) for bit in rng.integers(2, size=8)]
    symbol, used = discop.send(root, bits, iter(pointers).__next__)
    assert discop.receive(root, symbol, iter(pointers).__next__) == bits[:used]
    for message in range(8):
        digits = [message >> place & 1 for place in (2, 1, 0)]
        assert (
            discop.message_leaves(root, 3, pointers)[message] == discop.send(root, digits, iter(pointers).__next__)[0]
        )


def test_discop_has_the_law_for_every_message() -> None:
    """Every pointer in quarter turns of 16ths: laws of sixteenths are met exactly at every node whose odds are."""
    weights = [8, 4, 2, 2]
    root = discop.huffman_tree(weights)
    turn = 2**discop.POINTER_BITS
    grid = [turn * (2 * step + 1) // 16 for step in range(8)]
    for bits in itertools.product((0, 1), repeat=3):
        counts = [0] * 4
        for pointers in itertools.product(grid, repeat=3):
            counts[discop.send(root, bits, iter(pointers).__next__)[0]] += 1
        assert [16 * count / sum(counts) for count in counts] == weights
        assert discop.message_law(root, bits, 4) == pytest.approx(np.array(weights) / 16)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=6), st.lists(st.integers(0, 1), max_size=4))
def test_discop_law_of_any_weights(weights: list[int], bits: list[int]) -> None:
    law = discop.message_law(discop.huffman_tree(weights), bits, len(weights))
    assert law == pytest.approx(np.array(weights) / sum(weights))


def test_discop_consumes_a_bit_at_twice_the_smaller_share() -> None:
    """A node of odds 3 to 1 carries a bit for half of all pointers, an even one for all of them."""
    turn = 2**discop.POINTER_BITS
    for weights, carrying in (([3, 1], 8), ([2, 2], 16)):
        root = discop.huffman_tree(weights)
        used = [discop.send(root, [1], iter([turn * (2 * step + 1) // 32]).__next__)[1] for step in range(16)]
        assert sum(used) == carrying


def test_a_flattened_law_is_the_optimum_of_a_general_solver() -> None:
    pmf = np.array([0.5, 0.2, 0.15, 0.1, 0.05])

    def entropy_loss(moves: NDArray[np.float64]) -> float:
        law = pmf + moves[:5] - moves[5:]
        return float((law * np.log2(np.maximum(law, 1e-300))).sum())

    budgets = (
        {"type": "eq", "fun": lambda moves: moves[:5].sum() - moves[5:].sum()},
        {"type": "ineq", "fun": lambda moves: 0.1 - moves[:5].sum()},
        {"type": "ineq", "fun": lambda moves: pmf + moves[:5] - moves[5:]},
    )
    best = minimize(entropy_loss, np.full(10, 0.01), bounds=[(0, 1)] * 10, constraints=budgets, method="SLSQP")
    flat = od_stega.flatten(pmf, 0.1)
    assert np.abs(flat - pmf).sum() / 2 == pytest.approx(0.1)
    assert float((flat * np.log2(flat)).sum()) == pytest.approx(best.fun, abs=1e-5)


def test_no_budget_leaves_the_law_and_a_large_one_makes_it_uniform() -> None:
    pmf = np.array([0.7, 0.3, 0.0])
    assert od_stega.flatten(pmf, 0.0).tolist() == pmf.tolist()
    assert od_stega.flatten(pmf, 0.9) == pytest.approx([0.5, 0.5, 0])


def test_colours_by_hand() -> None:
    """Two equal candidates of different colours and a factor of 3: odds 3 to 1."""
    law = keyed_colours.favour(np.array([[0.5, 0.5]]), np.array([[0, 1]]), 2, float(np.log(3)))
    assert law[0] == pytest.approx(np.array([[0.75, 0.25], [0.25, 0.75]]))


def test_mean_law_of_colours_is_the_sum_over_all_colourings() -> None:
    pmf = np.array([[0.6, 0.25, 0.1, 0.05]])
    laws = [
        keyed_colours.favour(pmf, np.array([colouring]), 3, 2.0)[0, 1]
        for colouring in itertools.product(range(3), repeat=4)
    ]
    assert keyed_colours.mean_law(pmf, 3, 2.0)[0] == pytest.approx(np.mean(laws, axis=0), abs=1e-5)


def test_whole_texts_are_read_by_every_scheme_on_the_laws_of_the_embedded_model() -> None:
    """One message of two bytes; `block` draws 64 candidates a block and takes minutes."""
    rows = list(compare_texts(texts=1, block_texts=0, message_bytes=2, seed=0, device="cpu"))[1:]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert [row[1] for row in cells] == ["stream (ours)", "SparSamp", "Discop", "iMEC, chunks of 8 bits"]
    assert [row[4] for row in cells] == ["0"] * 4, "wrong messages"
