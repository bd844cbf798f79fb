"""What a law is worth, exactly, in float64: the numbers that training reports and the choice of the best iterate."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from agents.common.policies import SoftmaxPolicy
from wm_env.criteria.costs import TOTAL_VARIATION, cost_of, four_digits
from wm_env.criteria.objectives import Objective
from wm_env.criteria.table import COSTS
from wm_env.information import Measures, discounted_totals, entropy, law_totals, text_total_variation
from wm_env.law import BlockLaw, JointLaw, Policy, roll_out
from wm_env.optimum import FEASIBLE, percent_of_optimum
from wm_env.problem import Problem


@dataclass(frozen=True)
class Evaluation:
    """A law with its measures.

    Attributes:
        law: P(S,U,X) of every block; under the coded objective with uniform message bits and their positions.
        measures: one entry per block, as the objective sees the block.
        rate: sum_b gamma^b r_b in bits, b = 1..B.
        cost: sum_b gamma^b c_b, or the total variation of whole texts if that is what the budget is for.
        costs: the same for every cost of the table, by name.
        feasible: the cost meets the limit.
        message_bits: bits that reach the decoder without error, sum over the blocks, where lengths follow the state;
            else None.
    """

    law: JointLaw
    measures: tuple[Measures, ...]
    rate: float
    cost: float
    costs: dict[str, float]
    feasible: bool
    message_bits: float | None = None


def evaluate_law(problem: Problem, objective: Objective, policy: Policy) -> Evaluation:
    """Roll `policy` out over the problem's tree and measure every block."""
    chosen = objective.message_set

    def sent(number: int, state_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's laws, with uniform message bits if the objective has any."""
        block = problem.blocks[number]
        law = objective.sent(BlockLaw(state_probs, block.cover, block.symbol, *policy(number, state_probs)))
        return law.p_label, law.p_candidate

    rolled = roll_out(problem.tree, sent)
    sets = (chosen,) * len(rolled.blocks) if chosen else None
    law = JointLaw(rolled.blocks, rolled.block_length, rolled.tree, sets)
    measures = tuple(
        objective.measure_behind(objective(block), problem.cost, channel)
        for block, channel in zip(law.blocks, problem.channels, strict=True)
    )
    totals = discounted_totals(measures, problem.gamma)
    costs = {name: law_totals(law.blocks, problem.gamma, cost_of(name)).cost for name in COSTS}
    cost = totals.cost
    if problem.budget == "text":
        children = tuple(block.child for block in problem.blocks[:-1])
        cost = float(text_total_variation(rolled.blocks, children))
    return Evaluation(law, measures, totals.rate, cost, costs, cost <= problem.epsilon + FEASIBLE)


def evaluate_policy(problem: Problem, objective: Objective, policy: SoftmaxPolicy) -> Evaluation:
    """`evaluate_law` of a softmax policy of any precision on any device."""
    exact = copy.deepcopy(policy).cpu().double().requires_grad_(False)
    return evaluate_law(problem, objective, lambda number, _: exact(number))


def law_metrics(evaluation: Evaluation, problem: Problem, objective: Objective) -> dict[str, float]:
    """The tags `eval/*` and `law/*`: information in bits per block, averaged over the blocks.

    `law/percent_of_optimum` compares the rate with the exact optimum at the same limit; it exists where the labels
    reach the optimum, else there is `law/percent_of_bound`, if the objective's bound is comparable. Both mean something
    only where `eval/feasible` is 1. `law/message_bits` exists where lengths follow the state.
    """
    measures = evaluation.measures

    def mean(values: list[torch.Tensor]) -> float:
        return float(torch.stack(values).mean())

    informed = ("i_ux", "i_us", "i_ux_given_s", "cover_entropy")
    metrics = {
        "eval/rate": evaluation.rate,
        "eval/cost": evaluation.cost,
        "eval/feasible": float(evaluation.feasible),
        **{f"eval/cost_{name}": value for name, value in evaluation.costs.items()},
        **{f"law/{name}": mean([getattr(measured, name) for measured in measures]) for name in informed},
        "law/label_entropy": mean([block.state_probs @ entropy(block.p_label) for block in evaluation.law.blocks]),
    }
    if objective.comparable:
        bound = objective.bound(problem)
        tag = "law/percent_of_optimum" if bound.exact else "law/percent_of_bound"
        metrics[tag] = percent_of_optimum(evaluation.rate, bound)
    if evaluation.message_bits is not None:
        metrics["law/message_bits"] = evaluation.message_bits / len(measures)
    return metrics


def progress_line(metrics: Mapping[str, float], epsilon: float, multiplier: float) -> str:
    """One line on a run as it goes on: rate, cost against its limit, multiplier, and the share of the optimum.

    A law over the limit has no share: with enough cost any rate can be had.
    """
    rate, cost = four_digits(metrics["eval/rate"]), four_digits(metrics["eval/cost"])
    line = f"rate {rate} bits, cost {cost} of {epsilon:g}, beta {multiplier:.3f}"
    if not metrics["eval/feasible"]:
        return f"{line}, over the limit"
    for tag, name in (("law/percent_of_optimum", "optimum"), ("law/percent_of_bound", "upper bound")):
        if tag in metrics:
            line += f", {metrics[tag]:.1f} % of {name}"
    return line


def law_summary(evaluation: Evaluation, problem: Problem, objective: Objective) -> str:
    """One line: rate, cost against its limit, and how much of the optimum that is, if the limit is met."""
    blocks, length = len(evaluation.measures), problem.tree.block_length
    if (bits := evaluation.message_bits) is not None:
        worth, per_token = f"{bits:.4f} message bits", bits / (blocks * length)
        kind = ", lengths by state, no errors"
    else:
        per_token = sum(float(measured.rate) for measured in evaluation.measures) / (blocks * length)
        worth, kind = f"rate {four_digits(evaluation.rate)} bits", ""
    line = (
        f"{worth} over {blocks} blocks of {length} tokens ({four_digits(per_token)} bits per token){kind}, "
        f"{problem.cost.told(evaluation.cost)} of at most {problem.epsilon:g}"
    )
    if problem.budget == "text":
        line += " for whole texts"
    if problem.cost != TOTAL_VARIATION:
        line += f" ({TOTAL_VARIATION.told(evaluation.costs[TOTAL_VARIATION.name])})"
    if not evaluation.feasible:
        if problem.epsilon == 0:
            return f"{line}; only the cover itself costs 0, and a learner only comes near it: use --agent planner"
        return f"{line}, over the limit: train longer"
    if objective.comparable:
        bound = objective.bound(problem)
        name = "optimum" if bound.exact else f"upper bound for {problem.labels} labels,"
        line += f", {percent_of_optimum(evaluation.rate, bound):.2f} % of the {name} {bound.rate:.4f}"
    return line
