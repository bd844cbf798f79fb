"""A tiny model of six letters, with the prompts and settings of the trees that tests grow from it."""

import dataclasses
from pathlib import Path
from typing import Any

from tiny_lm import write_lm

from wm_env.lm.pools.settings import PoolSettings

LETTERS = (b"a", b"b", b"c", b"d", b"e", b"f")
PROMPTS = ("ab", "cab", "fade", "face", "a", "ab")


def write_letters(folder: Path) -> Path:
    """The model, each letter a token, in `folder`/letters."""
    return write_lm(folder / "letters", tokens=LETTERS, merges=())


def letters_settings(pool: str = "top", **changes: Any) -> PoolSettings:
    """Four candidates of two letters, in passes of 8."""
    base = PoolSettings(pool, block_length=2, candidates=4, temperature=1.5, beam_width=12, rows=8, key=b"key")
    return dataclasses.replace(base, **changes)
