"""evaluate.py as a command, and what it does with requests that cannot be met."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from repository import ROOT
from small_laws import random_law

from polar import evaluate as command
from polar.code.adaptive import AdaptiveSettings
from polar.code.construction import chain_entropies, threshold_set
from polar.code.key_schedule import theorem_key_bits
from polar.evaluation.adaptive import evaluate_adaptive
from polar.evaluation.choices import decoders_of, fixed_lengths, key_lengths, text_length, with_message_sets
from polar.evaluation.report import law_fingerprint, live_results
from polar.evaluation.settings import EvaluationSettings
from wm_env.common.files import read_json
from wm_env.information import measure
from wm_env.law import save_law
from wm_env.runs import RunFolder, RunTask, load_run, newest_run, read_task
from wm_env.synthetic import synthetic_tree
from wm_env.tree import save_tree

TREE = synthetic_tree(2, 2, 4, 4, 1.5, overlap=0.5, seed=1)
LAW = random_law(TREE, 16, 1)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "one"
    save_tree(TREE, folder / "tree.safetensors")
    save_law(LAW, folder / "law.safetensors")
    return folder


@pytest.fixture
def refuse(capsys):
    """Run the command on bad input; it must say why in one line."""

    def call(*arguments):
        assert command.main([str(argument) for argument in arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert len(error.splitlines()) == 1
        return error

    return call


def test_command_writes_results_and_figures_of_the_newest_run(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent.parent)
    assert command.main(["--transmissions", "100"]) == 0
    printed = capsys.readouterr().out
    content = json.loads((run / "evaluation" / "results.json").read_text())
    assert content["tree"] == TREE.fingerprint
    assert {point["message_bits"] for point in content["operating_points"]} == {1, 2, 3, 4}
    assert {path.name for path in (run / "evaluation").iterdir()} == {"results.json", "ber.png", "tv.png"}
    for heading in ("Error rates", "Total variation", "One-shot limits"):
        assert heading in printed
    assert "Message length by state" not in printed


def foreign_run(folder, **meta):
    """A run whose tree says other things about itself."""
    tree = dataclasses.replace(TREE, meta=dataclasses.replace(TREE.meta, **meta))
    save_tree(tree, folder / "tree.safetensors")
    save_law(dataclasses.replace(LAW, tree=tree.fingerprint), folder / "law.safetensors")
    return folder


def evaluated(folder, *arguments, **variables):
    """evaluate.py in a process of its own: its output and its errors, as bytes."""
    done = subprocess.run(
        [sys.executable, ROOT / "evaluate.py", folder, "--transmissions", "0", "--keys", "2", *arguments],
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8"])
def test_a_finished_evaluation_is_no_error_whatever_the_output_s_encoding(tmp_path, encoding):
    """Names that neither the output's encoding nor the font of the figures has."""
    folder = foreign_run(tmp_path / "水の跡", model="模型")
    out, errors = evaluated(folder, PYTHONIOENCODING=encoding)
    assert errors == b""
    spelt = encoding != "utf-8"
    names = ("模型, ", f"{folder}/evaluation/results.json, ber.png, tv.png")
    for name in names:
        assert (name.encode("ascii", "backslashreplace") if spelt else name.encode()) in out
    assert {path.name for path in (folder / "evaluation").iterdir()} == {"results.json", "ber.png", "tv.png"}


def test_no_name_in_a_foreign_run_reaches_the_terminal_as_a_command(tmp_path):
    wild = "\x1b]0;owned\x07\x9b31m\u202e\nerror: forged $x^$"
    folder = foreign_run(tmp_path / f"run {wild}", model=wild, pool=wild)
    out, errors = evaluated(folder, "--figures", "png", "svg")
    assert errors == b""
    shown = out.decode()
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "\nerror: forged" not in shown
    assert shown.count("\\x1b]0;owned\\x07\\x9b31m\\u202e\\nerror: forged $x^$") == 3
    # A control character is no XML.
    ElementTree.parse(folder / "evaluation" / "ber.svg")


