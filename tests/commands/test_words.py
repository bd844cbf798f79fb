"""The word None is a word: a message, a prompt, a path."""

from pathlib import Path

import pytest
import tyro

from agents import frontier
from polar import evaluate
from polar.text.command_line.options import Decode, Embed
from wm_env.common.torchrun import world_size
from wm_env.lm.build.options import BuildOptions


@pytest.mark.parametrize(
    ("options", "arguments", "places"),
    [
        (Embed, ["--key", "k", "--message", "None"], ["message"]),
        (Embed, ["--key", "k", "--message-file", "None", "--ledger", "None"], ["message_file", "ledger"]),
        (Embed, ["--key", "k", "--message-bits", "None", "--record", "None"], ["message_bits", "record"]),
        (Embed, ["--key", "k", "--prompt", "None"], ["model.prompt"]),
        (Embed, ["--key", "k", "--prompt-file", "None"], ["model.prompt_file"]),
        (Decode, ["None", "--key", "None", "--ledger", "None", "--record", "None"], ["ledger", "record", "key"]),
        (evaluate.Options, ["None", "--out", "None"], ["run", "out"]),
        (frontier.Options, ["--out", "None"], ["out"]),
        (BuildOptions, ["--out", "None"], ["out"]),
    ],
)
def test_none_is_a_word(options, arguments, places):
    given = tyro.cli(options, args=arguments)
    for place in places:
        value = given
        for name in place.split("."):
            value = getattr(value, name)
        assert value in ("None", Path("None"))


def test_none_is_no_number(capsys):
    with pytest.raises(SystemExit) as stop:
        tyro.cli(Decode, args=["text", "--key", "k", "--nonce", "None"])
    assert stop.value.code == 2
    assert "None" in capsys.readouterr().err


def test_options_that_are_left_out_are_none():
    given = tyro.cli(Embed, args=["--key", "k"])
    assert (given.message, given.record, given.nonce, given.model.prompt) == (None, None, None, None)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' in the environment is no number"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE='' in the environment is no number"),
        ({"WORLD_SIZE": "0"}, "is no number of processes"),
        ({"WORLD_SIZE": "-1"}, "is no number of processes"),
        ({"WORLD_SIZE": "2"}, "but no RANK"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "but no MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "x"}, "MASTER_PORT='x'"),
        ({"WORLD_SIZE": "2", "RANK": "one", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK='one'"),
    ],
)
def test_what_torchrun_did_not_set(monkeypatch, environment, says):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert world_size() == 1
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        world_size()
