"""The table of copying in docs/keys.md: each cell is a scheme and what happens to its text on the way.

Every cell is tried on `TEXTS` texts; where the copy can be undone without guessing, all are to be read. The
column of the scheme robust, which reads more, is in `schemes/robust/test_messages.py`.
"""

import html
import textwrap

import pytest
from ascii_lm import LETTERS
from tiny_lm import write_lm

from polar.text.channel import open_channel
from polar.text.decoding import decode
from polar.text.embedding import embed_with_retries
from polar.text.keys.key import Key
from polar.text.schemes.block import Block
from polar.text.schemes.parallel import Parallel
from polar.text.settings import LawSettings, Limits, Settings
from wm_env.lm.models.load import load_lm

KEY = Key(bytes(range(32)))
TEXTS = 6
PROMPT = "the year"
LAW = LawSettings(block_length=4, temperature=1.0)
SETTINGS = {
    "stream": Settings(law=LAW),
    "block": Settings(Block(candidates=16), LAW),
    "parallel": Settings(Parallel(positions=8, hash_bits=2, effective_tokens=8.0, bit_error=0.05), LAW),
}
TOKENS = (*LETTERS, b"th", b"he", b"the", b"in", b"'", b'"', b"&", b"-")
MERGES = ((b"t", b"h"), (b"h", b"e"), (b"th", b"e"), (b"i", b"n"))


def pasted_into_a_document(text):
    return f"Dear all,\n\nplease see below.\n\n{text.strip()}\n\nKind regards\nAda\n"


COPIES = {
    "as it is": str,
    "stripped": str.strip,
    "line end added": lambda text: text + "\n",
    "blank lines and spaces in front": lambda text: "\n\n  " + text,
    "byte-order mark": lambda text: "\ufeff" + text,
    "prompt in front": lambda text: PROMPT + text,
    "prompt and line end in front": lambda text: f"{PROMPT}\n{text.strip()}",
    "CRLF, wrapped at 72": lambda text: textwrap.fill(text.strip(), 72, break_long_words=False, break_on_hyphens=False)
    .replace("\n", "\r\n"),
    "wrapped at 80": lambda text: textwrap.fill(text.strip(), 80, break_long_words=False, break_on_hyphens=False),
    "wrapped at 20": lambda text: textwrap.fill(text.strip(), 20, break_long_words=False, break_on_hyphens=False),
    "wrapped at 20, behind hyphens too": lambda text: textwrap.fill(text.strip(), 20, break_long_words=False),
    "quoted mail": lambda text: textwrap.indent(
        textwrap.fill(text.strip(), 60, break_long_words=False, break_on_hyphens=False), "> "
    ),
    "mail quoted twice": lambda text: textwrap.indent(
        textwrap.fill(text.strip(), 60, break_long_words=False, break_on_hyphens=False), "> > "
    ),
    "spaces doubled": lambda text: text.replace(" ", "  "),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "inside a document": pasted_into_a_document,
    "behind the prompt in a document": lambda text: f"Look: {PROMPT}{text} And so on.",
    "HTML escapes": html.escape,
    "typographic quotes": lambda text: text.replace("'", "’").replace('"', "”"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """Texts of every scheme, each with its own message."""
    lm = load_lm(write_lm(tmp_path_factory.mktemp("lm"), TOKENS, MERGES, scale=0.2))
    texts = {}
    for name, settings in SETTINGS.items():
        channel = open_channel(lm, PROMPT, settings)
        free = iter(range(1000))
        limits = Limits(ending="none")
        texts[name] = [
            (channel, bytes([number]), embed_with_retries(channel, bytes([number]), KEY, free, limits))
            for number in range(TEXTS)
        ]
    return texts


@pytest.mark.parametrize("scheme", list(SETTINGS))
@pytest.mark.parametrize("copy", list(COPIES))
def test_a_copy_is_read(sent, scheme, copy):
    for channel, message, embedded in sent[scheme]:
        copied = COPIES[copy](embedded.text).encode()
        assert decode(channel, copied, KEY, [embedded.nonce]).message == message, copied


@pytest.mark.parametrize("scheme", list(SETTINGS))
def test_a_copy_in_utf_16_is_read(sent, scheme):
    for channel, message, embedded in sent[scheme]:
        assert decode(channel, embedded.text.encode("utf-16"), KEY, [embedded.nonce]).message == message


@pytest.mark.parametrize("scheme", ["stream", "block"])
def test_a_changed_letter_at_the_beginning_is_not(sent, scheme):
    """What cannot be undone: these schemes have no message then, and never a wrong one."""
    for channel, message, embedded in sent[scheme]:
        text = embedded.text.replace(embedded.text[2], "o" if embedded.text[2] != "o" else "a", 1)
        assert decode(channel, text.encode(), KEY, [embedded.nonce]).message in (None, message)
