"""The tape: how a key's shared randomness is laid out over its texts, and what a token at each place depends on.

A place on the tape is a word and a slot: the k-th token of the w-th word of a text has slot k. A word that is replaced
by a longer one moves no other word, so most edits leave every other token where it was. All texts under one key stand
one after the other: the text of nonce k begins at word `SEGMENT` k of the tape, and a text of more than `SEGMENT` words
takes the following nonces as well. Nonces are below `NONCES`, and none is used twice, so no place is.

Every place has a *level* t in 0..K+1, where K is the length of the payload in bits:

* level 0: the *pilots*. Tokens there depend on no payload. The receiver finds the text on the tape by them.
* level 1..K: the token depends on the first t bits of the payload.
* level K + 1: the token depends on all bits.

Levels K and K + 1 are the *check*: the receiver does not look at them before it has candidates for the payload.

Levels are spread by a golden-ratio sequence, so every stretch of a text has its share of each. There is no length to
agree on: a longer text says more about every bit.
"""

import numpy as np

from wm_env.common.arrays import Ints

SEGMENT = 512
"""Words of one nonce."""

SLOTS = 16
"""Tokens of a word; a longer one goes on as the next word."""

NONCES = 1 << 26
"""Nonces of a key: so far a word and a slot have 40 bits, as many as the shared randomness has room for."""

PILOTS = 0.2
"""Share of places of level 0."""

CHECKS = 0.42
"""Share of places of level K + 1."""

TAIL = 0.25
"""Share of the places of levels 1 to K that have level K."""

_WORD_STEP = (5**0.5 - 1) / 2
_SLOT_STEP = 2**0.5 - 1


def levels(payload_bits: int) -> Ints:
    """The level of each place of a segment, shape (SEGMENT, SLOTS)."""
    words, slots = np.arange(SEGMENT)[:, None], np.arange(SLOTS)
    point = (words * _WORD_STEP + slots * _SLOT_STEP) % 1.0
    spread = (point - PILOTS) / (1 - PILOTS - CHECKS)
    level = np.where(
        spread < 1, np.minimum(1 + np.floor(spread / (1 - TAIL) * payload_bits), payload_bits), payload_bits + 1
    )
    return np.where(spread < 0, 0, level).astype(np.int64)


def nonces_of(nonce: int, words: int) -> range:
    """The nonces that a text of so many words uses up, at least one."""
    return range(nonce, nonce + max(1, -(-words // SEGMENT)))
