"""Every command that the documents print is one that its program takes: the words are parsed, and nothing is run."""

import argparse
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Iterator
from functools import partial

import pytest
import tyro
from repository import DOCUMENTS, ROOT

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    .*$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"\s*(?:\w+=\S+ )*python (?=benchmarks/|train\.py|evaluate\.py|-m (?:polar|agents|wm_env))(.*)")
FOREIGN = {"benchmarks/ppo_omnisafe.py": "omnisafe"}
"""Programs for an environment of their own."""

NUMBERS = {"P", "S", "E"}
"""What stands for a number."""

TO_ADD = {"search", "hellinger", "thrifty", "menu"}
"""What the examples of docs/extending.md add."""


class Parsed(BaseException):
    """The words were understood."""


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """The words behind `python` in all code of a document, up to a pipe, a redirection or a comment."""
    fenced = [line for block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    rest = FENCED.sub("", text)
    indented, prose = INDENTED.findall(rest), INDENTED.sub("", rest)
    inline = [span.replace("\n", " ") for span in INLINE.findall(prose)]
    for code in fenced + indented + inline:
        if found := COMMAND.match(code):
            words = shlex.split(re.sub(r"\[(.*?)\]", r"\1", found[1]), comments=True)
            ends = [place for place, word in enumerate(words) if re.match(r"[|<>;&]|\d?>", word)]
            yield tuple(words[: ends[0]] if ends else words)


ALL = sorted({words for path in DOCUMENTS for words in commands(path.read_text("utf-8")) if not TO_ADD & {*words}})


def test_the_documents_print_commands():
    assert len(ALL) > 60
    assert ("train.py",) in ALL


@pytest.fixture
def _own_interrupt():
    """Programs handle Ctrl-C to the end of their process, which is that of the tests here."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.usefixtures("_own_interrupt")
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_printed_command_is_understood(words, monkeypatch, tmp_path, capsys):
    """Its options are known and their values can be read; a text may leave out those that every call needs."""
    if words[0] in FOREIGN:
        pytest.importorskip(FOREIGN[words[0]])
    module, given = (words[1], words[2:]) if words[0] == "-m" else (None, words[1:])
    parse, cli, subcommands = argparse.ArgumentParser.parse_args, tyro.cli, tyro.extras.subcommand_cli_from_dict

    def ends(function):
        def run(*arguments, **settings):
            with monkeypatch.context() as patch:
                patch.setattr(argparse.ArgumentParser, "parse_args", parse)
                patch.setattr(tyro, "cli", cli)
                function(*arguments, **settings)
            raise Parsed

        return run

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", ends(parse))
    monkeypatch.setattr(tyro, "cli", ends(cli))
    monkeypatch.setattr(tyro.extras, "subcommand_cli_from_dict", ends(subcommands))
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [words[0], *("1" if word in NUMBERS else word for word in given)])
    run = partial(runpy.run_path, str(ROOT / words[0])) if module is None else partial(runpy.run_module, module)
    with pytest.raises((Parsed, SystemExit)) as end:
        run(run_name="__main__")
    if end.type is SystemExit and "--help" not in words:
        says = capsys.readouterr().err
        assert "Missing from" in says or "Missing subcommand" in says or says.count("Expected one of {") == 1, says
