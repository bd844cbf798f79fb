"""Texts of the scheme `robust` from a toy model over whole words of the embedded tokenizer; they re-tokenise."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from polar.text.keys.key import Key
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.words import as_letters
from polar.text.schemes.robust.writer import Writer
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.tokenizer import TextTokenizer, read_text_tokenizer


@cache
def mini_tokenizer() -> TextTokenizer:
    return read_text_tokenizer(EMBEDDED)


@cache
def letters() -> dict[int, str]:
    return as_letters(mini_tokenizer().strings)


@cache
def word_tokens() -> np.ndarray:
    """Tokens that are a space and lower-case letters."""
    chosen = [token for token, string in letters().items() if string[:1] == " " and string[1:].islower()]
    return np.array(sorted(chosen))


def toy_law(rng: np.random.Generator) -> np.ndarray:
    """A law with a few likely words and many unlikely ones."""
    law = np.zeros(8192)
    law[rng.choice(word_tokens(), 300, replace=False)] = rng.exponential(size=300) ** 4
    return law / law.sum()


def write_words(
    key: Key,
    payload: Sequence[int],
    nonce: int,
    length: int,
    settings: RobustSettings | None = None,
    seed: int = 0,
) -> str:
    rng = np.random.default_rng(seed)
    writer = Writer(key, payload, nonce, settings or RobustSettings(), letters())
    if settings is not None and settings.by_token:
        laws = [toy_law(rng) for _ in range(length)]
        order = rng.permutation(length)
        chosen = {int(place): writer.choose_at(laws[place], int(place)) for place in order}
        return "".join(letters()[chosen[place]] for place in range(length))
    return "".join(letters()[writer.choose(toy_law(rng))] for _ in range(length))
