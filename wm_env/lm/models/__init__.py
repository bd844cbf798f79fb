"""Masked language models: LLaDA, Dream and encoders of transformers, loaded as data."""
