"""The covert capacity: exact values, the restricted-label table, the noisy channel against brute force, the command."""

import json
import math
import subprocess
import sys
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from repository import ROOT
from scipy.optimize import minimize

from wm_env.information import measure
from wm_env.theory.capacity import (
    Cover,
    best_rate,
    block_law,
    capacity,
    climb,
    corollary,
    dense_cover,
    main,
    pair_cover,
    partition_assignment,
    rate_of,
    token_substitution,
)


def random_cover(seed: int, states: int, tokens: int, channel: bool = False) -> Cover:
    rng = np.random.default_rng(seed)
    noise = torch.from_numpy(rng.dirichlet(np.ones(3), tokens)) if channel else None
    return dense_cover(
        torch.from_numpy(rng.dirichlet(np.ones(states))),
        torch.from_numpy(rng.dirichlet(np.full(tokens, 0.7), states)),
        noise,
    )


def random_assignment(seed: int, cover: Cover, labels: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.dirichlet(np.ones(labels), tuple(cover.cover.shape)))


def rate_by_loops(cover: Cover, assignment: torch.Tensor) -> float:
    """H(U|S) - H(U|Y) from dictionaries of probabilities."""
    label_state: dict[tuple[int, int], float] = {}
    label_output: dict[tuple[int, int], float] = {}
    states, candidates, labels = assignment.shape
    for s in range(states):
        for q in range(candidates):
            x = int(cover.symbol[s, q])
            outputs = [(x, 1.0)] if cover.channel is None else list(enumerate(cover.channel[x].tolist()))
            for u in range(labels):
                mass = float(cover.state_probs[s] * cover.cover[s, q] * assignment[s, q, u])
                label_state[u, s] = label_state.get((u, s), 0.0) + mass
                for y, share in outputs:
                    label_output[u, y] = label_output.get((u, y), 0.0) + mass * share

    def conditional(joint: dict[tuple[int, int], float]) -> float:
        total: dict[int, float] = {}
        for (_, given_value), mass in joint.items():
            total[given_value] = total.get(given_value, 0.0) + mass
        return -sum(mass * math.log2(mass / total[value]) for (_, value), mass in joint.items() if mass > 0)

    return conditional(label_state) - conditional(label_output)


@pytest.mark.parametrize("vocabulary", range(2, 10))
@pytest.mark.parametrize("labels", [2, 3])
def test_corollary_counts_the_pairs_that_the_partition_splits(vocabulary: int, labels: int) -> None:
    result = corollary(vocabulary, labels)
    part_of = {token: part for part, tokens in enumerate(result.partition) for token in tokens}
    assert sorted(part_of) == list(range(vocabulary))
    sizes = [len(part) for part in result.partition]
    assert max(sizes) - min(sizes) <= 1
    pairs = list(combinations(range(vocabulary), 2))
    split = sum(part_of[first] != part_of[second] for first, second in pairs)
    assert result.rate == result.key_rate == Fraction(split, len(pairs))


def test_corollary_is_the_papers_formula() -> None:
    for vocabulary in range(2, 100):
        assert corollary(vocabulary).rate == Fraction(vocabulary**2 // 4, math.comb(vocabulary, 2))


def test_partition_of_the_corollary_attains_its_rate_and_key_rate() -> None:
    cover = pair_cover(7)
    label_of_token = torch.arange(7) % 2
    result = measure(block_law(cover, partition_assignment(cover, label_of_token, 2)))
    assert float(result.rate) == pytest.approx(float(corollary(7).rate), abs=1e-12)
    assert float(result.i_ux_given_s) == pytest.approx(float(corollary(7).key_rate), abs=1e-12)
    assert float(result.cost) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("vocabulary", "labels", "value"),
    [
        (2, 2, 1.0),
        (3, 2, 2 / 3),
        (3, 3, 1.0),
        (4, 2, 2 / 3),
        (4, 3, 0.8538),
        (4, 4, 1.0),
        (5, 2, 0.6),
        (5, 3, 0.8),
        (5, 4, 0.9170),
        (5, 5, 1.0),
        (6, 2, 0.6),
        (6, 3, 0.8),
        (6, 4, 0.8748),
        (6, 5, 0.9447),
        (6, 6, 1.0),
    ],
)
def test_restricted_labels_reach_the_values_of_an_independent_search(
    vocabulary: int, labels: int, value: float
) -> None:
    found = best_rate(pair_cover(vocabulary), labels, torch.Generator().manual_seed(1), restarts=48)
    assert found.rate == pytest.approx(value, abs=1e-4)


