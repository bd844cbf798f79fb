"""Stable-Baselines3's own PPO, the cost as a fixed penalty: python examples/sb3_ppo.py [STEPS].

It learns the problem of `small_problem.py`. After about 20 seconds of one core the last line is about

    step 12032: rate 1.9159 of at most 2.0000 bits, cost 0.0150 of at most 0.1
"""

import sys

import torch
from small_problem import learn, make_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main(steps):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    copies = make_vec_env(make_env, n_envs=8)
    model = PPO("MultiInputPolicy", copies, n_steps=32, batch_size=64, learning_rate=3e-3, gamma=1.0, seed=0)
    learn(model, steps, every=2_000)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12_000)
