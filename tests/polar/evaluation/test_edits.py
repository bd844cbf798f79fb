"""Errors after edits: without noise the evaluation's, with noise fewer than one for every edited block."""

import json
from itertools import product

import numpy as np
import pytest
from small_laws import random_law
from small_trees import uneven_tree

from agents.planner.coded import plan_coded
from polar.code.codec import code_channel
from polar.code.construction import BlockCode, chain_entropies, design_code
from polar.code.key_schedule import KeySchedule
from polar.evaluation.edits import edited_error_rates
from polar.evaluation.exact import evaluate
from polar.evaluation.run import evaluate_run
from polar.evaluation.settings import EvaluationSettings
from wm_env.criteria.channel import tree_channels
from wm_env.law import save_law
from wm_env.synthetic import synthetic_tree
from wm_env.tree import save_tree

TREE = synthetic_tree(3, 2, 8, 8, 2.7, 0.25, 1)
LAW = plan_coded(TREE, 2, 0.1).law


def codes():
    assert LAW.message_sets is not None
    return [BlockCode(8, positions) for positions in LAW.message_sets]


@pytest.mark.parametrize("name", ["erasure", "substitution"])
def test_without_noise_it_is_the_evaluation(name):
    point = evaluate(TREE, LAW, EvaluationSettings((2,), (4,), ("map",), ("marginal",), ("dither",), transmissions=0))[
        0
    ]
    bit, block = edited_error_rates(LAW, codes(), tree_channels(TREE, name, 0.0))
    assert bit == pytest.approx(point.ber, abs=1e-12)
    assert block == pytest.approx(point.bler, abs=1e-12)


def test_block_errors_behind_erasures_equal_a_sum_over_received_sets():
    channels = tree_channels(TREE, "erasure", 0.2)
    wrong = []
    for law, code, channel in zip(LAW.blocks, codes(), channels, strict=True):
        sent = code_channel(law, code)[:, :, 0].numpy()
        joint = np.zeros((int(channel.output.max()) + 1, 4))
        for state in range(len(sent)):
            for place, output in enumerate(channel.output[state].tolist()):
                if output >= 0:
                    arrived = sent[state] @ channel.kernel[state, :, place].numpy()
                    joint[output] += float(law.state_probs[state]) * arrived / 4
        wrong.append(1 - joint.max(1).sum())
    assert edited_error_rates(LAW, codes(), channels)[1] == pytest.approx(np.mean(wrong), abs=1e-12)


def test_an_edited_block_is_not_lost():
    clean = edited_error_rates(LAW, codes(), tree_channels(TREE, "erasure", 0.0))[1]
    edited = edited_error_rates(LAW, codes(), tree_channels(TREE, "erasure", 0.05))[1]
    assert clean < edited < clean + 0.5 * (1 - 0.95**8)


@pytest.mark.parametrize("decoder", ["sc", "ml", "map"])
def test_without_edits_every_decoder_errs_as_in_the_exact_evaluation(decoder):
    tree = uneven_tree(2, 2, 6, 0.5, 3)
    law = random_law(tree, 8, 1)
    point = evaluate(tree, law, EvaluationSettings((2,), (4,), (decoder,), ("marginal",), transmissions=0))[0]
    codes = [design_code(chain_entropies(b, law.block_length), KeySchedule(2, 2)) for b in law.blocks]
    found = edited_error_rates(law, codes, tree_channels(tree, "erasure", 0.0), decoder)
    assert found == pytest.approx((point.ber, point.bler))
    worse = edited_error_rates(law, codes, tree_channels(tree, "erasure", 0.2), decoder)
    assert worse[1] > found[1] - 1e-9


def test_a_run_is_evaluated_with_edits(tmp_path, capsys):
    tree = uneven_tree(2, 2, 6, 0.5, 3)
    save_tree(tree, tmp_path / "tree.safetensors")
    save_law(random_law(tree, 4, 1), tmp_path / "law.safetensors")
    settings = EvaluationSettings((1, 2), (1,), transmissions=0, channel="erasure", noise=0.1)
    evaluate_run(tmp_path, tmp_path / "out", settings)
    assert "10 % of the tokens edited (erasure)" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out/results.json").read_text())["edited"]
    assert [(row["message_bits"], row["decoder"]) for row in rows] == list(product((1, 2), ("sc", "ml", "map")))
    assert min(row["bler"] for row in rows if row["message_bits"] == 2) == rows[-1]["bler"]


def test_noise_needs_a_channel():
    with pytest.raises(ValueError, match="name both"):
        EvaluationSettings(noise=0.1)
    with pytest.raises(ValueError, match=r"noise=1\.0"):
        EvaluationSettings(channel="erasure", noise=1.0)
