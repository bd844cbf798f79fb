"""Every kind of model through the two commands that need one: a tree, and a message in a text and back."""

from pathlib import Path

import pytest
from ascii_lm import LETTERS, WORDS
from relative_files import FIRST_BYTE, dream_tensors, encoder_tokenizer, write_dream, write_encoder
from test_encoder import random_network
from tiny_lm import tokenizer_of

import polar.__main__ as command
from wm_env.lm import build
from wm_env.tree import load_tree

TOKENS = LETTERS + WORDS
ROWS = 261  # more than there are tokens: the others have no text and are never chosen


@pytest.fixture(scope="module", params=["dream", "bert", "roberta", "modernbert"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    if request.param == "dream":
        write_dream(place, dream_tensors(), mask_token_id=len(TOKENS) + 1)
        (place / "tokenizer.json").unlink()
        tokenizer_of(TOKENS).save_pretrained(place)
        return place
    return write_encoder(place, random_network(request.param), encoder_tokenizer(TOKENS))


def test_a_tree_is_built(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_text("the tide is in\nan other day\n")
    arguments = ["--model", folder, "--prompts", tmp_path / "prompts.txt", "--out", tmp_path / "tree.safetensors"]
    arguments += ["--candidates", "3", "--block-length", "4", "--beam-width", "6", "--temperature", "2"]
    assert build.main([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
    tree = load_tree(tmp_path / "tree.safetensors")
    assert [len(block.cover) for block in tree.blocks] == [2, 6]
    first = 0 if folder.name.startswith("dream") else FIRST_BYTE
    for text, tokens in zip(tree.blocks[0].text[0], tree.blocks[0].tokens[0], strict=True):
        assert text == b"".join(TOKENS[token - first] for token in tokens)


def test_a_message_goes_into_a_text_and_comes_back(
    folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def run(*arguments: object) -> bytes:
        capfdbinary.readouterr()
        assert command.main([str(argument) for argument in arguments]) == 0, capfdbinary.readouterr().err
        return capfdbinary.readouterr().out

    key = tmp_path / "secret.key"
    run("keygen", key)
    shared = ["--key", key, "--model", folder, "--prompt", "the tide"]
    text = run("embed", *shared, "--message-bits", "101", "--temperature", "3")
    (tmp_path / "text.txt").write_bytes(text)
    assert run("decode", tmp_path / "text.txt", *shared, "--temperature", "3").strip() == b"101"
    assert set(text) <= {byte for token in TOKENS for byte in token}
