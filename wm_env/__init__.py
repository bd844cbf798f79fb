"""The problem: from a language model to a constrained Markov decision process.

Importing this package registers `CovertWatermarkEnv-v0` and `CovertWatermarkText-v0` and does nothing else: no torch,
no files. Where a module of this program is run as a command, `python -m`, Ctrl-C ends the process at once from here on,
until the command has its imports. Worker processes find the environment by its long id,
`wm_env:CovertWatermarkEnv-v0`.
"""

import os
import signal
import sys
from itertools import pairwise

_STARTED = next((module for flag, module in pairwise(sys.orig_argv) if flag == "-m"), "")
_IS_COMMAND = _STARTED.partition(".")[0] in ("wm_env", "agents", "polar")
if _IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until the imports of a command are done, Ctrl-C ends the process with a line and no traceback.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

from gymnasium.envs.registration import register  # noqa: E402  (importing it takes a while)

ENV_ID, TEXT_ID = "CovertWatermarkEnv-v0", "CovertWatermarkText-v0"
TASKS = {
    "CovertWatermarkEnv-Small-v0": {"prompts": 4, "candidates": 8, "labels": 8},
    "CovertWatermarkEnv-Default-v0": {"prompts": 50, "candidates": 20, "labels": 64},
    "CovertWatermarkEnv-Paper-v0": {"prompts": 50, "candidates": 20, "labels": 256},
}
"""Named tasks on the shipped tree of two blocks, as in `train.py --preset small`, `default` and `paper`."""
_SINGLE, _VECTOR = "wm_env.env:CovertWatermarkEnv", "wm_env.vector:make_copies"

register(id=ENV_ID, entry_point=_SINGLE, vector_entry_point=_VECTOR)
for _name, _arguments in TASKS.items():
    # One more than there are blocks, so that the last step is terminated and not truncated as well.
    register(id=_name, entry_point=_SINGLE, vector_entry_point=_VECTOR, kwargs=_arguments, max_episode_steps=3)
register(
    id=TEXT_ID,
    entry_point="wm_env.texts.env:CovertWatermarkText",
    vector_entry_point="wm_env.texts.env:CovertWatermarkTextVectorEnv",
)
