"""The Muon optimizer (Jordan et al., 2024) for weight matrices, all matrices of one shape at a time."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalise(matrices: Tensor) -> Tensor:
    """Replace the singular values of each matrix by values near 1 (0.7 to 1.2), keeping its singular vectors.

    Five Newton-Schulz steps of the quintic a x + b x^3 + c x^5 with Muon's coefficients, in bf16 on a GPU.

    Args:
        matrices: (K, rows, columns), float32, none of them zero.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return result


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, scaled to the size of an AdamW update, with decoupled weight decay.

    Nesterov momentum m <- mu m + g, update = 0.2 sqrt(max(rows, columns)) orthogonalise(g + mu m), as in Moonlight (Liu
    et al., 2025), so that learning rate and decay are those one would give AdamW. `torch.optim.Muon` computes the same,
    one matrix at a time; here equal shapes share each matrix product, which for small matrices on a GPU saves most of
    the step.

    Args:
        params: matrices, two dimensions each.
        lr: learning rate.
        momentum: mu.
        weight_decay: part of lr by which weights shrink each step.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                gradients = [p.grad for p in parameters if p.grad is not None]
                buffers = [self._momentum(parameter) for parameter in parameters]
                torch._foreach_mul_(buffers, group["momentum"])
                torch._foreach_add_(buffers, gradients)
                ahead = torch._foreach_add(gradients, buffers, alpha=group["momentum"])
                updates = orthogonalise(torch.stack(ahead)).unbind()
                scale = 0.2 * max(shape) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, updates, alpha=-group["lr"] * scale)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum
