"""Gymnasium's vector API, 64 copies in one tensor operation: python examples/vector_api.py [STEPS]."""

import sys

import gymnasium as gym


def main(steps):
    envs = gym.make_vec(
        "wm_env:CovertWatermarkEnv-v0",
        num_envs=64,
        vectorization_mode="vector_entry_point",
        autoreset_mode="SameStep",
    )
    envs.action_space.seed(0)
    envs.reset(seed=0)
    episodes = []
    for _ in range(steps):
        _, _, terminated, _, infos = envs.step(envs.action_space.sample())
        if terminated.any():
            # In SameStep mode the last info of an episode is here, the next episode has begun already.
            episodes.extend(infos["final_info"]["cost_so_far"][terminated])
    print(f"{len(episodes)} random episodes, mean cost {sum(episodes) / len(episodes):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
