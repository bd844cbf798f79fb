"""The policy of a finished run, to act in the environment or to go on with."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.common.checkpoints import under
from agents.common.learner import TrainedPolicy
from agents.common.runs import RunFolder, load_checkpoint, read_config
from agents.common.table import agent_of
from agents.training.run import objective_of, problem_of, read_settings
from wm_env.env import CovertWatermarkEnv
from wm_env.law import JointLaw, load_law
from wm_env.spaces import join_laws


def load_policy(source: Path | str) -> TrainedPolicy:
    """The best policy of a run of train.py, or one that comes with the package.

    A policy that generalises, PPO's, is a function of what it observes: it acts on prompts that it never saw too, as
    many as it likes. The others are tables of the run's own tree.

    Args:
        source: a run folder, "default" or "paper" (`agents.ppo_lagrangian.shipped`), or a file with a policy.

    Raises:
        FileNotFoundError: no run, or one without a law.
        ValueError: a file of the run is damaged, or its settings were changed.
    """
    folder = RunFolder(Path(source))
    if not folder.path.is_dir():
        # Imported only here: runs of other agents do without Stable-Baselines3.
        from agents.ppo_lagrangian.shipped import read_policy

        return read_policy(source)
    settings = read_settings(folder.path)
    problem = problem_of(folder, settings, read_config(folder)["tree_fingerprint"])
    learner = agent_of(settings.agent).learner(problem, objective_of(settings, problem), settings)
    if not learner.generalises:
        return table_policy(load_law(folder.law, problem.tree))
    tensors, _ = load_checkpoint(folder)
    best = under("best", tensors)
    learner.restore({name: value for name, value in tensors.items() if not name.startswith("best.")}, folder.checkpoint)
    if best:
        learner.load(best)
    return learner.act


def table_policy(law: JointLaw) -> TrainedPolicy:
    """The policy that plays a law block by block; rows of padded states are uniform."""

    def act(observation: dict[str, Any], env: CovertWatermarkEnv) -> NDArray[np.float32]:
        block = law.blocks[int(observation["block"])]
        states = len(observation["state_probs"])
        if len(block.state_probs) > states:
            raise ValueError(
                f"{states} states: the law of this block has {len(block.state_probs)}; make its environment"
            )
        p_label, p_candidate = block.p_label.numpy(), block.p_candidate.numpy()
        action = np.empty((states, block.labels, 1 + p_candidate.shape[2]), dtype=np.float32)
        action[..., 0], action[..., 1:] = 1 / block.labels, 1 / p_candidate.shape[2]
        action[: len(p_label)] = join_laws(p_label, p_candidate)
        return action

    return act
