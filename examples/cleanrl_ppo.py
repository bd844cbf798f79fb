"""PPO in one file, in the manner of CleanRL: python examples/cleanrl_ppo.py [STEPS]."""

import sys
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import FlattenObservation
from torch import nn
from torch.distributions import Normal

from wm_env.wrappers import LogitsToSimplices


@dataclass
class Settings:
    total_steps: int = 20_000
    envs: int = 8
    steps: int = 32
    epochs: int = 4
    learning_rate: float = 3e-4
    clip: float = 0.2
    penalty: float = 2.0
    """Bits of reward that a unit of total variation costs."""
    seed: int = 0


def make_env():
    return FlattenObservation(LogitsToSimplices(gym.make("wm_env:CovertWatermarkEnv-v0")))


def two_layers(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main(settings):
    torch.manual_seed(settings.seed)
    envs = gym.vector.SyncVectorEnv([make_env] * settings.envs, autoreset_mode="SameStep")
    inputs, outputs = (space.shape[0] for space in (envs.single_observation_space, envs.single_action_space))
    actor, critic, log_std = (
        two_layers(inputs, outputs),
        two_layers(inputs, 1),
        nn.Parameter(torch.full((outputs,), -1.0)),
    )
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)

    observation, _ = envs.reset(seed=settings.seed)
    for begin in range(0, settings.total_steps, settings.envs * settings.steps):
        seen, taken, gained, ended, costs = [], [], [], [], []
        for _ in range(settings.steps):
            state = torch.as_tensor(observation, dtype=torch.float32)
            with torch.no_grad():
                action = Normal(actor(state), log_std.exp()).sample()
            clipped = action.clamp(-10, 10).numpy()
            observation, reward, terminated, _, infos = envs.step(clipped)
            # The cost of an episode's last step is in final_info: in SameStep mode infos["cost"] belongs to the reset.
            cost = infos["final_info"]["cost"] if terminated.all() else infos["cost"]
            for store, value in zip(
                (seen, taken, gained, ended, costs), (state, action, reward, terminated, cost), strict=True
            ):
                store.append(value)
        rewards = torch.as_tensor(np.stack(gained) - settings.penalty * np.stack(costs), dtype=torch.float32)
        # An episode has two blocks: the return is summed to its end, no bootstrapping.
        returns, ahead = torch.zeros_like(rewards), torch.zeros(settings.envs)
        for step in reversed(range(settings.steps)):
            ahead = rewards[step] + ahead * torch.as_tensor(~ended[step])
            returns[step] = ahead
        states, actions, targets = torch.cat(seen), torch.cat(taken), returns.flatten()
        with torch.no_grad():
            old = Normal(actor(states), log_std.exp()).log_prob(actions).sum(-1)
            advantages = targets - critic(states)[:, 0]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(settings.epochs):
            ratio = (Normal(actor(states), log_std.exp()).log_prob(actions).sum(-1) - old).clamp(-20, 20).exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            loss = loss + (critic(states)[:, 0] - targets).square().mean() / 2
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        if begin % (10 * settings.envs * settings.steps) == 0:
            print(f"step {begin}: mean rate {np.mean(gained):.4f} bits per block, mean cost {np.mean(costs):.4f}")


if __name__ == "__main__":
    main(Settings(total_steps=int(sys.argv[1])) if len(sys.argv) > 1 else Settings())
