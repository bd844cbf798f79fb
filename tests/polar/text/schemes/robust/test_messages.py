import html
import re

import pytest
from word_texts import mini_tokenizer, write_words

from polar.__main__ import main
from polar.text.canonical import decoded
from polar.text.decoding import decode_with_tokenizer
from polar.text.framing import BitString
from polar.text.keys.key import Key, save_key
from polar.text.schemes.robust import Robust
from polar.text.schemes.robust.batch import RowReader
from polar.text.schemes.robust.messages import MARKED, message_of, payload_of, plain_forms
from polar.text.schemes.robust.reader import Receiver
from polar.text.settings import Settings

KEY = Key(bytes(range(32)))
MESSAGE = b"4711"


@pytest.fixture(scope="module")
def text():
    return write_words(KEY, payload_of(MESSAGE, 32), 2, 150)


def wrapped(text, width):
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line += f" {word}" if line else word
    return "\n".join([*lines, line])


PASTED = {
    "as it is": str,
    "byte-order mark": lambda text: "\ufeff" + text,
    "CRLF": lambda text: wrapped(text, 60).replace("\n", "\r\n"),
    "stripped": str.strip,
    "space in front": lambda text: "   " + text,
    "lines in front": lambda text: "\n\n" + text + "\n",
    "prompt in front": lambda text: "The mayor said on Monday" + text,
    "prompt and line end in front": lambda text: "The mayor said on Monday\n" + text.strip(),
    "behind the prompt in a document": lambda text: f"Look: The mayor said on Monday{text} And so on.",
    "inside a document": lambda text: f"Dear all,\n\nplease see below.\n\n{text.strip()}\n\nKind regards\nAda\n",
    "wrapped at 20": lambda text: wrapped(text, 20),
    "wrapped at 72": lambda text: wrapped(text, 72),
    "wrapped at 80": lambda text: wrapped(text, 80),
    "quoted": lambda text: "\n".join(f"> {line}" for line in wrapped(text, 72).split("\n")),
    "quoted twice": lambda text: "\n".join(f">> {line}" for line in wrapped(text, 72).split("\n")),
    "HTML": lambda text: f"<p>{html.escape(text)}</p>",
    "Markdown": lambda text: " ".join(f"**{word}**" if i % 9 == 4 else word for i, word in enumerate(text.split())),
    "Markdown, escaped": lambda text: text.replace(" a", r" \*a").replace(" b", r" \_b"),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "typographic": lambda text: text.replace(" the ", " “the” "),
    "double spaces": lambda text: text.replace(" ", "  "),
}

EDITED = {
    "letters changed": lambda text: text.replace("e", "a", 20),
    "words replaced": lambda text: re.sub(r"( \w+){9}", lambda nine: nine[0].rsplit(" ", 1)[0] + " boat", text),
    "words left out": lambda text: re.sub(r"( \w+){12}", lambda dozen: dozen[0].rsplit(" ", 1)[0], text),
    "words added": lambda text: re.sub(r"( \w+){12}", r"\g<0> boat", text),
    "cut at both ends": lambda text: " ".join(text.split()[15:-15]),
}


@pytest.mark.parametrize("pasting", EDITED.values(), ids=EDITED)
def test_edited_texts_are_read(text, pasting):
    """The column robust of the table of copying in docs/keys.md, its last rows."""
    found = decode_with_tokenizer(mini_tokenizer(), pasting(text).encode(), KEY, range(4), Settings(Robust()))
    assert (found.message, found.nonce) == (MESSAGE, 2)


@pytest.mark.parametrize("pasting", PASTED.values(), ids=PASTED)
def test_pasted_texts_are_read(text, pasting):
    """The column robust of the table of copying in docs/keys.md; the pilots alone show the mark too."""
    pasted = pasting(text).encode()
    found = decode_with_tokenizer(mini_tokenizer(), pasted, KEY, range(4), Settings(Robust()))
    assert found.message == MESSAGE
    assert found.nonce == 2
    form = plain_forms(decoded(pasted))[0]
    assert Receiver(KEY, mini_tokenizer(), nonces=range(4)).detect(form).p_value < MARKED


def test_utf_16_is_read(text):
    found = decode_with_tokenizer(mini_tokenizer(), text.encode("utf-16"), KEY, range(4), Settings(Robust()))
    assert found.message == MESSAGE


def test_forms_of_a_text():
    assert plain_forms(" as it is") == [" as it is"]
    assert plain_forms("> a &amp; b\r\n> c") == [" a & b c", "> a &amp; b\n> c"]


def test_messages_and_payloads():
    assert message_of(payload_of(b"\x00\xff", 16)) == b"\x00\xff"
    assert message_of(payload_of(BitString(5, 3), 3)) == BitString(5, 3)
    with pytest.raises(ValueError, match="16 bits: every message"):
        payload_of(b"ab", 32)


def test_no_text_is_no_message():
    found = decode_with_tokenizer(mini_tokenizer(), b"\xff\xfe\x00", KEY, range(4), Settings(Robust()))
    assert (found.message, found.p_value) == (None, 1.0)


def test_rows(text):
    row = RowReader(KEY, mini_tokenizer(), "body", nonces=range(4))({"body": text})
    assert row["payload"] == f"{int.from_bytes(MESSAGE, 'big'):032b}"
    assert row["nonce"] == 2
    assert row["marked"][0][1] > 0.9 * len(text)
    empty = RowReader(KEY, mini_tokenizer(), "body", nonces=range(4))({"body": None})
    assert (empty["payload"], empty["nonce"], empty["p_value"]) == ("", -1, 1.0)


def test_commands(text, tmp_path, capfdbinary):
    key, file = tmp_path / "a.key", tmp_path / "text.txt"
    save_key(KEY, key)
    file.write_text(text)
    assert main(["decode", str(file), "--key", str(key), "--scheme", "robust", "--search", "4"]) == 0
    assert capfdbinary.readouterr().out == MESSAGE
    assert main(["detect", str(file), "--key", str(key), "--search", "4"]) == 0
    output = capfdbinary.readouterr().out.decode()
    assert output.split("\t")[1].split()[5:] == text.split()[5:]
    file.write_text("Nothing to see here, only a plain sentence.")
    assert main(["detect", str(file), "--key", str(key), "--search", "4"]) == 3
    assert main(["decode", str(file), "--key", str(key), "--scheme", "robust", "--search", "4"]) == 3
