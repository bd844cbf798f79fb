from collections import defaultdict

import numpy as np
import pytest
import torch
from small_laws import bits_of, random_law, word_of
from small_trees import uneven_tree

from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.code.decoders import (
    DECODERS,
    Decoder,
    decision_table,
    decoder_named,
    label_evidence,
    observations,
    observe,
    word_evidence,
)
from polar.evaluation.exact import evaluate
from polar.evaluation.settings import EvaluationSettings
from wm_env.synthetic import synthetic_tree

LENGTH = 4
CODES = [BlockCode(LENGTH, (1, 3)), BlockCode(LENGTH, (2,), (3, 0)), BlockCode(LENGTH, (0, 2), (), 2)]


def block_law(seed):
    tree = synthetic_tree(3, blocks=1, candidates=4, block_length=LENGTH, entropy=1.5, overlap=0.5, seed=seed)
    return random_law(tree, 16, seed, sparse=seed % 2 == 1).blocks[0]


def joint_of_labels(law):
    """P(o, u) as a dictionary."""
    joint = defaultdict(float)
    for s, z in enumerate(law.state_probs.tolist()):
        for u in range(law.labels):
            for x in range(law.cover.shape[1]):
                if law.symbol[s, x] >= 0:
                    joint[int(law.symbol[s, x]), u] += z * float(law.p_label[s, u] * law.p_candidate[s, u, x])
    return joint


def successive(joint, code, seen, frozen):
    """The paper's rule, bit by bit, over a dictionary."""
    word = []
    for i in range(LENGTH):
        if i in code.frozen_set:
            word.append(frozen >> (len(code.frozen_set) - 1 - code.frozen_set.index(i)) & 1)
            continue
        mass = [
            sum(p for (o, u), p in joint.items() if o == seen and bits_of(u, LENGTH)[: i + 1] == [*word, bit])
            for bit in (0, 1)
        ]
        word.append(int(mass[1] > mass[0]))
    return word


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("code", CODES)
def test_tables_equal_brute_force(seed, code):
    law = block_law(seed)
    channel = code_channel(law, code)
    evidence, labels = word_evidence(law, channel), label_evidence(law)
    tables = {name: decision_table(name, code, evidence, labels) for name in ("sc", "ml", "map")}
    joint = joint_of_labels(law)
    total = defaultdict(float)
    for (_, u), p in joint.items():
        total[u] += p
    for seen in range(int(law.symbol.max()) + 1):
        for surplus in range(code.surplus_words):
            frozen = surplus >> code.dither_bits
            decoded = successive(joint, code, seen, frozen)
            assert [decoded[i] for i in code.message_set] == bits_of(
                int(tables["sc"][seen, surplus]), len(code.message_set)
            )

            def likelihood(u, seen=seen):
                return joint[seen, u] / total[u] if total[u] > 0 else 0.0

            def allowed(u, frozen=frozen):
                return word_of(u, LENGTH, code.frozen_set) == frozen

            best = max(likelihood(u) for u in range(16) if allowed(u))
            winners = {
                word_of(u, LENGTH, code.message_set)
                for u in range(16)
                if allowed(u) and likelihood(u) == pytest.approx(best, rel=1e-12)
            }
            assert int(tables["ml"][seen, surplus]) in winners

            posterior = [
                sum(
                    float(law.state_probs[s] * channel[s, word, surplus, x])
                    for s in range(3)
                    for x in range(4)
                    if law.symbol[s, x] == seen
                )
                for word in range(code.words)
            ]
            assert posterior[int(tables["map"][seen, surplus])] == pytest.approx(max(posterior), rel=1e-12)


def test_ties_go_to_the_smaller_word():
    law = block_law(0)
    evidence = torch.full((2, 4, 1), 1 / 8, dtype=torch.float64)
    assert decision_table("map", CODES[0], evidence, label_evidence(law)).tolist() == [[0], [0]]


