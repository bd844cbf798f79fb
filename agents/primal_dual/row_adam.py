"""Adam with one second moment for a whole row of a parameter: the second moments of Adam-mini.

The usual Adam divides every entry by its own root mean square, so that all entries move at one speed, however small
their gradients are beside each other. Here the proportions within a row survive, and only rows are made equally fast:
with a row for every state, states that are reached seldom learn as fast as the others, and within a state heavy
candidates move before light ones.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

FLOOR = 1e-12
"""Added to the root mean square of a row. The gradient of a state carries its probability, so Adam's usual 1e-8 would
slow down rare states."""


class RowAdam(torch.optim.Optimizer):
    """Gradient ascent: theta_r += lr m_r / (sqrt(mean v_r) + floor) for every row r, moments corrected for their start.

    m and v are the running means of the gradient and of its square, with Adam's decays 0.9 and 0.999; the mean is over
    all entries of a row, and rows are along the first axis of a parameter.

    Args:
        params: what to optimise; gradients must be there when `step` is called.
        lr: root mean square step of a row whose gradient stays the same.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999)})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step up the gradient; no closure is called."""
        for group in self.param_groups:
            for parameter in group["params"]:
                _ascend(parameter, self.state[parameter], group["lr"], *group["betas"])


def _ascend(parameter: nn.Parameter, state: dict[str, Tensor], rate: float, first: float, second: float) -> None:
    grad = parameter.grad
    if grad is None:
        return
    by_row = (-1, *[1] * (grad.dim() - 1))
    if not state:
        state["step"] = torch.tensor(0.0, dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(grad)
        state["exp_avg_sq"] = grad.new_zeros(len(grad)).view(by_row)
    state["step"] += 1
    steps = int(state["step"])
    state["exp_avg"].lerp_(grad, 1 - first)
    state["exp_avg_sq"].lerp_(grad.square().flatten(1).mean(1).view(by_row), 1 - second)
    root = (state["exp_avg_sq"] / (1 - second**steps)).sqrt_().add_(FLOOR)
    parameter.addcdiv_(state["exp_avg"], root, value=rate / (1 - first**steps))
