"""Stable-Baselines3's SAC on logits, the cost as a fixed penalty: python examples/sb3_sac.py [STEPS].

It learns the problem of `small_problem.py`. After about 20 seconds of one core the last line is about

    step 1500: rate 1.9041 of at most 2.0000 bits, cost 0.0826 of at most 0.1
"""

import sys

import torch
from small_problem import learn, make_env
from stable_baselines3 import SAC


def main(steps):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    first = min(200, steps // 2)
    model = SAC(
        "MultiInputPolicy",
        make_env(),
        learning_starts=first,
        buffer_size=5_000,
        batch_size=64,
        learning_rate=3e-3,
        gamma=1.0,
        seed=0,
    )
    learn(model, steps, every=250)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_500)
