"""PPO of Ray RLlib's new API stack, the cost as a fixed penalty: python examples/rllib_ppo.py [STEPS]. Needs Ray.

It learns the problem of `small_problem.py`. After about 45 seconds of one core the last line is about

    step 12032: rate 1.9544 of at most 2.0000 bits, cost 0.0150 of at most 0.1
"""

import sys

import torch
from small_problem import evaluation, make_env

try:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
    from ray.tune.registry import register_env
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: this example needs Ray RLlib ({missing}): pip install 'ray[rllib]'") from None

ROLLOUT = 256


class Costs(RLlibCallback):
    """RLlib looks at rewards only: the cost of an episode is in its last info."""

    def on_episode_end(self, *, episode, metrics_logger, **_):
        metrics_logger.log_value("episode_cost_mean", episode.get_infos(-1)["cost_so_far"], reduce="mean", window=100)


def main(steps):
    # The networks are small: a second thread costs more than it gains.
    torch.set_num_threads(1)
    register_env("small-problem", lambda _: make_env(flat=True))
    config = (
        PPOConfig()
        .environment("small-problem", normalize_actions=False, clip_actions=True)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .callbacks(Costs)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], free_log_std=True))
        .training(
            train_batch_size_per_learner=ROLLOUT,
            minibatch_size=64,
            num_epochs=10,
            lr=[[0, 3e-3], [steps, 0.0]],
            gamma=1.0,
            grad_clip=0.5,
            clip_param=0.2,
            use_kl_loss=False,
        )
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()

    def act(observation):
        with torch.no_grad():
            out = algorithm.get_module().forward_inference({"obs": torch.as_tensor(observation)[None]})
        mean, _ = out["action_dist_inputs"][0].chunk(2)
        return mean.clamp(-5, 5).numpy()

    print(f"step 0: {evaluation(act, flat=True)}", flush=True)
    for done in range(ROLLOUT, steps + ROLLOUT, ROLLOUT):
        seen = algorithm.train()[ENV_RUNNER_RESULTS]["episode_cost_mean"]
        if done % (8 * ROLLOUT) == 0 or done >= steps:
            print(f"sampled episodes cost {seen:.4f}")
            print(f"step {done}: {evaluation(act, flat=True)}", flush=True)
    algorithm.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12_032)
