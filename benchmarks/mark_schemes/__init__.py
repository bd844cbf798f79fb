"""Marks of texts that are read without the model: other people's, after published descriptions, and ours."""
