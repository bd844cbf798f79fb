"""Constrained PPO on Stable-Baselines3, with a Lagrange multiplier."""

from agents.ppo_lagrangian.algorithm import PPOLagrangian

__all__ = ["PPOLagrangian"]
