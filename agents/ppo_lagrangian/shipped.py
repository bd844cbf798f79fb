"""Trained policies of marginals in files of a few kilobytes: those that come with the package, and one's own."""

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from agents.common.learner import TrainedPolicy
from agents.ppo_lagrangian.marginal_policy import MarginalPolicy
from wm_env.common.files import write_atomically
from wm_env.common.tensors import FileFormat, read_tensors, write_tensors
from wm_env.env import CovertWatermarkEnv

POLICY_FORMAT = FileFormat(kind="covert-watermark policy of marginals", version=1)
SHIPPED = ("default", "paper")
"""default: trained on `CovertWatermarkEnv-v0` without arguments. paper: on the paper's problem, 50 prompts, Q = 20."""


def read_policy(name: str | Path) -> TrainedPolicy:
    """A shipped policy ("default" or "paper"), or one that `save_policy` wrote to a file.

    It acts on any prompts, tree, number of candidates, labels and blocks; its cost there is near the limit that it was
    trained for, 0.1 for the shipped ones, and has to be measured.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is damaged or holds no policy.
    """
    path = Path(str(resources.files("agents.ppo_lagrangian"))) / "trained" / f"{name}.safetensors"
    path = path if name in SHIPPED else Path(name)
    arrays, meta = read_tensors(path, POLICY_FORMAT)
    try:
        policy = _policy(int(meta["hidden"]))
        policy.tilt_net.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} holds no policy ({type(error).__name__}): save it again") from None

    def act(observation: dict[str, Any], env: CovertWatermarkEnv) -> NDArray[np.float32]:
        seen = {key: torch.as_tensor(value)[None] for key, value in observation.items()}
        with torch.no_grad():
            return policy.play(seen, env)

    return act


def save_policy(policy: MarginalPolicy, path: Path) -> None:
    """Write the actor of a policy to a safetensors file, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    arrays = {key: value.detach().cpu().numpy() for key, value in policy.tilt_net.state_dict().items()}
    write_atomically(path, lambda temporary: write_tensors(temporary, POLICY_FORMAT, arrays, {"hidden": policy.hidden}))


def _policy(hidden: int) -> MarginalPolicy:
    """A policy for one state of one candidate: its networks know no sizes."""
    one = Box(0.0, 1.0, (1,), np.float32)
    spaces = Dict(state_probs=one, cover=one, block=Discrete(1))
    return MarginalPolicy(spaces, Box(-20.0, 20.0, (1,), np.float32), lambda _: 0.0, hidden=hidden)
