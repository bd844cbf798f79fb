"""Text to tokens from a file alone: nothing that else stands in the file, or happens to other objects, changes it."""

import json

import pytest
from relative_files import encoder_tokenizer, word_piece_tokenizer
from repository import ROOT
from tiny_lm import tokenizer_of, write_lm
from transformers.convert_slow_tokenizer import bytes_to_unicode

from polar.text.command_line.output import is_plain_text
from wm_env.lm.models.checkpoint_tokenizer import checkpoint_tokenizer, read_tokenizer
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.models.load import load_lm
from wm_env.lm.text import text_tokenizer, tokenizer_fingerprint
from wm_env.lm.tokenizer import TextTokenizer, byte_alphabet, read_text_tokenizer

TOKENS = (b"a", b"b", b" ", b"ab", b"<", b"s", b">", b"  ")
MERGES = ((b"a", b"b"), (b" ", b" "))


def serialised(**changes):
    """A small tokenizer, with other entries in its file."""
    values = json.loads(tokenizer_of(TOKENS, MERGES).backend_tokenizer.to_str())
    for name, value in changes.items():
        if name in values:
            values[name] = value
        else:
            values["model"][name] = value
    return json.dumps(values)


def added(content, number=8, special=False):
    fields = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": number, "content": content, **fields}


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
        {"padding": {
            "strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "a",
        }},
        {"added_tokens": [added("<s>", special=True)]},
        {"added_tokens": [added("<s>")]},
        {"added_tokens": [added("  ")]},
        {"dropout": 0.0},
    ],
    ids=["truncation", "padding", "special token", "added token", "blanks", "no dropout"],
)  # fmt: skip
def test_what_else_a_file_says_changes_nothing(changes):
    plain, other = TextTokenizer(serialised()), TextTokenizer(serialised(**changes))
    for text in ("abab<s>a  b", "", "<s>", "  a", "ab" * 30):
        assert other.encode(text) == plain.encode(text)
        assert b"".join(plain.strings[token] for token in plain.encode(text)) == text.encode()


def test_random_tokenisation_is_refused():
    with pytest.raises(ValueError, match=r"BPE dropout 0.1, .*: set \"dropout\" to null"):
        TextTokenizer(serialised(dropout=0.1))


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"model": 5}', '{"model": {}}', "\0"])
def test_what_is_no_tokenizer_is_one_line(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer.json: ") as refused:
        read_text_tokenizer(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("entry", ["水", "a b", "\u2581a", "\x00"])
def test_an_entry_that_is_not_made_of_bytes_is_named(entry):
    values = json.loads(serialised())
    values["model"]["vocab"][entry] = 50
    with pytest.raises(ValueError, match="is not made of bytes") as refused:
        _ = TextTokenizer(json.dumps(values)).strings
    assert repr(entry) in str(refused.value)


def test_the_alphabet_is_that_of_gpt_2():
    assert byte_alphabet() == {letter: byte for byte, letter in bytes_to_unicode().items()}


def test_others_who_change_a_tokenizer_change_no_texts(tmp_path):
    lm = load_lm(write_lm(tmp_path / "lm", TOKENS, MERGES))
    expected = lm.encode("abab")
    lm.tokenizer.backend_tokenizer.enable_truncation(1)
    lm.tokenizer.backend_tokenizer.enable_padding(length=9)
    lm.tokenizer(["ab"], truncation=True, max_length=1)
    assert lm.encode("abab") == expected
    again = load_lm(tmp_path / "lm")
    again.tokenizer.backend_tokenizer.enable_truncation(1)
    assert again.encode("abab") == expected, "also where it was changed before the first use"


def test_what_needs_no_transformers_is_what_transformers_reads(tmp_path, monkeypatch):
    folders = [EMBEDDED, write_lm(tmp_path / "lm", TOKENS, MERGES), write_lm(tmp_path / "named", TOKENS, MERGES)]
    for name, tokenizer in {"encoder": encoder_tokenizer(), "words": word_piece_tokenizer(("a",))}.items():
        tokenizer.save_pretrained(tmp_path / name)
        folders.append(tmp_path / name)
    settings = tmp_path / "named" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "bos_token": "<|new|>"}))
    for folder in folders:
        theirs, ours = read_tokenizer(folder), checkpoint_tokenizer(folder)
        assert ours.fingerprint == tokenizer_fingerprint(theirs)
        assert ours.text.ids == set(theirs.get_vocab().values())
        assert ours.text.added == theirs.added_tokens_decoder.keys()
        assert ours.text.content == text_tokenizer(theirs).content

    def refuse(folder):
        raise AssertionError("transformers was used")

    monkeypatch.setattr("wm_env.lm.models.checkpoint_tokenizer.read_tokenizer", refuse)
    for folder in folders[:2]:
        checkpoint_tokenizer(folder)
    with pytest.raises(AssertionError):  # its new token stands in the settings alone
        checkpoint_tokenizer(folders[2])


def test_the_embedded_model_s_tokenizer_is_read_alike_with_and_without_transformers():
    assert read_text_tokenizer(ROOT / "wm_env/lm/mini").content == load_lm("mini").text_tokenizer.content


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("grüße\n\t", True),
        ("a\u3000b\u00a0c", True),
        ("👩\u200d💻", True),
        ("\U0001fae8 of Unicode 15, \U0001fae9 of 16", True),
        ("\U0001faff of none yet", True),
        ("\ufdd0", False),
        ("\U0001fffe", False),
        ("می\u200cخواهم", True),
        ("soft\u00adhyphen", True),
        ("水\u2028", False),
        ("\x1b[2J", False),
        ("\u05e9\u05dc\u05d5\u05dd\u200f!", True),
        ("a\u202eb", False),
        ("\u2066a", False),
        ("over\rwritten", False),
        ("\x9b2J", False),
        ("\x7f", False),
    ],
)
def test_what_a_terminal_is_shown(text, plain):
    assert is_plain_text(text.encode()) == plain


def test_an_id_that_is_no_number_is_named(tmp_path):
    values = json.loads((ROOT / "wm_env/lm/mini/tokenizer.json").read_text())
    values["added_tokens"][0]["id"] = "x"
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"added_tokens.*id"):
        read_text_tokenizer(tmp_path)
