"""The message schemes: how bits choose tokens."""
