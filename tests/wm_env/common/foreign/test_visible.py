"""What a terminal is shown of foreign text."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_env.common.foreign.visible import is_shown, visible

# As the Unicode standard lists them, section 23.7: they stay unassigned for ever.
NONCHARS = [*range(0xFDD0, 0xFDF0), *(plane << 16 | end for plane in range(17) for end in (0xFFFE, 0xFFFF))]


def test_letters_of_later_versions_of_unicode_are_shown():
    unknown = [code for code in range(0x1F000, 0x20000) if unicodedata.category(chr(code)) == "Cn"]
    assert len(unknown) > 100
    assert {code for code in unknown if not is_shown(chr(code))} == {0x1FFFE, 0x1FFFF}
    assert all(map(is_shown, "\U0001fae8\U0001fae9\U0001facf"))  # emoji of Unicode 15 and 16


def test_noncharacters_are_not_shown():
    assert len(NONCHARS) == 66
    assert not any(is_shown(chr(code)) for code in NONCHARS)


@pytest.mark.parametrize(
    "letters",
    [
        [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))],
        list("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"),
        ["\ud800", "\udc1b", "\udfff", "\ue000"],
    ],
)
def test_what_could_command_a_terminal_or_mislead_is_spelt_out(letters):
    for letter in letters:
        assert not is_shown(letter)
        spelt = visible(f"a{letter}b")
        assert (spelt[0], spelt[1], spelt[-1]) == ("a", "\\", "b")
        assert spelt.isascii()
        assert spelt.encode().decode("unicode_escape") == f"a{letter}b"


@pytest.mark.parametrize("text", ["", "plain", "läuf水", "\u3000\u00a0\u00ad", "می‌خواهم", "👩‍👩‍👧", "\u200eאב\u200f"])
def test_plain_text_stays_as_it_is(text):
    assert visible(text) == text


@given(text=st.text(st.characters(codec=None)))
def test_all_of_the_outcome_can_be_shown(text):
    assert all(map(is_shown, visible(text)))
    assert visible(visible(text)) == visible(text)
    assert visible(text, kept="\n").split("\n") == [visible(line) for line in text.split("\n")]
