"""What happens to a text before it is read: words replaced, deleted, added, sentences moved, parts cut off."""

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
from mark_texts import MarkText, text_of, tokenizer

from wm_env.lm.prompts import read_prompts

INSIDE = 2000
"""Tokens of the unmarked text that a marked one is mixed into."""

INSIDE_NAME = f"inside {INSIDE} tokens"


@dataclass(frozen=True)
class Edit:
    """An edit of a text, word by word and as a whole.

    Attributes:
        name: as in the tables.
        replaced, deleted, added: shares of words. Words come from the distinct words of the shipped prompts.
        moved: sentences stand in a random order.
        cropped: share of the words cut off, half of it at each end.
        inside: the text stands at a random place between two parts of an unmarked one.
        paraphrased: the model's own paraphrase takes the place of the text.
    """

    name: str
    replaced: float = 0.0
    deleted: float = 0.0
    added: float = 0.0
    moved: bool = False
    cropped: float = 0.0
    inside: bool = False
    paraphrased: bool = False


EDITS = (
    Edit("none"),
    Edit("5 % replaced", replaced=0.05),
    Edit("10 % replaced", replaced=0.1),
    Edit("20 % replaced", replaced=0.2),
    Edit("30 % replaced", replaced=0.3),
    Edit("40 % replaced", replaced=0.4),
    Edit("10 % deleted, 10 % added", deleted=0.1, added=0.1),
    Edit("sentences moved", moved=True),
    Edit("half cut off", cropped=0.5),
    Edit("paraphrased", paraphrased=True),
    Edit(INSIDE_NAME, inside=True),
)

EDIT_BY_NAME = {edit.name: edit for edit in EDITS}


@cache
def word_list() -> list[str]:
    """The distinct words of the shipped prompts."""
    return sorted(set(re.findall("[A-Za-z]+", "\n".join(read_prompts("shipped")))))


def edited(text: MarkText, edit: Edit, document: str) -> tuple[str, range]:
    """An edited text, and where in it the marked text stands; `document` is what it is mixed into."""
    rng = np.random.default_rng([text.number, 7])
    plain = text_of(text.paraphrase if edit.paraphrased else text.tokens)
    if edit.moved:
        sentences = re.findall(r"\S.*?(?:[.!?][\"')]*(?=\s)|\Z)", plain, re.DOTALL)
        plain = " " + " ".join(sentences[number] for number in rng.permutation(len(sentences)))
    if edit.cropped:
        words = re.findall(r"\s*\S+", plain)
        cut = round(edit.cropped / 2 * len(words))
        plain = "".join(words[cut : len(words) - cut])
    if edit.replaced or edit.deleted or edit.added:
        plain = _with_words(plain, edit, rng)
    if not edit.inside:
        return plain, range(len(plain))
    words = re.findall(r"\s*\S+", document)
    place = int(rng.integers(0, len(words)))
    before, behind = "".join(words[:place]), "".join(words[place:])
    return f"{before} {plain.strip()}{behind}", range(len(before) + 1, len(before) + 1 + len(plain.strip()))


def _with_words(text: str, edit: Edit, rng: np.random.Generator) -> str:
    parts = []
    for word in re.findall(r"\s*\S+|\s+$", text):
        chance = rng.random()
        if rng.random() < edit.added:
            parts.append(f" {rng.choice(word_list())}")
        if chance < edit.deleted:
            continue
        blank = word[: len(word) - len(word.lstrip())]
        parts.append(blank + rng.choice(word_list()) if chance < edit.deleted + edit.replaced else word)
    return "".join(parts)


def documents(texts: list[MarkText]) -> list[str]:
    """An unmarked text of `INSIDE` tokens for each number: plain texts of other numbers, one after the other."""
    count = -(-INSIDE // len(texts[0].tokens))
    long = []
    for number in range(len(texts)):
        others = [texts[(number + 1 + other) % len(texts)] for other in range(count)]
        tokens = [token for other in others for token in other.tokens]
        long.append(text_of(tokens[:INSIDE]))
    return long


def overlap(parts: list[tuple[int, int]], span: range) -> float:
    """Characters in both over characters in either."""
    common = sum(max(0, min(end, span.stop) - max(start, span.start)) for start, end in parts)
    return common / (len(span) + sum(end - start for start, end in parts) - common)


def human_windows(text: str, length: int, count: int) -> list[str]:
    """`count` windows of about `length` tokens of a text that people wrote, one behind the other."""
    words = re.findall(r"\s*\S+", text)
    per_word = len(tokenizer().encode(text[:200_000])) / len(re.findall(r"\S+", text[:200_000]))
    size = round(length / per_word)
    windows = ["".join(words[start : start + size]) for start in range(0, len(words) - size, size)]
    return windows[:count]
