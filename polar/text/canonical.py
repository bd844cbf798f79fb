"""The canonical form of texts and prompts: what is left of them after copying, mail and editors.

Of a text: Unicode normal form C, no byte-order mark, and one space for every run of white space, line ends included;
none at either end. Both ends read this form. Most texts begin with a space, which copying loses, so a text may have one
space in front of its canonical form, and the receiver tries both.

The sender writes only texts that are their own canonical form (`LawSettings.form`). That is a public condition on the
model's law: before each token, those that would leave the form are left out. A text x then has the probability
p(x) / prod_i k_i, where k_i is the mass that was kept before token i. So the total variation from the model's own law
is 1 - E[prod_i k_i], the mean over the texts that are written: every text gives an unbiased estimate of it.

Of a prompt: normal form C, no byte-order mark, line ends as \\n, no white space at either end; inside it stays.
"""

import codecs
import html
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polar.text.vocabulary import Vocabulary
from wm_env.common.foreign.encodings import text_of

BYTE_ORDER_MARK = "\ufeff"

_PARAGRAPH = re.compile(r"\n\s*\n")
QUOTE = re.compile(r"^[ \t]*(?:>[ \t]?)+", re.MULTILINE)
"""Marks of quotation in front of the lines of a mail."""
_BROKEN = re.compile(r"(?<=\w)-[ \t]*\n[ \t]*(?=\w)")
"""A hyphen at the end of a line, which wrapping put there inside a word with a hyphen."""
TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "\u2011": "-"})
"""What word processors put in the place of plain characters, and those."""

MOST_FORMS = 64
"""Places of a document where a text may begin, at most."""

MOST_CHARACTERS = 1_000_000
"""Characters of a document, at most: every place where a text may begin is kept with all that follows."""


def canonical(text: str) -> str:
    """The canonical form of a text."""
    return " ".join(unicodedata.normalize("NFC", text.replace(BYTE_ORDER_MARK, "")).split())


def canonical_prompt(prompt: str) -> str:
    """The canonical form of a prompt."""
    plain = unicodedata.normalize("NFC", prompt.replace(BYTE_ORDER_MARK, ""))
    return plain.replace("\r\n", "\n").replace("\r", "\n").strip()


def is_own_form(text: str) -> bool:
    """Whether a text is its own canonical form, or that with a space in front."""
    return text.removeprefix(" ") == canonical(text)


def is_start(text: str) -> bool:
    """Whether a text that is its own canonical form may begin like this."""
    plain = "  " not in text and all(letter == " " or not letter.isspace() for letter in text)
    return plain and BYTE_ORDER_MARK not in text and unicodedata.is_normalized("NFC", text)


def decoded(data: bytes) -> str | None:
    """A received file as text: UTF-8, or what its byte-order mark says; None if it is no text."""
    try:
        return text_of(data)
    except ValueError:
        return None


def check_length(text: str, most: int) -> None:
    """Raise ValueError for a text of more than `most` characters."""
    if len(text) > most:
        raise ValueError(f"a text of {len(text)} characters: at most {most} are read, give a part of it")


def canonical_forms(data: bytes, prompt: str) -> list[bytes]:
    """What the sender may have written, if `data` is a copy of it: the text behind the prompt, the whole, and what
    begins at each paragraph; with HTML escapes, quotation marks of mail, breaks behind hyphens and typographic quotes
    undone, where there are any; each with a space in front and without.

    Args:
        data: the file.
        prompt: in canonical form; empty if it is not known.

    Raises:
        ValueError: the document is longer than `MOST_CHARACTERS`.
    """
    text = decoded(data)
    if text is None:
        return []
    check_length(text, MOST_CHARACTERS)
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    variants = [plain]
    for undo in (
        html.unescape,
        lambda text: QUOTE.sub("", text),
        lambda text: _BROKEN.sub("-", text),
        lambda text: text.translate(TYPOGRAPHIC),
    ):
        variants += [other for variant in variants if (other := undo(variant)) not in variants]
    found: dict[str, None] = {}  # in the order in which they are tried
    for start in _starts(variants, canonical(prompt)):
        found.setdefault(start)
        if len(found) == MOST_FORMS:
            break
    return [form.encode() for start in found for form in (f" {start}", start)]


def _starts(variants: list[str], front: str) -> Iterator[str]:
    """The texts of `canonical_forms`, the likeliest first; a document may have very many."""
    for variant in variants:
        whole = canonical(variant)
        if front:
            yield from (canonical(whole[match.end() :]) for match in re.finditer(re.escape(front), whole))
        yield whole
    for variant in variants:
        yield from (canonical(variant[match.end() :]) for match in _PARAGRAPH.finditer(variant))


class CanonicalRule:
    """Which tokens a text that is its own canonical form may go on with."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        starts = [_whole(string) for string in vocabulary.strings]
        self._strings = vocabulary.strings
        self._fits = np.array([start is not None and is_start(start[0]) for start in starts])
        self._spaced = np.array([string.startswith(b" ") for string in vocabulary.strings])
        # A mark may join the letter before it, and a continuation byte ends a character under way.
        self._joining = [rank for rank, start in enumerate(starts) if start is not None and _joins(start[0])]
        self._continuing = [rank for rank, string in enumerate(self._strings) if 0x80 <= string[0] < 0xC0]
        self.allowed = lru_cache(maxsize=1 << 12)(self._allowed)

    def after(self, text: bytes) -> NDArray[np.bool_]:
        """A mark for every token by rank: whether `text`, the beginning of such a text, may go on with it."""
        return self.allowed(_last_letters(text))

    def _allowed(self, end: bytes) -> NDArray[np.bool_]:
        letters, pending = _whole(end) or ("", b"")
        if pending:
            allowed = np.zeros(len(self._strings), dtype=np.bool_)
            checked = self._continuing
        else:
            allowed = self._fits & ~self._spaced if letters.endswith(" ") else self._fits.copy()
            checked = self._joining
        for rank in checked:
            longer = _whole(end + self._strings[rank])
            allowed[rank] = longer is not None and is_start(longer[0])
        allowed.flags.writeable = False
        return allowed


def _whole(data: bytes) -> tuple[str, bytes] | None:
    """The whole characters of `data`, and the bytes of the one under way; None if it is no beginning of UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        text = decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return text, decoder.getstate()[0]


def _joins(text: str) -> bool:
    """Whether the first letter may join the one before it in normal form C: marks, and vowels and finals of Hangul."""
    return text[:1] > "\x7f" and (unicodedata.category(text[0])[0] == "M" or "\u1160" <= text[0] <= "\u11ff")


def _last_letters(text: bytes) -> bytes:
    """The end of `text` that normal form C may still change: from the last letter on that is no mark."""
    for length in range(1, len(text) + 1):
        if 0x80 <= text[-length] < 0xC0:
            continue
        whole = _whole(text[-length:])
        if whole is not None and whole[0] and not _joins(whole[0]):
            return text[-length:]
    return text
