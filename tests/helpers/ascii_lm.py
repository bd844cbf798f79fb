"""A tiny random LLaDA that says ASCII only, with tokens that are prefixes of each other."""

from pathlib import Path

from tiny_lm import write_lm

LETTERS = tuple(bytes([value]) for value in b"abcdehinorstwy .,!\n")
WORDS = (b" the", b" they", b" there", b" a", b" an", b" and", b"ing", b" t", b"th", b"he", b"in", b"er", b" was")


def write_ascii_lm(folder: Path, scale: float = 0.5) -> Path:
    """32 tokens; every text of the letters above has a tokenisation, most have many."""
    return write_lm(folder, LETTERS + WORDS, merges=(), scale=scale)
