"""The scheme `parallel`: many tokens filled in at once, read without a model."""
