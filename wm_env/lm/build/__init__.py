"""Building a state tree: `python -m wm_env.lm.build`."""
