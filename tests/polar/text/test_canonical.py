import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.text.canonical import (
    MOST_FORMS,
    CanonicalRule,
    canonical,
    canonical_forms,
    canonical_prompt,
    decoded,
    is_own_form,
    is_start,
)
from polar.text.vocabulary import Vocabulary

letters = st.text(alphabet="ab é\u0301\u0323\n\t\u00a0\u3000\u1100\u1161\u11a8\ufeffＡ", max_size=12)


@given(letters)
def test_the_canonical_form_is_its_own(text):
    form = canonical(text)
    assert canonical(form) == form
    assert is_own_form(form)
    assert is_own_form(" " + form) or not form


@given(letters, st.sampled_from(["\n", " ", "\r\n", "\t ", "\u00a0"]))
def test_what_copying_does_to_white_space_changes_nothing(text, space):
    copied = "\ufeff" + space + text.replace(" ", space).replace("\n", "\r\n") + space
    assert canonical(copied) == canonical(text)


@given(letters)
def test_a_prompt_keeps_its_inner_white_space(text):
    form = canonical_prompt(text)
    assert canonical_prompt(f"\ufeff {form}\r\n") == form
    assert unicodedata.is_normalized("NFC", form)
    assert canonical_prompt("a  b\r\n\r\nc ") == "a  b\n\nc"


TOKENS = dict(
    enumerate(
        [
            b"a", b" ", b"  ", b" a", b"e", b"\n", b"\xc3", b"\xa9", "é".encode(), "\u0301".encode(), b"\xcc", b"\x81",
            "\u0323b".encode(), "\u1100".encode(), "\u1161".encode(), "\u00a0".encode(), "a\u0301".encode(), b"\xff",
            "\ufeff".encode(), b"a ",
        ]
    )
)  # fmt: skip
VOCABULARY = Vocabulary(TOKENS)
RULE = CanonicalRule(VOCABULARY)


def could_go_on(data):
    """By trying: some bytes of at most three more make it UTF-8 text that is the start of a canonical form."""
    ends = [b"", b"\xa9", b"\x81", b"\x80\x80", b"\xa0", b"\x84\x80", b"\x8c\x81", b"\xbb\xbf"]
    texts = []
    for end in ends:
        try:
            texts.append((data + end).decode())
        except UnicodeDecodeError:
            continue
    return texts


@given(st.lists(st.sampled_from(sorted(TOKENS)), max_size=6))
def test_the_rule_allows_what_keeps_the_form(tokens):
    """Step by step: after an allowed beginning a token is allowed iff the whole characters so far keep the form."""
    text = b""
    for token in tokens:
        allowed = RULE.after(text)
        for rank, string in enumerate(VOCABULARY.strings):
            texts = could_go_on(text + string)
            whole = (text + string).decode("utf-8", "ignore") if texts else ""
            assert allowed[rank] == (bool(texts) and is_start(whole)), (text, string)
        if not allowed[int(np.flatnonzero(VOCABULARY.ids == token)[0])]:
            return
        text += TOKENS[token]


@given(st.lists(st.sampled_from(sorted(TOKENS)), max_size=8))
def test_texts_of_allowed_tokens_are_their_own_form(tokens):
    text = b""
    for token in tokens:
        if RULE.after(text)[int(np.flatnonzero(VOCABULARY.ids == token)[0])]:
            text += TOKENS[token]
    try:
        whole = text.decode()
    except UnicodeDecodeError:
        return
    assert is_own_form(whole) or whole.endswith(" ")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("é".encode(), "é"),
        ("é".encode("utf-8-sig"), "é"),
        ("é".encode("utf-16"), "é"),
        ("é".encode("utf-32"), "é"),
        (b"\x00\x00\xfe\xff" + "é".encode("utf-32-be"), "é"),
        (b"\xfe\xff" + "é".encode("utf-16-be"), "é"),
        (b"\xff", None),
        (b"\xff\xfea", None),
        (b"", ""),
    ],
)
def test_encodings(data, text):
    assert decoded(data) == text


@pytest.mark.parametrize(
    ("data", "forms"),
    [
        ("a\nb", [" a b", "a b"]),
        ("The end a", [" a", "a", " The end a", "The end a"]),
        ("Dear,\n\na b\n\nc", [" Dear, a b c", "Dear, a b c", " a b c", "a b c", " c", "c"]),
        ("> a\n> b", [" > a > b", "> a > b", " a b", "a b"]),
        ("a &amp; b", [" a &amp; b", "a &amp; b", " a & b", "a & b"]),
        ("“a”", [" “a”", "“a”", ' "a"', '"a"']),
    ],
)
def test_forms(data, forms):
    assert canonical_forms(data.encode(), "The end") == [form.encode() for form in forms]


def test_of_a_long_document_the_first_places_are_tried():
    """However often the prompt comes and however many paragraphs there are; ends of the document are counted here."""
    words = " ".join(f"the {number}" for number in range(3000))
    behind = [words[words.index(f" {number} ") :].strip() for number in range(MOST_FORMS)]
    assert canonical_forms(words.encode(), "the") == [form.encode() for rest in behind for form in (" " + rest, rest)]
    pages = [f"page {number}" for number in range(3000)]
    whole = [" ".join(pages[number:]) for number in range(MOST_FORMS)]
    found = canonical_forms("\n\n".join(pages).encode(), "")
    assert found == [form.encode() for rest in whole for form in (" " + rest, rest)]


def test_a_document_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="at most 1000000 are read, give a part of it"):
        canonical_forms(b"a" * 1_000_001, "")
