"""PPO of Tianshou 2, the cost as a fixed penalty: python examples/tianshou_ppo.py [STEPS]. Needs tianshou.

It learns the problem of `small_problem.py`. After about 30 seconds of one core the last line is about

    step 12032: rate 1.9610 of at most 2.0000 bits, cost 0.0143 of at most 0.1
"""

import random
import sys

import numpy as np
import torch
from small_problem import evaluation, make_env
from torch.distributions import Independent, Normal

try:
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, Collector, CollectStats, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: this example needs Tianshou ({missing}): pip install tianshou") from None

COPIES, ROLLOUT = 8, 32


def main(steps):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (Tianshou draws its minibatches with NumPy's global generator)
    torch.manual_seed(0)
    spaces = make_env(flat=True)
    copies = DummyVectorEnv([lambda: make_env(flat=True)] * COPIES)
    shape, space = spaces.observation_space.shape, spaces.action_space

    def two_layers():
        return Net(state_shape=shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh)

    policy = ProbabilisticActorPolicy(
        actor=ContinuousActorProbabilistic(preprocess_net=two_layers(), action_shape=space.shape, unbounded=True),
        dist_fn=lambda mean_and_std: Independent(Normal(*mean_and_std), 1),
        deterministic_eval=True,
        action_space=space,
        action_scaling=False,
        action_bound_method=None,  # "clip" would clip the logits to [-1, 1], whatever the bounds of the space are
    )
    algorithm = PPO(
        policy=policy,
        critic=ContinuousCritic(preprocess_net=two_layers()),
        optim=AdamOptimizerFactory(lr=3e-3),
        ent_coef=0.0,
        max_grad_norm=0.5,
        gamma=1.0,
    )

    def act(observation):
        with torch.no_grad():
            drawn = policy(Batch(obs=observation[None], info=Batch()))
        return policy.map_action(drawn.dist.mode.numpy())[0]

    print(f"step 0: {evaluation(act, flat=True)}", flush=True)
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector[CollectStats](algorithm, copies, VectorReplayBuffer(COPIES * ROLLOUT, COPIES)),
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=steps,
            collection_step_num_env_steps=COPIES * ROLLOUT,
            update_step_num_repetitions=10,
            verbose=False,
            show_progress=False,
        )
    )
    print(f"step {steps}: {evaluation(act, flat=True)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12_032)
