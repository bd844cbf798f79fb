"""What a build costs, against what torch counts and what is really run."""

import dataclasses

import pytest
import torch
from letters_lm import PROMPTS, letters_settings, write_letters
from torch.utils.flop_counter import FlopCounterMode

from wm_env.lm.build.cost import canvas_flops, estimate, rows_that_fit
from wm_env.lm.build.states import encode_prompts, grow_tree
from wm_env.lm.models.load import load_lm


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load_lm(write_letters(tmp_path_factory.mktemp("lm")))


def test_flops_are_those_that_torch_counts(tmp_path):
    lm = load_lm(write_letters(tmp_path), arithmetic="float")
    canvas = torch.zeros((3, 11), dtype=torch.int64)
    # torch's counter leaves the fused attention of the CPU out; write it out in matrix products.
    lm.network.set_attn_implementation("eager")
    try:
        with FlopCounterMode(display=False) as counter:
            lm.log2_probs(canvas, 5, 1.0)
    finally:
        lm.network.set_attn_implementation("llada_sdpa")
    exact = load_lm(lm.name)
    assert canvas_flops(exact, 11) == canvas_flops(lm, 11)
    rotary = counter.get_total_flops() - 3 * canvas_flops(lm, 11)
    assert abs(rotary) <= 0.01 * counter.get_total_flops()


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_cost_counts_the_canvases_that_are_run(tmp_path, monkeypatch, arithmetic):
    lm, rows = load_lm(write_letters(tmp_path), arithmetic=arithmetic), []
    forward = type(lm).log2_probs
    monkeypatch.setattr(
        type(lm), "log2_probs", lambda self, canvas, *rest: rows.append(len(canvas)) or forward(self, canvas, *rest)
    )
    different = PROMPTS[:-1]
    cost = estimate(lm, encode_prompts(lm, different, 4), letters_settings(), blocks=2, batch_size=4)
    grow_tree(lm, different, letters_settings(), blocks=2, batch_size=4)
    assert (cost.states, cost.canvases) == (5 + 20, sum(rows))
    # In floats every pass has the same shape, filled up where need be.
    assert set(rows) == {8} if arithmetic == "float" else max(rows) <= 8


def test_passes_are_filled_by_the_states_that_follow_a_state(lm):
    plain = letters_settings()
    assert [plain.rows_at(step) for step in (0, 1)] == [8, 8]
    wide = dataclasses.replace(plain, candidates=20, beam_width=24, rows=480, block_length=8)
    assert [wide.rows_at(step) for step in (0, 1, 7)] == [24, 480, 480]
    assert (wide.at_block(0).rows, wide.at_block(1).rows) == (24, 480)
    assert rows_that_fit(lm, wide, 72) == 8
