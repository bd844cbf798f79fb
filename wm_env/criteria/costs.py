"""What embedding costs: divergences of the law that is sent from the model's own, with what is known of their optimum.

A new cost is a subclass of `Cost` and a line in `wm_env.criteria.table.COSTS`.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from wm_env.common.checks import check_known
from wm_env.criteria.table import COSTS, load_class
from wm_env.information import LN2, kl_divergence, total_variation


class Cost(ABC):
    """c = sum_s Z(s) D(P~(.|s), P(.|s)), a divergence D of what is sent in a state from what the model writes there.

    Calling a cost returns D, one number for each state. Costs have no state of their own: two of one class are equal.

    Attributes:
        name: as in `CovertWatermarkEnv(cost=...)`.
        title: the name in words.
        unit: "bits", or empty for a number without a unit.
        solvable: `best_response` is known; otherwise no optimum is, and rates are compared with the entropy that
            remains without a budget.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str] = ""
    solvable: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, induced: Tensor, cover: Tensor) -> Tensor:
        """D of every state, shape (N, ...), differentiable in `induced`, never negative, 0 where the two laws agree.

        Args:
            induced: P~(x|s), shape (N, Q, ...), zero where the cover is zero.
            cover: P(x|s), shape (N, Q, ...).
        """

    def slope(self, induced: Tensor, cover: Tensor) -> Tensor:
        """A subgradient of D with respect to P~(x|s), shape (N, Q, ...); here by automatic differentiation."""
        with torch.enable_grad():
            point = induced.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self(point, cover).sum(), point)
        return gradient

    def excess(self, induced: Tensor, cover: Tensor) -> Tensor:
        """sum_x P~(x|s) slope(x) - D, shape (N, ...): what the linearisation of D at P~ has more than D at P~."""
        return (induced * self.slope(induced, cover)).sum(1) - self(induced, cover)

    def best_response(self, cover: Tensor, bonus: Tensor, multiplier: float) -> Tensor:
        """argmax over q of H(q) + sum_x q(x) bonus(x) - multiplier * D(q, cover), one row per state.

        Args:
            cover: P(x|s), shape (N, Q), rows sum to 1.
            bonus: bits that choosing x is worth later, shape (N, Q); ignored where the cover is zero.
            multiplier: beta >= 0, bits per unit of cost.

        Returns:
            q, shape (N, Q), rows sum to 1, zero where the cover is zero.

        Raises:
            ValueError: no closed form is known, and the multiplier is not 0.
        """
        if multiplier == 0:
            return torch.softmax(torch.where(cover > 0, bonus * LN2, -torch.inf), 1)
        raise ValueError(f"cost={self.name!r}: no best response is known; choose one of {', '.join(solvable_costs())}")

    def multiplier_of_cover(self, cover: Tensor, bonus: Tensor) -> float:
        """The smallest multiplier at which `best_response` is the cover in all states; infinity if there is none."""
        return math.inf

    def told(self, value: float) -> str:
        """A value with the name and the unit of the cost, for people."""
        return f"{self.title} {four_digits(value)}{self.unit and f' {self.unit}'}"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class TotalVariation(Cost):
    """V(P~_XS, P_XS) in [0, 1], the paper's cost: how much better than guessing an observer can tell the two apart."""

    name = "tv"
    title = "total variation"
    solvable = True

    def __call__(self, induced: Tensor, cover: Tensor) -> Tensor:
        """V(P~(.|s), P(.|s)) = 1/2 sum_x |P~ - P|."""
        return total_variation(induced, cover, 1)

    def slope(self, induced: Tensor, cover: Tensor) -> Tensor:
        """sign(P~ - P) / 2."""
        return torch.sign(induced - cover) / 2

    def excess(self, induced: Tensor, cover: Tensor) -> Tensor:
        """sum_x P(x|s) sign(P~ - P) / 2."""
        return (cover * torch.sign(induced - cover)).sum(1) / 2

    def best_response(self, cover: Tensor, bonus: Tensor, multiplier: float) -> Tensor:
        """The cover clipped between two multiples of 2^bonus; see `clipped_law`."""
        return clipped_law(cover, bonus, multiplier)

    def multiplier_of_cover(self, cover: Tensor, bonus: Tensor) -> float:
        """The most that log2 P(x|s) - bonus(x) varies over the candidates of a state."""
        log_ratio = torch.log2(cover) - bonus
        highest = log_ratio.amax(1)
        lowest = torch.where(cover > 0, log_ratio, torch.inf).amin(1)
        return float((highest - lowest).max())


