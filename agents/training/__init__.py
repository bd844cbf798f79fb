"""Training runs: from settings to a run folder with a law."""