def test_capacity_of_random_laws_is_what_the_solver_finds() -> None:
    generator = torch.Generator().manual_seed(2)
    for seed in range(100):
        cover = random_cover(seed, states=6, tokens=4)
        entropies = [-sum(p * math.log2(p) for p in row if p > 0) for row in cover.cover.tolist()]
        expected = sum(z * h for z, h in zip(cover.state_probs.tolist(), entropies, strict=True))
        assert capacity(cover) == pytest.approx(expected, abs=1e-12)
        found = best_rate(cover, 4, generator, restarts=8)
        assert found.rate == pytest.approx(expected, abs=1e-6)
        assert found.key_rate == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 4), st.integers(1, 4), st.booleans())
def test_rate_agrees_with_loops_and_the_update_never_lowers_it(
    seed: int, states: int, tokens: int, labels: int, channel: bool
) -> None:
    cover = random_cover(seed, states, tokens, channel)
    assignment = random_assignment(seed + 1, cover, labels)
    rate = float(rate_of(cover, assignment))
    assert rate == pytest.approx(rate_by_loops(cover, assignment), abs=1e-10)
    for _ in range(5):
        assignment = climb(cover, assignment)
        assert assignment.sum(-1).numpy() == pytest.approx(1, abs=1e-12)
        following = float(rate_of(cover, assignment))
        assert following >= rate - 1e-12
        rate = following
    assert rate <= float(cover.state_probs @ -(cover.cover * cover.cover.log2()).nansum(-1)) + 1e-12


def test_many_assignments_at_once_are_the_same_as_one_by_one() -> None:
    cover = random_cover(3, 3, 4, channel=True)
    together = torch.stack([random_assignment(seed, cover, 3) for seed in range(4)])
    assert rate_of(cover, together).tolist() == pytest.approx([float(rate_of(cover, one)) for one in together])
    assert torch.allclose(climb(cover, together), torch.stack([climb(cover, one) for one in together]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_behind_a_channel_the_solver_matches_brute_force(seed: int) -> None:
    """Two states, two tokens, two labels: a grid over all P(u|x,s), polished by a general optimiser."""
    rng = np.random.default_rng(seed)
    state, cover, channel = rng.dirichlet([2, 2]), rng.dirichlet([1, 1], 2), np.array([[0.92, 0.08], [0.15, 0.85]])

    def h2(p: NDArray[np.float64]) -> NDArray[np.float64]:
        p = np.clip(p, 1e-15, 1 - 1e-15)
        return np.asarray(-p * np.log2(p) - (1 - p) * np.log2(1 - p))

    def rate(one: NDArray[np.float64]) -> NDArray[np.float64]:
        given_s = (one * cover).sum(-1)
        joint_xy = (state[:, None] * cover)[..., None] * channel
        y = joint_xy.sum((0, 1))
        given_y = np.einsum("...sx,sxy->...y", one, joint_xy) / y
        return np.asarray(h2(given_s) @ state - h2(given_y) @ y)

    axis = np.linspace(0, 1, 17)
    grid = np.stack(np.meshgrid(*[axis] * 4, indexing="ij"), -1).reshape(-1, 2, 2)
    values = rate(grid)
    best = max(
        -float(minimize(lambda v: -float(rate(v.reshape(2, 2))), grid[i].reshape(-1), bounds=[(0, 1)] * 4).fun)
        for i in np.argsort(values)[-10:]
    )
    model = dense_cover(*(torch.from_numpy(array) for array in (state, cover, channel)))
    found = best_rate(model, 2, torch.Generator().manual_seed(0), restarts=16, iterations=20000)
    assert found.rate == pytest.approx(best, abs=2e-6)
    assert found.rate >= values.max() - 1e-6


def test_a_channel_that_changes_nothing_or_hides_everything() -> None:
    cover = random_cover(5, 3, 3)
    clean = Cover(cover.state_probs, cover.cover, cover.symbol, token_substitution(3, 0.0))
    useless = Cover(cover.state_probs, cover.cover, cover.symbol, token_substitution(3, 2 / 3))
    generator = torch.Generator().manual_seed(0)
    assert best_rate(clean, 3, generator).rate == pytest.approx(capacity(cover), abs=1e-6)
    assert best_rate(useless, 3, generator).rate == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="best_rate"):
        capacity(clean)


def test_wrong_arguments_are_named() -> None:
    law = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"P\(s\) is not a probability law"):
        dense_cover(0.9 * one, law)
    with pytest.raises(ValueError, match=r"P\(x\|s\) is not a probability law"):
        dense_cover(one, law * 2)
    with pytest.raises(ValueError, match="1 entries"):
        dense_cover(torch.ones(2), law)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        pair_cover(1)
    with pytest.raises(ValueError, match=r"labels=0, .*: at least 1"):
        best_rate(pair_cover(3), 0, torch.Generator())
    with pytest.raises(ValueError, match="substitution"):
        token_substitution(4, 1.5)


