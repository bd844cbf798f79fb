import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from wm_env.lm.pretrain.objective import BLOCK, MaskedBatch, mask_batch, masked_loss, plan_responses

CPU = torch.device("cpu")
MASK = 999


@given(
    rows=st.integers(1, 20),
    blocks=st.integers(1, 6),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda pair: sum(pair) <= 1),
    ordered_share=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_a_batch_hides_tokens_of_the_response_and_weighs_every_row_alike(
    rows: int, blocks: int, shares: tuple[float, float], ordered_share: float, seed: int
) -> None:
    length = BLOCK * blocks
    plan = plan_responses(rows, length, *shares, ordered_share, CPU)
    assert len(plan.responses) == rows
    assert set(plan.responses.tolist()) <= {length, *(BLOCK << i for i in range(5) if BLOCK << i < length), BLOCK}
    windows = torch.arange(rows * length).reshape(rows, length) % 500
    batch = mask_batch(windows, plan, MASK, torch.Generator().manual_seed(seed))
    masked = batch.canvas == MASK
    counts = masked.sum(dim=1)
    assert torch.equal(batch.canvas[~masked], windows[~masked])
    for row, response in enumerate(plan.responses.tolist()):
        assert not masked[row, : length - response].any()
        if plan.ordered[row]:
            assert response < length
            assert masked[row].tolist() == [i >= length - int(counts[row]) for i in range(length)]
    assert torch.all((counts >= 1) & (counts <= plan.responses))
    total = int(counts.sum())
    assert total <= plan.cap == len(batch.hidden)
    assert batch.hidden[:total].tolist() == masked.flatten().nonzero().flatten().tolist()
    assert torch.equal(batch.targets[:total], windows[masked])
    assert torch.all(batch.weights[total:] == 0)
    by_row = torch.zeros(rows).index_add(0, batch.hidden // length, batch.weights)
    torch.testing.assert_close(by_row, torch.full((rows,), 1 / rows))


def test_rows_are_shared_out_as_asked() -> None:
    plan = plan_responses(100, 128, 0.2, 0.5, 0.4, CPU)
    assert Counter(plan.responses.tolist()) == {128: 20, 8: 50, 16: 10, 32: 10, 64: 10}
    assert Counter(plan.responses[plan.ordered].tolist()) == {8: 20, 16: 4, 32: 4, 64: 4}
    assert set(plan_responses(50, BLOCK, 0.2, 0.5, 0.0, CPU).responses.tolist()) == {BLOCK}


def test_the_next_token_of_an_ordered_row_has_half_of_its_weight() -> None:
    plan = plan_responses(16, 16, 0.0, 1.0, 1.0, CPU)
    batch = mask_batch(torch.zeros(16, 16, dtype=torch.int64), plan, MASK, torch.Generator().manual_seed(0))
    counts = (batch.canvas == MASK).sum(dim=1)
    assert counts.tolist() == [1 + row // 2 for row in range(16)]
    given = torch.zeros(16, 16).flatten().index_add(0, batch.hidden, batch.weights).view(16, 16) * 16
    for row, count in enumerate(counts.tolist()):
        expected = [1.0] if count == 1 else [0.5, *[0.5 / (count - 1)] * (count - 1)]
        assert given[row].tolist() == pytest.approx([0.0] * (16 - count) + expected)


def test_the_number_of_masks_is_uniform_and_so_is_their_place() -> None:
    plan = plan_responses(64, 16, 0.0, 1.0, 0.0, CPU)
    counts, places = torch.zeros(9), torch.zeros(16)
    for seed in range(200):
        batch = mask_batch(torch.zeros(64, 16, dtype=torch.int64), plan, MASK, torch.Generator().manual_seed(seed))
        masked = batch.canvas == MASK
        counts += torch.bincount(masked.sum(dim=1), minlength=9)
        places += masked.sum(dim=0)
    assert counts[0] == 0
    # Stratified over 64 rows and 8 counts: exactly 8 rows of each count in every batch.
    assert counts[1:].tolist() == [1600.0] * 8
    assert stats.chisquare(places[8:].numpy()).pvalue > 1e-4


def test_the_number_of_masks_is_uniform_when_rows_are_fewer_than_counts() -> None:
    plan = plan_responses(3, 16, 0.0, 1.0, 0.0, CPU)
    counts = torch.zeros(9)
    for seed in range(1000):
        batch = mask_batch(torch.zeros(3, 16, dtype=torch.int64), plan, MASK, torch.Generator().manual_seed(seed))
        counts += torch.bincount((batch.canvas == MASK).sum(dim=1), minlength=9)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:].numpy()).pvalue > 1e-4


def test_the_loss_is_the_weighted_cross_entropy_of_the_hidden_tokens() -> None:
    plan = plan_responses(6, 16, 0.5, 0.5, 0.0, CPU)
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(0, 20, (6, 16), generator=generator)
    batch = mask_batch(windows, plan, MASK, generator)
    states = torch.randn(6, 16, 20, generator=generator)
    expected = 0.0
    for row in range(6):
        hidden = [i for i in range(16) if batch.canvas[row, i] == MASK]
        for i in hidden:
            logits = states[row, i].double().tolist()
            log_sum = math.log(sum(math.exp(value) for value in logits))
            expected += (log_sum - logits[int(windows[row, i])]) / len(hidden) / 6
    assert float(masked_loss(states, torch.eye(20), batch)) == pytest.approx(expected, rel=1e-5)


def test_the_expected_loss_is_the_mean_over_all_orders() -> None:
    """On a made-up law over 8 binary tokens: average the loss over all masks, and chain rules over all orders."""
    length = 8
    text = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])

    def logits(canvas: torch.Tensor) -> torch.Tensor:
        seen = (torch.where(canvas == MASK, torch.zeros(()), canvas * 2.0 - 1.0)).cumsum(0)
        place = torch.arange(length)
        return torch.stack((torch.sin(place + seen + seen[-1]), torch.cos(2.0 * place - seen)), dim=-1)

    average = 0.0
    for count in range(1, length + 1):
        for hidden in itertools.combinations(range(length), count):
            canvas = text.clone()
            canvas[list(hidden)] = MASK
            batch = MaskedBatch(canvas[None], torch.tensor(hidden), text[list(hidden)], torch.full((count,), 1 / count))
            loss = float(masked_loss(logits(canvas)[None], torch.eye(2), batch))
            average += loss / math.comb(length, count) / length

    # Mean over orders by the last-token recursion: every order ends by filling one of the masked places.
    remaining = {(): 0.0}
    for count in range(1, length + 1):
        for hidden in itertools.combinations(range(length), count):
            canvas = text.clone()
            canvas[list(hidden)] = MASK
            scores = torch.log_softmax(logits(canvas), dim=-1)
            total = sum(-float(scores[i, text[i]]) + remaining[tuple(j for j in hidden if j != i)] for i in hidden)
            remaining[hidden] = total / count
    assert average == pytest.approx(remaining[tuple(range(length))] / length, rel=1e-5)
