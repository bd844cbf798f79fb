"""Every kind of model through the two commands that need one: a tree, and a message in a text and back."""

from pathlib import Path

import pytest
from ascii_lm import LETTERS, WORDS
from encoder_networks import random_network
from relative_files import (
    FIRST_BYTE,
    dream_tensors,
    encoder_tokenizer,
    word_piece_tokenizer,
    write_dream,
    write_encoder,
)
from tiny_lm import tokenizer_of

import polar.__main__ as command
from wm_env.lm.build import __main__ as build
from wm_env.lm.build.states import encode_prompts
from wm_env.lm.models.load import load_lm
from wm_env.tree import load_tree

TOKENS = LETTERS + WORDS
WORD_PIECES = ("the", "tide", "is", "in", "an", "other", "day", ",", "##s", "##ing")


Model = tuple[Path, dict[int, bytes]]
"""A checkpoint, and the bytes of its tokens of text; it has more rows than tokens, which must never be chosen."""


@pytest.fixture(scope="module", params=["dream", "bert", "roberta", "modernbert", "word pieces"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "dream":
        write_dream(folder, dream_tensors(), mask_token_id=len(TOKENS) + 1)
        tokenizer_of(TOKENS).save_pretrained(folder)
        return folder, dict(enumerate(TOKENS))
    if request.param == "word pieces":
        write_encoder(folder, random_network("bert"), word_piece_tokenizer(WORD_PIECES))
        spelled = [piece[2:] if piece.startswith("##") else " " + piece for piece in WORD_PIECES]
        return folder, {number: piece.encode() for number, piece in enumerate(spelled, start=7)}
    write_encoder(folder, random_network(request.param), encoder_tokenizer(TOKENS))
    return folder, dict(enumerate(TOKENS, start=FIRST_BYTE))


def test_a_tree_is_built(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, tokens_of_text = model
    (tmp_path / "prompts.txt").write_text("the tide is in\nan other day\n")
    arguments = ["--model", folder, "--prompts", tmp_path / "prompts.txt", "--out", tmp_path / "tree.safetensors"]
    arguments += ["--candidates", "3", "--block-length", "4", "--beam-width", "6", "--temperature", "2"]
    assert build.main([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
    tree = load_tree(tmp_path / "tree.safetensors")
    assert [len(block.cover) for block in tree.blocks] == [2, 6]
    for text, tokens in zip(tree.blocks[0].text[0], tree.blocks[0].tokens[0], strict=True):
        assert text == b"".join(tokens_of_text[token] for token in tokens)


def test_a_message_goes_into_a_text_and_comes_back(
    model: Model, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def run(*arguments: object) -> bytes:
        capfdbinary.readouterr()
        assert command.main([str(argument) for argument in arguments]) == 0, capfdbinary.readouterr().err
        return capfdbinary.readouterr().out

    folder, tokens_of_text = model
    key = tmp_path / "secret.key"
    run("keygen", key)
    shared = ["--key", key, "--model", folder, "--prompt", "the tide"]
    text = run("embed", *shared, "--message-bits", "101", "--temperature", "3")
    (tmp_path / "text.txt").write_bytes(text)
    assert run("decode", tmp_path / "text.txt", *shared, "--temperature", "3").strip() == b"101"
    assert set(text) <= {byte for token in tokens_of_text.values() for byte in token}


def test_prompts_that_a_tokenizer_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, random_network("bert"), word_piece_tokenizer(WORD_PIECES))
    lm = load_lm(folder)
    assert encode_prompts(lm, ["The tide", "the day", "the day"], 8) == [(7, 8), (7, 13), (7, 13)]
    with pytest.raises(ValueError, match="prompt 2 and an earlier one"):
        encode_prompts(lm, ["The tide", "the  tide"], 8)
    with pytest.raises(ValueError, match=r"contains '\[UNK\]'"):
        encode_prompts(lm, ["a fish"], 8)
