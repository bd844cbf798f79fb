"""Errors after edits: without noise the evaluation's, with noise fewer than one for every edited block."""

import numpy as np
import pytest

from agents.planner.coded import plan_coded
from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.evaluation.edits import edited_error_rates
from polar.evaluation.exact import evaluate
from polar.evaluation.settings import EvaluationSettings
from wm_env.criteria.channel import tree_channels
from wm_env.synthetic import synthetic_tree

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