def test_a_run_that_vanishes_is_not_made_anew(run, monkeypatch, capsys):
    """It goes once it has been read, which is when it is described."""

    def take_away(tree, law):
        shutil.rmtree(run)
        return ""

    monkeypatch.setattr("polar.evaluation.run.describe", take_away)
    assert command.main([str(run), "--transmissions", "0", "--keys", "2"]) == 1
    assert (
        capsys.readouterr().err == f"error: {run} was removed or renamed since it was read: name the run folder again\n"
    )
    assert not run.exists()


def test_no_path_reaches_the_terminal_as_a_command(tmp_path, refuse):
    line = refuse(tmp_path / "none\x1b[2J\u202e\n")
    assert "none\\x1b[2J\\u202e\\n: no such run folder" in line


def test_every_column_and_every_word_in_it_is_explained(run, capsys):
    assert command.main([str(run), "--transmissions", "0", "--keys", "2", "4", "8"]) == 0
    before, _, tables = capsys.readouterr().out.partition("Error rates")
    legend = before.partition("What the columns mean")[2]
    headings = (part.splitlines()[1].strip() for part in (tables, tables.partition("same points")[2]))
    for column in {column.partition(",")[0] for heading in headings for column in re.split("  +", heading)}:
        assert re.search(rf"(^|[,;] ){re.escape(column)}([ ,:;]|$)", legend, re.MULTILINE), column
    words = {"none", "frozen", "dither", "sc", "ml", "map", "unknown", "from earlier blocks"}
    assert set(re.findall(rf"\b(?:{'|'.join(words)})\b", tables)) == words
    for word in words:
        assert f"{word}, " in legend, word
    described = before.partition("What the columns mean")[0]
    for name in ("retained mass", "H(V_i|V^i-1,S)", "H(V_i|V^i-1,X)"):
        assert name in described, name
        assert name in legend, name
    for name in ("points", "key of l bits", "any key"):
        assert name in tables, name
        assert name in legend, name


def test_what_the_law_cannot_freeze_is_named_or_refused(run, refuse, capsys):
    """The law has 4 positions of V: 2 message bits leave 2 to freeze, and 64 keys would need 4."""
    few = [str(run), "--transmissions", "0", "--message-bits", "2", "--surplus", "frozen", "--keys"]
    assert command.main([*few, "8", "64"]) == 0
    assert "too few positions to freeze so many keys: 64 at 2 message bits" in capsys.readouterr().out
    content = json.loads((run / "evaluation" / "results.json").read_text())
    assert {point["keys"] for point in content["operating_points"]} == {8}
    assert "no operating point is left" in refuse(*few, "64")


def test_a_law_over_its_budget_is_told(run, capsys):
    first, second = (float(measure(block).cost) for block in LAW.blocks)
    arguments = [str(run), "--transmissions", "0", "--keys", "2", "--message-bits", "1"]
    spent = 0.5 * first + 0.25 * second
    for epsilon, over in ((spent - 1e-3, True), (spent + 1e-3, False)):
        (run / "config.json").write_text(json.dumps({"settings": {"epsilon": epsilon, "gamma": 0.5}}))
        assert command.main(arguments) == 0
        told = f"over its budget: the blocks cost {spent:.4f} in all, and the run was allowed {epsilon:g}"
        assert (told in capsys.readouterr().out) == over


def test_options_of_the_live_evaluation_are_not_ignored(run, capsys):
    assert command.main([str(run), "--texts", "3"]) == 2
    assert "--texts only counts with --live" in capsys.readouterr().err


def test_dither_that_is_no_number_is_refused(run, capsys):
    (run / "config.json").write_text(json.dumps({"settings": {"message_bits": "auto", "dither_bits": "4"}}))
    assert command.main([str(run)]) == 2
    assert "config.json: settings.dither_bits is '4', an integer is needed" in capsys.readouterr().err


