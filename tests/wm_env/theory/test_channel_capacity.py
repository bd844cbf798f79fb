"""The capacity behind a channel: the audit's counterexamples, the certificate, and searches that try to beat it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from wm_env.theory.capacity import best_rate, dense_cover, main, rate_of, token_substitution
from wm_env.theory.channel_capacity import channel_capacity, count_maps

STATES = np.full(3, 1 / 3)
COVER = np.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])


@pytest.mark.parametrize(("noise", "expected"), [(0.1, 0.220761), (0.2, 0.0948)])
def test_two_labels_are_not_enough_behind_a_channel(noise: float, expected: float) -> None:
    channel = token_substitution(2, noise)
    found = channel_capacity(STATES, COVER, channel.numpy())
    assert found.rate == pytest.approx(expected, abs=3e-5)
    assert found.gap <= 1e-7
    cover = dense_cover(torch.from_numpy(STATES), torch.from_numpy(COVER), channel)
    two = best_rate(cover, 2, torch.Generator().manual_seed(0)).rate
    six = best_rate(cover, 6, torch.Generator().manual_seed(0)).rate
    assert two < found.rate - 0.01
    assert six == pytest.approx(found.rate, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_no_random_label_law_beats_the_certificate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, cover = rng.dirichlet(np.ones(3)), rng.dirichlet(np.full(3, 0.7), 3)
    channel = rng.dirichlet(np.full(4, 0.4), 3)
    found = channel_capacity(states, cover, channel, gap=1e-6)
    assert 0 <= found.gap <= 1e-6
    problem = dense_cover(torch.from_numpy(states), torch.from_numpy(cover), torch.from_numpy(channel))
    generator = torch.Generator().manual_seed(seed)
    for labels in (2, 4, 9):
        random = (3 * torch.randn(200, 3, 3, labels, dtype=torch.float64, generator=generator)).softmax(-1)
        assert float(rate_of(problem, random).max()) <= found.rate + found.gap
    best = best_rate(problem, 9, generator, restarts=8).rate
    assert found.rate - 1e-3 <= best <= found.rate + found.gap


def test_the_law_of_maps_keeps_the_cover_and_has_the_rate() -> None:
    channel = token_substitution(2, 0.1).numpy()
    found = channel_capacity(STATES, COVER, channel)
    law = STATES[:, None] * found.law
    for token in range(2):
        kept = (found.law * (token == found.maps.T)).sum(1)
        np.testing.assert_allclose(kept, COVER[:, token], atol=1e-12)
    received = np.einsum("sf,fsy->fy", law, channel[found.maps])
    mutual = [
        (joint * np.log2(joint / (joint.sum(1, keepdims=True) * joint.sum(0)))).sum() for joint in (received, law.T)
    ]
    assert mutual[0] - mutual[1] == pytest.approx(found.rate, abs=1e-9)


def test_without_noise_it_is_the_conditional_entropy() -> None:
    found = channel_capacity(STATES, COVER, np.eye(2))
    entropy = -(COVER * np.log2(COVER)).sum(1) @ STATES
    assert found.rate == pytest.approx(entropy, abs=1e-6)
    assert found.key_rate == pytest.approx(entropy, abs=1e-12)


def test_the_command_prints_the_certified_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "law.json"
    file.write_text(json.dumps({"state_probs": STATES.tolist(), "cover": COVER.tolist()}))
    assert main(["solve", str(file), "--substitution", "0.1"]) == 0
    assert "capacity             0.220761 bits/token (proven within" in capsys.readouterr().out


def test_too_many_maps_are_refused() -> None:
    cover = np.full((8, 8), 1 / 8)
    assert count_maps(cover) > 1 << 14
    with pytest.raises(ValueError, match="best_rate"):
        channel_capacity(np.full(8, 1 / 8), cover, np.eye(8))
