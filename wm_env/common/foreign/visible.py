"""Foreign text as a terminal may be shown it.

Names of models and files, metadata, messages and texts may come from anyone. A terminal takes escapes and control
characters for commands, and letters that turn the direction of writing make a line look like another one.
"""

import unicodedata

_CONTROLS = ("Cc", "Cs", "Co", "Zl", "Zp")
_UNASSIGNED = "Cn"
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Letters that turn the direction of others, so that a line can look like another. The marks of Hebrew and Arabic text
(U+200E, U+200F, U+061C) only say on which side a full stop stands.
"""


def is_shown(letter: str) -> bool:
    """Whether a terminal only shows `letter`, one code point.

    Control characters, tab and line end too, are not shown, nor are line and paragraph separators, surrogates, private
    code points, noncharacters, and letters that turn the direction of writing. Spaces of all kinds, joiners and soft
    hyphens are. A code point that this Python's Unicode does not know yet, as of a new emoji, is a letter of a later
    version, and is shown.
    """
    kind = unicodedata.category(letter)
    if kind == _UNASSIGNED:
        return not _is_nonchar(ord(letter))
    return kind not in _CONTROLS and letter not in _DIRECTIONS


def visible(text: str, kept: str = "") -> str:
    r"""`text` with what a terminal would not show spelt out, as in \\x1b, \\u202e and \\n.

    The letters in `kept`, such as line ends, stay as they are all the same.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter in kept or is_shown(letter) else spelt(letter) for letter in text)


def spelt(letter: str) -> str:
    r"""The code of a letter, as in \\u6c34."""
    return letter.encode("unicode_escape").decode("ascii")


def _is_nonchar(code: int) -> bool:
    """The 66 code points that will never be letters: U+FDD0 to U+FDEF, and the last two of every plane."""
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE
