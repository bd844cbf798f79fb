"""Data sets for offline learning in Minari's format: python examples/minari_dataset.py [EPISODES]. Needs Minari.

Two data sets, `covert-watermark/trained-v0` of the policy that comes with the package and `covert-watermark/random-v0`
of random laws, each of EPISODES episodes of CovertWatermarkEnv-v0 with prompts drawn anew and costs in the infos. They
go where Minari keeps its data sets: MINARI_DATASETS_PATH, or ~/.minari/datasets. Then they are loaded and summed up.
100 episodes of each take about 15 seconds and 10 MB, and print about

    covert-watermark/trained-v0: 100 episodes, mean rate 5.85 bits, mean cost 0.082
    covert-watermark/random-v0: 100 episodes, mean rate 0.7 bits, mean cost 0.48
"""

import sys

import gymnasium as gym
import numpy as np

from agents.training import load_policy

try:
    import minari
    from minari.data_collector import EpisodeBuffer
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: this example needs Minari ({missing}): pip install 'minari[arrow]'") from None

DESCRIPTION = "Hide bits within a total variation of 0.1: rewards in bits, costs in infos['cost']."


def play(env, act, seed):
    """An episode: observations and infos of T + 1 moments, actions and rewards of T blocks."""
    observation, info = env.reset(seed=seed, options={"prompts": env.unwrapped.prompts})
    observations, infos, actions, rewards, done = [observation], [info], [], [], False
    while not done:
        actions.append(act(observation, env.unwrapped))
        observation, reward, done, _, info = env.step(actions[-1])
        observations.append(observation)
        infos.append(info)
        rewards.append(reward)
    return EpisodeBuffer(
        seed=seed,
        observations={name: [each[name] for each in observations] for name in observations[0]},
        actions=actions,
        rewards=rewards,
        terminations=[False] * (len(rewards) - 1) + [True],
        truncations=[False] * len(rewards),
        infos={name: [each[name] for each in infos] for name in infos[0]},
    )


def summary(name):
    """What is in a data set, as it is on the disk."""
    episodes = list(minari.load_dataset(name))
    rates = [float(episode.rewards.sum()) for episode in episodes]
    costs = [float(episode.infos["cost"].sum()) for episode in episodes]
    return f"{name}: {len(episodes)} episodes, mean rate {np.mean(rates):.4f} bits, mean cost {np.mean(costs):.4f}"


def main(episodes):
    env = gym.make("wm_env:CovertWatermarkEnv-v0")
    env.action_space.seed(0)
    policies = {
        "covert-watermark/trained-v0": (load_policy("default"), "constrained PPO, load_policy('default')"),
        "covert-watermark/random-v0": (lambda observation, _: env.action_space.sample(), "uniform laws"),
    }
    for name in set(policies) & set(minari.list_local_datasets()):
        sys.exit(f"error: the data set {name} is there already: minari delete {name}")
    for name, (act, about) in policies.items():
        buffers = [play(env, act, seed) for seed in range(episodes)]
        minari.create_dataset_from_buffers(
            name, buffers, env, eval_env=env, algorithm_name=about, description=DESCRIPTION, data_format="arrow"
        )
        print(summary(name))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
