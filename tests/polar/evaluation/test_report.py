import dataclasses
import json

import pytest
from small_laws import random_law

from polar.evaluation.exact import evaluate
from polar.evaluation.report import (
    covertness_table,
    error_table,
    exact_content,
    law_fingerprint,
    limit_table,
    variation_curves,
    variation_table,
)
from polar.evaluation.settings import EvaluationSettings
from wm_env.synthetic import synthetic_tree
from wm_env.theory.limits import law_limit

TREE = synthetic_tree(2, 2, 4, 4, 1.5, overlap=0.5, seed=1)
LAW = random_law(TREE, 16, 1)
POINTS = evaluate(TREE, LAW, EvaluationSettings((1, 2), (1, 4, 8), transmissions=100))
LIMITS = {bits: law_limit(LAW, bits) for bits in (1, 2)}

CONTRACT = [
    "message_bits", "rate_bits_per_token", "key_bits", "keys", "decoder", "state_knowledge", "ber", "bler",
    "tv_mean", "tv_max", "tv_text", "tv_untruncated_bound", "ber_mc", "ber_mc_ci95",
]  # fmt: skip


def test_results_have_the_names_that_scripts_rely_on():
    content = json.loads(json.dumps(exact_content(TREE, LAW, POINTS, LIMITS), allow_nan=False))
    assert set(content) == {"tree", "law", "operating_points", "limits", "edited", "whole_texts", "live"}
    assert content["tree"] == TREE.fingerprint
    for point in content["operating_points"]:
        assert set(CONTRACT) <= set(point)
        assert point["keys"] == 2 ** point["key_bits"]
        assert point["rate_bits_per_token"] == point["message_bits"] / 4
    assert [(row["message_bits"], row["tv_budget"]) for row in content["limits"]] == [
        (bits, budget) for bits in (1, 2) for budget in (0.0, 0.01, 0.05, 0.1)
    ]
    for row in content["limits"]:
        assert row["bler"] == LIMITS[row["message_bits"]].block_error(row["tv_budget"])


def test_law_fingerprint_changes_with_the_law_and_its_message_sets():
    other = dataclasses.replace(LAW, message_sets=((0,), (0,)))
    moved = random_law(TREE, 16, 2)
    assert len({law_fingerprint(law) for law in (LAW, other, moved)}) == 3
    assert law_fingerprint(LAW) == law_fingerprint(random_law(TREE, 16, 1))


def test_curves_join_the_padded_points_with_each_use_of_the_surplus():
    curves = {(bits, way): values for bits, way, values in variation_curves(POINTS)}
    assert set(curves) == {(1, "frozen"), (1, "dither"), (2, "frozen"), (2, "dither")}
    for (bits, way), values in curves.items():
        for keys, value in values.items():
            expected = {
                p.tv_mean for p in POINTS if (p.message_bits, p.keys) == (bits, keys) and p.surplus_key in ("none", way)
            }
            assert expected == {value}


@pytest.mark.parametrize(
    "table", [error_table(POINTS, LIMITS), covertness_table(POINTS), variation_table(POINTS), limit_table(LIMITS)]
)
def test_tables_are_aligned(table):
    lines = table.splitlines()
    assert len(lines) > 2
    assert len({len(line) for line in lines}) == 1


def test_error_table_shows_every_point_with_its_limits():
    lines = error_table(POINTS, LIMITS).splitlines()
    assert len(lines) == len(POINTS) + 1
    for line, point in zip(lines[1:], POINTS, strict=True):
        assert f" {point.ber:.4f} " in line
        limit = LIMITS[point.message_bits]
        assert f" {limit.bit_error(point.tv_mean):.4f} " in line
        shared = point.keys > 2**point.message_bits
        bler = limit.shared_key_block_error(point.tv_mean) if shared else limit.block_error(point.tv_mean)
        assert line.endswith(f"{bler:.4f}")