def test_lengths_follow_the_state_where_the_run_says_so(run, capsys):
    (run / "config.json").write_text(json.dumps({"settings": {"message_bits": "auto"}}))
    arguments = [str(run), "--transmissions", "0", "--keys", "2", "--auto-error", "0.6", "--auto-tv", "0.5"]
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    point = evaluate_adaptive(TREE, LAW, AdaptiveSettings(0.6, 0.5))
    assert f"Message length by state\n{point.mean_bits:.3f} bits per block" in printed
    assert printed.index("Message length by state") < printed.index("Error rates of fixed lengths")
    rows = json.loads((run / "evaluation" / "results.json").read_text())["operating_points"]
    assert [row["mean_bits"] for row in rows if row["message_bits"] == "auto"] == [pytest.approx(point.mean_bits)]
    assert command.main([*arguments, "--message-bits", "1"]) == 0
    assert "Message length by state" not in capsys.readouterr().out


@pytest.mark.parametrize("config", [{}, {"settings": {}}, {"settings": {"message_bits": 2}}])
def test_other_runs_have_fixed_lengths(run, config):
    assert not read_task(RunFolder(run)).lengths_follow_state
    (run / "config.json").write_text(json.dumps(config))
    assert not read_task(RunFolder(run)).lengths_follow_state


def test_bad_input_is_one_line_and_exit_code_two(run, tmp_path, monkeypatch, refuse):
    assert "no such run folder" in refuse(tmp_path / "nowhere")
    assert "carries 1 to 4" in refuse(run, "--message-bits", 5)
    assert "power of two" in refuse(run, "--keys", 3)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in refuse(run, "--out", blocked / "out")
    monkeypatch.chdir(run)
    assert "train.py" in refuse()
    assert not (run / "evaluation" / "results.json").exists()


