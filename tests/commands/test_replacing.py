"""No command replaces a file that it did not make itself, and each replaces its own."""

from pathlib import Path

import pytest
from small_laws import random_law
from tiny_pretraining import counting_options

from agents import compare, frontier
from agents.common.runs import create_run
from polar import __main__ as text
from polar import evaluate
from polar.text.keys.key import Key, save_key
from wm_env.common.figures import FORMATS, new_figure, save_figure
from wm_env.common.files import check_output, write_json
from wm_env.law import save_law
from wm_env.lm import quantise, verify
from wm_env.lm.build import __main__ as build
from wm_env.lm.pretrain.__main__ import pretrain as pretrain
from wm_env.runs import RunFolder
from wm_env.synthetic import synthetic_tree

TREE = synthetic_tree(2, 2, 4, 4, 1.5, overlap=0.5, seed=1)
FOREIGN = b"years of somebody's work"


@pytest.fixture
def run(tmp_path):
    """A run folder."""
    path = tmp_path / "run"
    create_run(path, TREE, {"agent": "planner", "objective": "gp", "epsilon": 0.9, "gamma": 1.0}, ["train.py"])
    save_law(random_law(TREE, 16, 1), RunFolder(path).law)
    return path


def commands(run, folder):
    """By the file that each writes: a command that writes into `folder`."""
    key = folder.parent / "key"
    key.exists() or save_key(Key(bytes(range(32))), key)
    exact = [str(run), "--out", str(folder), "--transmissions", "0", "--message-bits", "1", "--keys", "2"]
    embed = ["embed", "--key", str(key), "--prompt", "a", "--message", "x"]
    return {
        "results.json": lambda: evaluate.main([*exact]),
        "ber.png": lambda: evaluate.main([*exact]),
        "tv.svg": lambda: evaluate.main([*exact, "--figures", "png", "svg"]),
        "frontier.png": lambda: frontier.main([str(run), "--out", str(folder / "frontier.png")]),
        "compare.pdf": lambda: compare.main([str(run), "--out", str(folder / "compare.pdf")]),
        "tree": lambda: build.main(["--model", "mini", "--out", str(folder / "tree")]),
        "numbers.json": lambda: verify.main(["--write", str(folder / "numbers.json")]),
        "model": lambda: quantise.main(["mini", str(folder / "model")]),
        "law": lambda: text.main([*embed, "--record", str(folder / "law")]),
        "ledger": lambda: text.main([*embed, "--ledger", str(folder / "ledger")]),
        "key": lambda: text.main(["keygen", str(folder / "key")]),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("results.json", "ber.png", "tv.svg", "frontier.png", "compare.pdf"),
        *("tree", "numbers.json", "model", "law", "ledger", "key"),
    ],
)
def test_a_file_of_somebody_else_is_refused_before_the_work(name, run, tmp_path, capsys):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_bytes(FOREIGN)
    assert commands(run, folder)[name]() == 2
    error = capsys.readouterr().err
    assert str(folder / name) in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == [name]
    assert (folder / name).read_bytes() == FOREIGN


@pytest.mark.parametrize("name", ["results.json", "tv.svg", "frontier.png", "compare.pdf"])
def test_what_a_command_made_it_makes_again(name, run, tmp_path, capsys):
    folder = tmp_path / "out"
    for _ in range(2):
        assert commands(run, folder)[name]() == 0, capsys.readouterr().err
    assert (folder / name).stat().st_size


@pytest.mark.parametrize("name", ["model", "tokens.safetensors", "history.json"])
def test_a_pre_training_begins_in_no_folder_with_files_of_its_names(name, tmp_path):
    options = counting_options(tmp_path)
    options.out.mkdir()
    (options.out / name).mkdir() if name == "model" else (options.out / name).write_bytes(FOREIGN)
    with pytest.raises(FileExistsError):
        pretrain(options)
    assert [path.name for path in options.out.iterdir()] == [name]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_figure_is_marked_in_every_format(ending, tmp_path):
    path = tmp_path / f"figure.{ending}"
    figure, _ = new_figure("empty")
    figure.savefig(path, format=ending)
    with pytest.raises(FileExistsError, match="this command did not make it: name another"):
        check_output(path, "name another", "covert-watermark")
    save_figure(figure, path)
    check_output(path, "name another", "covert-watermark")


def test_the_mark_is_found_at_both_ends_of_a_large_file(tmp_path):
    path = Path(tmp_path / "large.json")
    for content in ({"a": "x" * 10**6, "mark": 1}, {"mark": 1, "a": "x" * 10**6}):
        write_json(path, content)
        check_output(path, "name another", "mark")
    path.write_bytes(b"")
    check_output(path, "name another", "mark")
