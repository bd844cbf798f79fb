"""Input that no marked text is, on the command line of the scheme robust: one line each, and no long wait."""

import json
import re

import numpy as np
import pytest
from serving import write_small_lm
from word_texts import write_words

from polar.__main__ import main
from polar.text.keys.key import Key, save_key

KEY = Key(bytes(range(32)))
ROBUST = ["--scheme", "robust"]

NO_MARK = {
    "empty": b"",
    "white space": b" \n\t\r\n ",
    "one word": b"word",
    "one letter": b"x",
    "another language": "Der Bürgermeister sprach am Montag über die Brücke. ".encode() * 4,
    "another alphabet": "市长星期一说，这座城市明年没有钱修桥。".encode() * 4,
    "zeros": b"\0" * 300,
    "open emphasis": b"*a _b `c " * 40,
}
"""What can be read, and has no mark."""

REFUSED = {
    "binary": np.random.default_rng(0).bytes(3000),
    "half of UTF-16": "a word".encode("utf-16")[:-1],
    "10 MB": b"a " * 5_000_000,
    "10 MB of quotes": b"> " * 5_000_000,
    "10 MB of emphasis": b"*a " * 3_400_000,
}
"""What cannot."""


@pytest.fixture
def key(tmp_path):
    save_key(KEY, tmp_path / "a.key")
    return tmp_path / "a.key"


def read(command, key, data, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(data)
    return main([command, str(file), "--key", str(key), "--search", "2", *(ROBUST if command == "decode" else [])])


@pytest.mark.parametrize("command", ["decode", "detect"])
@pytest.mark.parametrize("data", NO_MARK.values(), ids=NO_MARK)
def test_texts_without_a_mark_have_none(command, data, key, tmp_path, capfd):
    assert read(command, key, data, tmp_path) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert ("no message: " if command == "decode" else "not marked") in err


@pytest.mark.parametrize("command", ["decode", "detect"])
@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_is_no_text_is_refused(command, data, key, tmp_path, capfd):
    code = read(command, key, data, tmp_path)
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    if len(data) > 200_000:
        assert (code, len(lines)) == (2, 1)
        assert lines[0].endswith("at most 200000 are read, give a part of it")
    else:
        assert (code, len(lines)) == (2, 1)
        assert re.search("is not UTF-(8|16) text .* save it as UTF-8", lines[0])


def test_a_text_of_another_key_has_no_message(key, tmp_path, capfd):
    text = write_words(Key(bytes(32)), [1, 0] * 16, 0, 150).encode()
    assert read("decode", key, text, tmp_path) == 3
    assert read("detect", key, text, tmp_path) == 3
    assert capfd.readouterr().out == ""


@pytest.fixture(scope="module")
def small_lm(tmp_path_factory):
    return write_small_lm(tmp_path_factory.mktemp("lm") / "lm")


@pytest.mark.parametrize(
    ("prompt", "message", "says"),
    [
        (b"\xff\xfe\x00", b"x", "not UTF-8"),
        (np.random.default_rng(0).bytes(3000), b"x", "not UTF-8"),
        (b"a" * 10_000_000, b"x", "more than 1,048,576 bytes"),
        (b"", b"", "0 bits: every message"),
        (b"the", b"xy", "16 bits: every message"),
        (b"the", b"x" * 1_000_000, "8000000 bits: every message"),
    ],
    ids=["half of UTF-16", "binary", "10 MB", "empty message", "long message", "very long message"],
)
def test_what_cannot_be_written_is_refused_in_a_line(small_lm, prompt, message, says, key, tmp_path, capfd):
    (tmp_path / "prompt").write_bytes(prompt)
    (tmp_path / "message").write_bytes(message)
    options = ["--prompt-file", str(tmp_path / "prompt"), "--message-file", str(tmp_path / "message")]
    options += ["--model", str(small_lm), "--payload-bits", "8", "--tokens", "120", "--temperature", "1"]
    code = main(["embed", "--key", str(key), *ROBUST, *options])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert says in line
    assert not (tmp_path / "a.key.nonces").exists() or not json.loads((tmp_path / "a.key.nonces").read_text())["used"]


@pytest.mark.parametrize("prompt", [b"", b"the", "Der Bürgermeister".encode(), b"\xef\xbb\xbfthe year"])
def test_any_text_is_a_prompt(small_lm, prompt, key, tmp_path, capfdbinary):
    (tmp_path / "prompt").write_bytes(prompt)
    options = ["--prompt-file", str(tmp_path / "prompt"), "--message", "x", "--model", str(small_lm)]
    options += ["--payload-bits", "8", "--tokens", "120", "--temperature", "1"]
    assert main(["embed", "--key", str(key), *ROBUST, *options]) == 0
    (tmp_path / "text").write_bytes(capfdbinary.readouterr().out)
    options = ["--model", str(small_lm), "--payload-bits", "8", "--search", "4"]
    assert main(["decode", str(tmp_path / "text"), "--key", str(key), *ROBUST, *options]) == 0
    assert capfdbinary.readouterr().out == b"x"