def test_command_prints_the_rate_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "law.json"
    file.write_text(json.dumps({"state_probs": [0.5, 0.5], "cover": [[0.5, 0.5, 0], [0, 0.25, 0.75]]}))
    assert main(["solve", str(file)]) == 0
    expected = 0.5 + 0.5 * (0.25 * 2 - 0.75 * math.log2(0.75))
    assert f"{expected:.6f} bits/token" in capsys.readouterr().out
    assert main(["pairs", "--largest", "3", "--labels", "2", "--restarts", "4"]) == 0
    assert "2/3 = 0.6667" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"cover": [[1.0]]}', "state_probs is missing"),
        ("[" * 100_000, "nested too deeply"),
        ('{"state_probs": [1.0], "cover": [[1e999]]}', "a number is needed"),
        ('{"state_probs": [1.0], "cover": [[1' + "0" * 400 + "]]}", "a number is needed"),
        ('{"state_probs": [0.5, 0.5], "cover": [[1.0], [0.5, 0.5]]}', "cover needs rows of one length"),
        ('{"state_probs": [], "cover": []}', "cover needs rows of one length"),
        ('{"state_probs": [1.0], "cover": [[0.4, 0.4]]}', "probability law"),
        ('{"state_probs": [1.0], "cover": [["a"]]}', "cover[0][0] is 'a', a number is needed"),
        ("not json", "is not JSON"),
    ],
)
def test_command_refuses_a_bad_file_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, expected: str
) -> None:
    file = tmp_path / "law.json"
    file.write_text(content)
    assert main(["solve", str(file)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert expected in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["solve", "LAW", "--iterations", "0"], "iterations=0"),
        (["solve", "LAW", "--iterations", "-5"], "iterations=-5"),
        (["solve", "LAW", "--restarts", "99999999999"], "take fewer restarts"),
        (["solve", "LAW", "--seed", "-1"], "seed=-1"),
        (["pairs", "--restarts", "99999999999"], "take fewer restarts"),
        (["pairs", "--largest", "1"], "largest=1"),
        (["pairs", "--largest", "-5"], "largest=-5"),
        (["pairs", "--labels", "0"], "labels=0"),
    ],
)
def test_command_refuses_numbers_out_of_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    file = tmp_path / "law.json"
    file.write_text('{"state_probs": [1.0], "cover": [[0.5, 0.5]]}')
    assert main([str(file) if argument == "LAW" else argument for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert "bits/token" not in out
    assert expected in err
    assert err.count("\n") == 1


def test_no_column_for_more_labels_than_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pairs", "--largest", "3", "--labels", "30000000", "--restarts", "2"]) == 0
    _, header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["V", "Corollary", "M", "=", "2", "M", "=", "3", "H(X|S)"]
    assert {len(row) for row in rows} == {len(header)}


def test_few_updates_are_rated_where_they_end() -> None:
    cover = random_cover(3, 4, 4)
    found = best_rate(cover, 3, torch.Generator().manual_seed(1), restarts=5, iterations=7)
    assert found.rate == float(found.rates.max())
    assert found.rate == float(rate_of(cover, found.assignment))


def test_output_that_nobody_takes() -> None:
    """A full disk is a failure, a reader who has gone is none."""
    command = f"{sys.executable} -m wm_env.theory.capacity pairs --largest 2 --restarts 1"
    full = subprocess.run(f"{command} >/dev/full", shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert full.returncode == 1
    assert full.stderr == "error: No space left on device: make room, or name another place\n"
    gone = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (gone.returncode, gone.stderr) == (0, "")


def test_command_refuses_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
