"""The result of a run in a few numbers."""

from collections.abc import Mapping
from typing import Any

from agents.common.checkpoints import Best
from agents.common.evaluation import Evaluation
from agents.common.runs import versions
from agents.common.settings import RunSettings
from wm_env.criteria.objectives import Objective
from wm_env.optimum import percent_of_optimum
from wm_env.problem import Problem


def results(evaluation: Evaluation, problem: Problem, objective: Objective) -> dict[str, float | None]:
    """What a law is worth: rate, cost, whether it meets the limit, and the percentage of the optimum or its bound.

    The percentage is None where the law is over the limit, or where it says nothing.
    """
    bound = objective.bound(problem)
    compared = evaluation.feasible and objective.comparable
    percent = percent_of_optimum(evaluation.rate, bound) if compared else None
    return {
        "rate": evaluation.rate,
        "cost": evaluation.cost,
        **{f"cost_{name}": value for name, value in evaluation.costs.items()},
        "feasible": float(evaluation.feasible),
        "percent_of_optimum": percent if bound.exact else None,
        "percent_of_bound": None if bound.exact else percent,
        "message_bits": evaluation.message_bits,
    }


def summary_of(
    settings: RunSettings, best: Best | None, iterations: int, result: Mapping[str, float | None], seconds: float
) -> dict[str, Any]:
    """What summary.json says of a run: JSON types.

    `best` is the evaluation whose law was saved, None if none met the limit; `result` that of `results`; `iterations`
    were done in all; this process took the `seconds`.
    """
    asked = {name: getattr(settings, name) for name in ("agent", "seed", "objective", "epsilon", "gamma")}
    return {
        **asked,
        "limited_cost": settings.cost,
        **result,
        "feasible": bool(result["feasible"]),
        "iterations": iterations,
        "iteration_of_best": None if best is None else best.at,
        "seconds": round(seconds, 3),
        "versions": versions(),
    }
