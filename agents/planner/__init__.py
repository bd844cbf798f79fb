"""The exact planners: the optimum under a total-variation budget, as a joint law."""

from agents.planner.rate import Plan, plan

__all__ = ["Plan", "plan"]
