"""PPO of skrl, the cost as a fixed penalty: python examples/skrl_ppo.py [STEPS]. Needs skrl.

It learns the problem of `small_problem.py`. After about 20 seconds of one core the last line is about

    step 12032: rate 1.9344 of at most 2.0000 bits, cost 0.0168 of at most 0.1
"""

import sys

import gymnasium as gym
import torch
from small_problem import evaluation, make_env
from torch import nn

try:
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils import set_seed
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: this example needs skrl ({missing}): pip install skrl") from None

COPIES, ROLLOUT = 8, 32


def two_layers(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Actor(GaussianMixin, Model):
    def __init__(self, observations, actions):
        Model.__init__(self, observation_space=observations, action_space=actions)
        GaussianMixin.__init__(self)
        self.net = two_layers(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    def __init__(self, observations, actions):
        Model.__init__(self, observation_space=observations, action_space=actions)
        DeterministicMixin.__init__(self)
        self.net = two_layers(self.num_observations, 1)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def main(steps):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    set_seed(0)
    # In SameStep mode no step of the memory is a mere reset.
    env = wrap_env(gym.vector.SyncVectorEnv([lambda: make_env(flat=True)] * COPIES, autoreset_mode="SameStep"))
    spaces = env.observation_space, env.action_space
    actor = Actor(*spaces)
    settings = PPO_CFG(rollouts=ROLLOUT, learning_epochs=10, mini_batches=4, learning_rate=3e-3, discount_factor=1.0)
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0  # else it writes to runs/
    agent = PPO(
        models={"policy": actor, "value": Critic(*spaces)},
        memory=RandomMemory(memory_size=ROLLOUT, num_envs=COPIES),
        observation_space=spaces[0],
        action_space=spaces[1],
        cfg=settings,
    )

    def act(observation):
        with torch.no_grad():
            return actor.net(torch.as_tensor(observation)).clamp(-5, 5).numpy()

    print(f"step 0: {evaluation(act, flat=True)}", flush=True)
    trainer = SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": -(-steps // COPIES), "disable_progressbar": True, "headless": True}
    )
    trainer.train()
    print(f"step {-(-steps // COPIES) * COPIES}: {evaluation(act, flat=True)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12_032)
