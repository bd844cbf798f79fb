"""Training runs: from settings to a run folder with a law, and back to a policy that acts."""

from agents.training.policy import load_policy
from agents.training.run import read_settings, resume_run, start_run, train

__all__ = ["load_policy", "read_settings", "resume_run", "start_run", "train"]
