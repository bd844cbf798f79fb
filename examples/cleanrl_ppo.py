"""PPO in one file, in the manner of CleanRL: python examples/cleanrl_ppo.py [STEPS].

It learns a small problem, one prompt, one block and four candidates, whose laws are 20 numbers. After about 14 seconds
of one core the last line is about

    step 12288: rate 1.9343 of at most 2.0000 bits, cost 0.0387 of at most 0.1

The default problem has laws of 2,304 numbers: docs/performance.md tells what learners do on it.
"""

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
    total_steps: int = 12_288
    envs: int = 8
    steps: int = 32
    epochs: int = 4
    learning_rate: float = 3e-3
    clip: float = 0.2
    penalty: float = 2.0
    """Bits of reward that a unit of total variation costs."""
    seed: int = 0


def make_env():
    env = gym.make("wm_env:CovertWatermarkEnv-v0", prompts=1, blocks=1, candidates=4, labels=4)
    return FlattenObservation(LogitsToSimplices(env, bound=5.0))


def two_layers(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def evaluation(actor):
    """One episode of the mean action; the environment is exact, so one is enough."""
    env = make_env()
    observation, info = env.reset()
    rate, done = 0.0, False
    while not done:
        with torch.no_grad():
            action = actor(torch.as_tensor(observation, dtype=torch.float32)).clamp(-5, 5).numpy()
        observation, reward, done, _, step = env.step(action)
        rate += reward
    return f"rate {rate:.4f} of at most {info['rate_bound']:.4f} bits, cost {step['cost_so_far']:.4f} of at most 0.1"


def main(settings):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    envs = gym.vector.SyncVectorEnv([make_env] * settings.envs, autoreset_mode="SameStep")
    inputs, outputs = (space.shape[0] for space in (envs.single_observation_space, envs.single_action_space))
    actor, critic, log_std = (
        two_layers(inputs, outputs),
        two_layers(inputs, 1),
        nn.Parameter(torch.zeros(outputs)),
    )
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)

    observation, _ = envs.reset(seed=settings.seed)
    rollout = settings.envs * settings.steps
    for begin in range(0, settings.total_steps, rollout):
        seen, taken, gained, ended, costs = [], [], [], [], []
        for _ in range(settings.steps):
            state = torch.as_tensor(observation, dtype=torch.float32)
            with torch.no_grad():
                action = Normal(actor(state), log_std.exp()).sample()
            clipped = action.clamp(-5, 5).numpy()
            observation, reward, terminated, _, infos = envs.step(clipped)
            # The cost of an episode's last step is in final_info: in SameStep mode infos["cost"] belongs to the reset.
            cost = infos["final_info"]["cost"] if terminated.all() else infos["cost"]
            for store, value in zip(
                (seen, taken, gained, ended, costs), (state, action, reward, terminated, cost), strict=True
            ):
                store.append(value)
        rewards = torch.as_tensor(np.stack(gained) - settings.penalty * np.stack(costs), dtype=torch.float32)
        # The return is summed to the end of the episode, no bootstrapping.
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
        if begin // rollout % 8 == 7 or begin + rollout >= settings.total_steps:
            print(f"step {begin + rollout}: {evaluation(actor)}", flush=True)


if __name__ == "__main__":
    main(Settings(total_steps=int(sys.argv[1])) if len(sys.argv) > 1 else Settings())
