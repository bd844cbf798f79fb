"""The multiplier of the cost constraint: projected dual ascent, the same for every learner."""

from torch import Tensor


def dual_ascent(multiplier: Tensor, cost: Tensor, epsilon: float, step: float) -> Tensor:
    """beta <- [beta + eta (sum_b gamma^b c_b - epsilon)]_+, the last line of Algorithm 1 of the paper.

    The step is proportional to the violation and the result is exactly 0 as long as the constraint is slack. A plain
    step, because Adam on a scalar would move by its learning rate however large the violation is.

    Args:
        multiplier: beta >= 0, a scalar tensor, bits per unit of total variation.
        cost: sum_b gamma^b c_b of the policy that was measured, a scalar tensor.
        epsilon: the limit on that sum.
        step: eta_beta > 0.
    """
    return (multiplier + step * (cost - epsilon)).clamp_min(0)