def test_word_evidence_is_a_law_over_all_that_the_receiver_meets():
    law = block_law(2)
    for code in CODES:
        evidence = word_evidence(law, code_channel(law, code))
        assert float(evidence.sum()) == pytest.approx(1)
        assert evidence.sum((0, 2)).tolist() == pytest.approx([1 / code.words] * code.words)


def paths(tree):
    """(block, state, candidate) -> the symbols received so far, by walking the tree."""
    histories = dict.fromkeys(range(len(tree.prior)), ())
    seen = {}
    for number, block in enumerate(tree.blocks):
        following = {}
        for state, history in histories.items():
            for x in range(block.cover.shape[1]):
                if block.symbol[state, x] >= 0:
                    seen[number, state, x] = (*history, int(block.symbol[state, x]))
                    following[int(block.child[state, x])] = seen[number, state, x]
        histories = following
    return seen


@pytest.mark.parametrize("tree", [synthetic_tree(3, 3, 4, 4, 1.5, 0.5, 1), uneven_tree(3, 2, 5, 0.6, 2)])
def test_path_observations_number_the_received_symbols(tree):
    numbers = observations(tree, "path")
    seen = paths(tree)
    for number, block in enumerate(numbers):
        assert torch.equal(block >= 0, torch.from_numpy(tree.blocks[number].symbol >= 0))
        of_path = defaultdict(set)
        for (b, state, x), path in seen.items():
            if b == number:
                of_path[path].add(int(block[state, x]))
        values = [value for found in of_path.values() for value in found]
        assert all(len(found) == 1 for found in of_path.values())
        assert sorted(values) == list(range(len(values)))


def test_marginal_observations_are_the_symbols():
    tree = synthetic_tree(3, 2, 4, 4, 1.5, 0.5, 1)
    for number, block in zip(observations(tree, "marginal"), tree.blocks, strict=True):
        assert np.array_equal(number.numpy(), block.symbol)


def test_knowing_the_path_never_hurts_the_posterior_decoder():
    tree = synthetic_tree(4, 2, 5, 4, 1.8, 0.6, 3)
    law = random_law(tree, 16, 3).blocks[1]
    code = CODES[0]
    channel = code_channel(law, code)
    success = {}
    for knowledge in ("marginal", "path"):
        evidence = word_evidence(observe(law, observations(tree, knowledge)[1]), channel)
        success[knowledge] = float(evidence.max(1).values.sum())
    assert success["path"] > success["marginal"]


def test_a_new_decoder_is_a_function_and_a_line(monkeypatch):
    """Always the last word: wrong unless that word was sent."""
    last = Decoder(
        "last", "the last word", "the last word", "nothing", "x", lambda words, labels, code: last_word(words)
    )

    def last_word(words):
        return torch.full((words.shape[0], words.shape[2]), words.shape[1] - 1)

    monkeypatch.setattr("polar.code.decoders.DECODERS", {**DECODERS, "last": last})
    tree = synthetic_tree(3, blocks=1, candidates=4, block_length=LENGTH, entropy=1.5, overlap=0.5, seed=1)
    law = random_law(tree, 16, 1)
    settings = EvaluationSettings((2,), (4,), ("last", "map"), ("path",), transmissions=0)
    points = {point.decoder: point for point in evaluate(tree, law, settings)}
    assert points["last"].bler == pytest.approx(3 / 4)
    assert points["last"].ber == pytest.approx(1 / 2)
    assert points["map"].bler < 3 / 4


def test_an_unknown_decoder_is_refused_by_name():
    law = block_law(0)
    evidence = word_evidence(law, code_channel(law, CODES[0]))
    for call in (
        lambda: decoder_named("MAP"),
        lambda: decision_table("MAP", CODES[0], evidence, label_evidence(law)),
    ):
        with pytest.raises(ValueError, match="decoder='MAP': choose one of sc, ml, map"):
            call()


def test_the_table_names_what_every_decoder_is():
    for name, decoder in DECODERS.items():
        assert decoder.name == name
        assert all((decoder.title, decoder.rule, decoder.needs))
    assert len({decoder.marker for decoder in DECODERS.values()}) == len(DECODERS)