def test_damaged_and_foreign_files_are_refused(run, refuse):
    whole = (run / "law.safetensors").read_bytes()
    (run / "law.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "damaged or cut short" in refuse(run)
    other = synthetic_tree(2, 2, 4, 4, 1.5, seed=2)
    save_law(random_law(other, 16, 1), run / "law.safetensors")
    assert "made for tree" in refuse(run)
    (run / "law.safetensors").unlink()
    assert "no such covert-watermark law file" in refuse(run)


@pytest.mark.parametrize("spoil", [lambda path: path.write_text('{"law": '), lambda path: path.mkdir()])
def test_live_results_that_cannot_be_read_are_not_left_out(run, refuse, spoil):
    (run / "evaluation").mkdir()
    spoil(run / "evaluation" / "live.json")
    assert str(run / "evaluation" / "live.json") in refuse(run, "--transmissions", 0)
    assert not (run / "evaluation" / "results.json").exists()


def test_live_results_of_another_law_are_not_this_ones(run):
    assert live_results(run, LAW) is None
    found = {"law": law_fingerprint(LAW), "texts": 7}
    (run / "live.json").write_text(json.dumps(found))
    assert live_results(run, LAW) == found
    assert live_results(run, random_law(TREE, 16, 2)) is None


def test_unknown_decoders_are_refused_by_name(run, refuse):
    assert "decoder='guess': choose one of sc, ml, map" in refuse(run, "--decoder", "map", "guess")
    assert not (run / "evaluation").exists()


def test_all_decoders_or_each_that_is_named_once():
    assert decoders_of(EvaluationSettings()) == ("sc", "ml", "map")
    assert decoders_of(EvaluationSettings(decoder=("map", "sc", "map"))) == ("map", "sc")


def test_figures_in_other_formats(run):
    arguments = [str(run), "--transmissions", "0", "--keys", "2", "--message-bits", "1", "--figures", "svg", "pdf"]
    assert command.main(arguments) == 0
    assert {path.name for path in (run / "evaluation").iterdir()} == {
        "results.json", "ber.svg", "ber.pdf", "tv.svg", "tv.pdf",
    }  # fmt: skip
    shown = (run / "evaluation" / "ber.svg").read_text()
    assert f"one: law {law_fingerprint(LAW)[:8]} on tree {TREE.fingerprint[:8]}" in shown


@pytest.mark.parametrize("name", ["results.json", "ber.png", "tv.png"])
def test_results_that_cannot_be_written_are_told_before_the_work(run, monkeypatch, refuse, name):
    (run / "evaluation" / name).mkdir(parents=True)
    monkeypatch.setattr("polar.evaluation.run.evaluate", lambda *_: pytest.fail("the work was done"))
    assert f"{run / 'evaluation' / name} is no file that can be written" in refuse(run)


def test_the_configuration_is_read_once(run, monkeypatch):
    (run / "config.json").write_text(json.dumps({"settings": {"message_bits": "auto", "epsilon": 1}}))
    files = []
    monkeypatch.setattr("wm_env.runs.read_json", lambda path: files.append(path) or read_json(path))
    assert command.main([str(run), "--transmissions", "0", "--keys", "2", "--message-bits", "1"]) == 0
    assert files == [run / "config.json"]


def test_a_run_is_loaded_with_what_it_was_made_for(run):
    (run / "config.json").write_text(json.dumps({"settings": {"epsilon": 0.5, "gamma": 0.9, "agent": "any"}}))
    found = load_run(run)
    assert found.task == RunTask(epsilon=0.5, gamma=0.9)
    assert (found.tree.fingerprint, found.law.tree) == (TREE.fingerprint, TREE.fingerprint)
    assert load_run(run).folder == RunFolder(run)


@pytest.mark.parametrize(
    ("named", "task", "bits"),
    [
        ((), RunTask(), 3),
        ((), RunTask(message_bits=2), 3),
        ((), RunTask(message_bits="auto"), "auto"),
        ((2,), RunTask(message_bits="auto"), 2),
        (("auto",), RunTask(), "auto"),
    ],
)
def test_texts_have_one_message_length(named, task, bits):
    assert text_length(LAW, EvaluationSettings(named), task) == bits
    with pytest.raises(ValueError, match="take one number"):
        text_length(LAW, EvaluationSettings((1, 2)), task)


def test_defaults_follow_the_law():
    assert fixed_lengths(LAW, EvaluationSettings()) == (1, 2, 3, 4)
    made_for_two = dataclasses.replace(LAW, message_sets=((0, 1), (2, 3, 1)))
    assert fixed_lengths(made_for_two, EvaluationSettings()) == (1, 2)
    with pytest.raises(ValueError, match="carries 1 to 2"):
        fixed_lengths(made_for_two, EvaluationSettings((3,)))


def test_keys_of_the_paper_are_two_to_the_information():
    most = max(theorem_key_bits(block) for block in LAW.blocks)
    assert key_lengths(LAW, EvaluationSettings(keys=("paper", 1))) == (0, most)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"message_bits": (0,)}, "carries"), ({"transmissions": -1}, "transmissions=-1"), ({"keys": ()}, "keys")],
)
def test_requests_that_make_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        fixed_lengths(LAW, EvaluationSettings(**change))


def test_thresholds_are_finite(run, capsys):
    assert command.main([str(run), "--thresholds", "nan", "0.5"]) == 2
    assert "thresholds=(nan, 0.5): finite numbers are needed" in capsys.readouterr().err


def test_thresholds_choose_the_message_sets_of_all_blocks():
    law = with_message_sets(LAW, EvaluationSettings(thresholds=(0.3, 0.99)))
    assert law.message_sets == tuple(threshold_set(chain_entropies(block, 4), 0.3, 0.99) for block in LAW.blocks)
    with pytest.raises(ValueError, match="leave block 1 no message position"):
        with_message_sets(LAW, EvaluationSettings(thresholds=(0.3, 0.0)))
    assert with_message_sets(LAW, EvaluationSettings()) is LAW


def test_newest_run_is_the_one_with_the_latest_law(run, tmp_path):
    assert newest_run(tmp_path / "runs") == run
    other = tmp_path / "runs" / "a-later-one"
    save_law(LAW, other / "law.safetensors")
    os.utime(other / "law.safetensors", (2e9, 2e9))
    assert newest_run(tmp_path / "runs") == other
    with pytest.raises(FileNotFoundError, match="train one"):
        newest_run(tmp_path)


def test_interrupted_command_ends_with_one_line(run, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("polar.evaluation.run.evaluate_run", interrupt)
    assert command.main([str(run)]) == 130
    assert capsys.readouterr().err == "interrupted\n"