class KLDivergence(Cost):
    """D(P~_XS || P_XS) in bits, the expected log-likelihood ratio that an observer gathers from a block.

    By the chain rule the sum over blocks is the divergence of whole texts, if every context has a state of its own. By
    Pinsker's inequality the total variation of texts is at most sqrt(D ln 2 / 2).
    """

    name = "kl"
    title = "KL divergence"
    unit = "bits"
    solvable = True

    def __call__(self, induced: Tensor, cover: Tensor) -> Tensor:
        """D(P~(.|s) || P(.|s)) = sum_x P~ log2 (P~ / P)."""
        return kl_divergence(induced, cover, 1)

    def slope(self, induced: Tensor, cover: Tensor) -> Tensor:
        """log2 (P~ / P); a constant for each state is left out, since P~ sums to 1."""
        tiny = torch.finfo(induced.dtype).tiny
        return torch.log2(induced.clamp_min(tiny)) - torch.log2(cover.clamp_min(tiny))

    def excess(self, induced: Tensor, cover: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(induced[:, 0])

    def best_response(self, cover: Tensor, bonus: Tensor, multiplier: float) -> Tensor:
        """The tilted cover: q proportional to (P(x|s)^beta 2^bonus(x))^(1 / (1 + beta))."""
        support = cover > 0
        log_cover = torch.log2(torch.where(support, cover, 1))
        # Written so that beta = infinity would give the cover, and large beta loses no digits.
        tilt = log_cover + (bonus - log_cover) / (1 + multiplier)
        return torch.softmax(torch.where(support, tilt * LN2, -torch.inf), 1)


def four_digits(value: float) -> str:
    """Four digits after the point; a rounding error below 0 is no -0.0000."""
    return f"{round(value, 4) + 0.0:.4f}"


def clipped_law(cover: Tensor, bonus: Tensor, multiplier: float) -> Tensor:
    """argmax over q of H(q) + sum_x q(x) bonus(x) - multiplier * V(q, cover), one row per state.

    The stationarity condition gives q = clip(cover, t 2^(bonus - multiplier/2), t 2^(bonus + multiplier/2)), entry by
    entry. The sum over x is a non-decreasing, piecewise linear function of t with 2Q breakpoints: sorting them
    finds the piece on which it is 1, and t in closed form.

    Arguments and result as of `Cost.best_response`.
    """
    support = cover > 0
    bonus = bonus - torch.where(support, bonus, -torch.inf).amax(1, keepdim=True)
    floor = torch.where(support, torch.exp2(bonus - multiplier / 2), 0)
    ceiling = torch.where(support, torch.exp2(bonus + multiplier / 2), 0)
    # As t grows a candidate follows its ceiling, then rests at the cover, then follows its floor.
    log_ratio = torch.where(support, torch.log2(cover) - bonus, -torch.inf)
    breaks = torch.cat([log_ratio - multiplier / 2, log_ratio + multiplier / 2], 1)
    breaks, order = breaks.sort(dim=1, stable=True)
    nothing = torch.zeros_like(cover)
    at_ceiling = torch.cat([ceiling, nothing], 1).gather(1, order)
    at_floor = torch.cat([nothing, floor], 1).gather(1, order)
    resting = torch.cat([cover, -cover], 1).gather(1, order)
    # Slope and constant of the piece before the first breakpoint and after each; sums of positive terms only.
    slope = torch.cat([at_ceiling, nothing[:, :1]], 1).flip(1).cumsum(1).flip(1)
    slope[:, 1:] += at_floor.cumsum(1)
    constant = torch.cat([nothing[:, :1], resting.cumsum(1)], 1)
    t_break = torch.exp2(breaks)
    piece = (slope[:, 1:] * t_break + constant[:, 1:] < 1).sum(1, keepdim=True)
    slope, constant = slope.gather(1, piece), constant.gather(1, piece)
    # On a flat piece q is the cover, whatever t of the piece is taken.
    flat = t_break.gather(1, (piece - 1).clamp_min(0))
    t = torch.where(slope > 0, (1 - constant) / slope, flat)
    return torch.minimum(torch.maximum(cover, t * floor), t * ceiling)


TOTAL_VARIATION = TotalVariation()


def cost_of(cost: str | Cost) -> Cost:
    """A cost, or the one of the table that is called so.

    Raises:
        ValueError: there is none.
    """
    if isinstance(cost, Cost):
        return cost
    check_known("cost", cost, COSTS)
    found: Cost = load_class(COSTS[cost])()
    return found


def solvable_costs() -> list[str]:
    """Names of the costs whose optimum is known."""
    return [name for name in COSTS if cost_of(name).solvable]
