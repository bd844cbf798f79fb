"""Pre-training of a small LLaDA: `python -m wm_env.lm.pretrain`."""
