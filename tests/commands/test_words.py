"""The word None is a word: a message, a prompt, a path; where it is none of the choices, it is refused."""

import dataclasses
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from repository import ROOT

from agents import compare, frontier, train
from polar import evaluate
from polar.text.command_line.options import Decode, Detect, Embed, Keygen
from wm_env.common.arguments import parse
from wm_env.lm import quality, quantise, verify
from wm_env.lm.build.options import BuildOptions
from wm_env.lm.pretrain.recipe import Options as PretrainOptions
from wm_env.lm.torchrun import world_size


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
    given = parse(options, args=arguments)
    for place in places:
        value = given
        for name in place.split("."):
            value = getattr(value, name)
        assert value in ("None", Path("None"))


@dataclass(frozen=True)
class Given:
    """One option of each type that commands have."""

    word: str | None = None
    path: Path | None = None
    count: int | None = None
    share: float | None = None
    kind: Literal["exact", "float"] | None = None
    numbers: tuple[int, ...] | None = None
    bits: int | Literal["auto"] | None = None
    flag: bool | None = None


@pytest.mark.parametrize("name", ["count", "share", "kind", "numbers", "bits", "flag"])
def test_none_is_none_of_other_values(name, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Given, args=[f"--{name}", "None"])
    assert stop.value.code == 2
    assert f"--{name}" in capsys.readouterr().err
    assert parse(Given, args=["--word", "None", "--path", "None"]) == Given("None", Path("None"))
    given = ["--count", "3", "--share", "0.5", "--kind", "exact", "--numbers", "1", "2", "--bits", "auto"]
    assert parse(Given, args=given) == Given(None, None, 3, 0.5, "exact", (1, 2), "auto")


COMMANDS = {
    Embed: ["--key", "k"],
    Decode: ["text", "--key", "k"],
    Detect: ["text", "--key", "k"],
    Keygen: ["k"],
    evaluate.Options: [],
    frontier.Options: ["runs"],
    compare.Options: ["runs"],
    BuildOptions: [],
    quality.Options: ["mini"],
    quantise.Options: ["mini", "out"],
    verify.Options: [],
    PretrainOptions: ["--texts", "text", "--valid", "text", "--out", "out"],
}


@pytest.mark.parametrize("options", COMMANDS, ids=lambda options: f"{options.__module__}.{options.__name__}")
def test_no_option_takes_none_for_not_given(options, capsys):
    """With the word None after it every option is refused or has another value than without it."""
    required = COMMANDS[options]
    usual = parse(options, args=required)
    with pytest.raises(SystemExit):
        parse(options, args=["--help"])
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*", capsys.readouterr().out)) - {"--help"})
    tried = 0
    for flag in flags:
        try:
            given = parse(options, args=[*required, flag, "None"])
        except SystemExit as stop:
            assert stop.code == 2  # noqa: PT017
        else:
            assert given != usual or flag in required, flag
        tried += 1
    assert tried >= len(dataclasses.fields(options)) - 3


@pytest.mark.parametrize("option", ["--preset", "--agent", "--objective", "--cost", "--device", "--split", "--seed"])
def test_training_refuses_none(option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", option, "None"])
    with pytest.raises(SystemExit) as stop:
        train.main()
    assert stop.value.code == 2
    assert option in capsys.readouterr().err


def test_every_command_line_is_read_in_this_way():
    files = [file for folder in ("agents", "polar", "wm_env", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    for file in [*files, ROOT / "train.py", ROOT / "evaluate.py"]:
        if file.name != "arguments.py":
            assert not re.search(r"tyro\.(cli|extras)", file.read_text(encoding="utf-8")), file


def test_none_is_no_number(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Decode, args=["text", "--key", "k", "--nonce", "None"])
    assert stop.value.code == 2
    assert "None" in capsys.readouterr().err


def test_options_that_are_left_out_are_none():
    given = parse(Embed, args=["--key", "k"])
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
