"""The masked-diffusion training objective: which tokens of a window are hidden, and what each prediction weighs.

A row's last R tokens are its response, the tokens before them its prompt, which stays clean. R equal to the row's
length is LLaDA's pre-training, smaller R its supervised fine-tuning. k = floor(t R) + 1 tokens of the response, chosen
uniformly, are masked for a ratio t uniform in (0, 1); the loss is the sum of their cross-entropies divided by the mask
ratio k / R and by R. Its expectation is the response's negative log-likelihood per token under the model, averaged
over all orders in which its tokens can be generated (LLaDA, arXiv 2502.09992, equations 3, 5 and 6).

Texts are written from left to right here, so rows can be *ordered*: their k masks are the last k tokens of the
response. The first of them, the next token to be written, then has half of the row's weight.

`next_token_loss` is no masked-diffusion objective: it teaches the same network with attention to the left only, where
every token is a target, what language is like, at a fraction of the cost of rows with few masks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 8
"""Tokens in the shortest response: one block of the watermark."""


@dataclass(frozen=True)
class ResponsePlan:
    """What is fixed about a batch of N rows of T tokens before chance comes in.

    responses: (N,) int64, R of each row. ordered: (N,) bool, whether its masks are its last tokens. stratum: (N,)
    float64, where the row's interval of t begins. width: (N,) float64, how wide it is. most: (N,) int64, the largest k
    the row can get. cap: their sum, which bounds the masked tokens of a batch, so that tensors have the same shapes in
    every batch of this plan.
    """

    length: int
    responses: Tensor
    ordered: Tensor
    stratum: Tensor
    width: Tensor
    most: Tensor
    cap: int


def plan_responses(
    rows: int, length: int, plain_share: float, block_share: float, ordered_share: float, device: torch.device
) -> ResponsePlan:
    """Give each row a response length, and rows of one kind equal strata of the mask ratio t in (0, 1).

    Args:
        rows: N.
        length: T, at least one block.
        plain_share: part of the rows that are response from end to end.
        block_share: part of the rows whose response is one block. The rest get 2, 4, 8, ... blocks, as far as they fit.
        ordered_share: part of the rows with a prompt that are ordered, the same of every response length.
        device: where the plan's tensors live.
    """
    between = [BLOCK << i for i in range(1, 32) if BLOCK << i < length] or [BLOCK]
    sizes = {length: round(rows * plain_share)}
    sizes[BLOCK] = sizes.get(BLOCK, 0) + min(round(rows * block_share), rows - sizes[length])
    rest = rows - sum(sizes.values())
    for i, response in enumerate(between):
        sizes[response] = sizes.get(response, 0) + (i + 1) * rest // len(between) - i * rest // len(between)
    kinds = []
    for response, size in sizes.items():
        ordered = round(size * ordered_share) if response < length else 0
        kinds += [(response, True, ordered), (response, False, size - ordered)]
    cells = [(response, ordered, j, size) for response, ordered, size in kinds for j in range(size)]
    most = [-(-(j + 1) * response // size) for response, _, j, size in cells]
    return ResponsePlan(
        length=length,
        responses=torch.tensor([response for response, _, _, _ in cells], device=device),
        ordered=torch.tensor([ordered for _, ordered, _, _ in cells], device=device),
        stratum=torch.tensor([j / size for _, _, j, size in cells], dtype=torch.float64, device=device),
        width=torch.tensor([1 / size for _, _, _, size in cells], dtype=torch.float64, device=device),
        most=torch.tensor(most, device=device),
        cap=sum(most),
    )


@dataclass(frozen=True)
class MaskedBatch:
    """Windows with hidden tokens.

    canvas: (N, T) int64, masks included. hidden: (cap,) int64, flat indices of the masked tokens, then fillers.
    targets: (cap,) int64, the tokens there. weights: (cap,) float32, which are 1 / N together for the masks of a row,
    and 0 for fillers.
    """

    canvas: Tensor
    hidden: Tensor
    targets: Tensor
    weights: Tensor


def mask_batch(windows: Tensor, plan: ResponsePlan, mask_id: int, generator: torch.Generator) -> MaskedBatch:
    """Hide tokens of `windows`, (N, T) int64, by the plan; all chance comes from `generator`, on the same device."""
    rows, length = windows.shape
    device = windows.device
    within = torch.rand(rows, dtype=torch.float64, device=device, generator=generator)
    ratio = plan.stratum + within * plan.width
    counts = ((ratio * plan.responses).long() + 1).minimum(plan.most)
    place = torch.arange(length, device=device)
    order = torch.rand((rows, length), device=device, generator=generator, dtype=torch.float32)
    order = torch.where(plan.ordered[:, None], 1 - place / length, order)
    order = order.masked_fill(place < length - plan.responses[:, None], 2.0)
    masked = order.argsort(dim=1).argsort(dim=1) < counts[:, None]
    weights = masked * _weights(counts[:, None], place == length - counts[:, None], plan.ordered[:, None]) / rows
    # A stable sort brings the masked positions to the front, in order, without asking the device how many there are.
    hidden = (~masked).flatten().to(torch.uint8).argsort(stable=True)[: plan.cap]
    return MaskedBatch(
        canvas=windows.masked_fill(masked, mask_id),
        hidden=hidden,
        targets=windows.flatten()[hidden],
        weights=weights.flatten()[hidden],
    )


def _weights(counts: Tensor, first: Tensor, ordered: Tensor) -> Tensor:
    """What each mask of a row weighs, (N, T) float32; `first` says which one an ordered row begins with."""
    alike = 1 / counts.float()
    halves = torch.where(first, 0.5, 0.5 / (counts - 1).clamp(min=1))
    return torch.where(ordered & (counts > 1), halves, alike)


def masked_loss(states: Tensor, head: Tensor, batch: MaskedBatch) -> Tensor:
    """The loss of a batch in nats per token, a scalar.

    Args:
        states: (N, T, width), the network's last hidden states on `batch.canvas`.
        head: (V, width), the matrix from states to logits; only masked positions go through it.
        batch: what was hidden.
    """
    logits = functional.linear(states.flatten(0, 1)[batch.hidden], head).float()
    return (functional.cross_entropy(logits, batch.targets, reduction="none") * batch.weights).sum()


def next_token_loss(states: Tensor, head: Tensor, windows: Tensor) -> Tensor:
    """The mean cross-entropy of every window's tokens but the first in nats per token, a scalar.

    Args:
        states: (N, T, width), the network's last hidden states on `windows`; states at i must not depend on tokens
            behind i.
        head: (V, width), the matrix from states to logits.
        windows: (N, T) int64.
    """
    logits = functional.linear(states[:, :-1].flatten(0, 1), head).float()
    return functional.cross_entropy(logits, windows[:, 1:].flatten())
