"""The problem: from a language model to a constrained Markov decision process.

Importing this package registers `CovertWatermarkEnv-v0` and `CovertWatermarkText-v0` and does nothing else: no torch, no files.
Worker processes find the environment by its long id, `wm_env:CovertWatermarkEnv-v0`.
"""

from gymnasium.envs.registration import register

ENV_ID, TEXT_ID = "CovertWatermarkEnv-v0", "CovertWatermarkText-v0"

register(
    id=ENV_ID,
    entry_point="wm_env.env:CovertWatermarkEnv",
    vector_entry_point="wm_env.vector:make_copies",
)
register(
    id=TEXT_ID,
    entry_point="wm_env.text_env:CovertWatermarkText",
    vector_entry_point="wm_env.text_env:CovertWatermarkTextVectorEnv",
)
