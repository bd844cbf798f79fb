"""Language models: from a checkpoint and prompts to block distributions."""
