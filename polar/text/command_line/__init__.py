"""The commands of `python -m polar`: options, what they do, what they write."""
