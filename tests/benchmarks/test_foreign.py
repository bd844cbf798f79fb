"""Texts of nobody: readings are those of `decode`, and none is lost or made twice."""

import importlib.util
import sys

import pytest
from repository import ROOT

from wm_env.common.command import exit_code


@pytest.fixture(scope="module")
def foreign():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec = importlib.util.spec_from_file_location("benchmark_foreign", ROOT / "benchmarks" / "foreign.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("scheme", ["robust", "stream"])
def test_readings_are_those_of_decode(foreign, scheme):
    """No message in a few texts, one reading each."""
    options = foreign.Options(scheme=scheme, nonces=2, words=2, group=2)
    readings = foreign.Bench(options, "cpu").read(range(2, 4))
    assert sorted(reading.text for reading in readings) == [2, 3]
    assert not any(reading.message for reading in readings)
    assert all(0 < reading.p_value <= 1 for reading in readings)
    says = foreign.report(options, readings)
    assert f"{scheme}: 2 foreign texts, 2 nonces and all forms each: 0 messages; p-values: " in says


@pytest.fixture
def run(foreign, tmp_path, monkeypatch, capsys):
    """Read with the scheme parallel into a folder; what is printed, and the texts that were read just then."""

    def start(*arguments):
        texts = []
        text = foreign.Bench.text

        def noted(bench, number):
            texts.append(number)
            return text(bench, number)

        with monkeypatch.context() as patch:
            patch.setattr(foreign.Bench, "text", noted)
            flags = ["--scheme", "parallel", "--nonces", "2", "--folder", str(tmp_path / "runs"), *map(str, arguments)]
            patch.setattr("sys.argv", ["foreign.py", *flags])
            code = exit_code(foreign.main)
        printed = capsys.readouterr()
        return (printed.out if code == 0 else printed.err), texts

    return start


def test_a_killed_run_goes_on_where_it_was(foreign, run, tmp_path, monkeypatch):
    """Of 130 texts in groups of 60, the pieces are 50, 10, 50, 10, 10; the run dies in the third."""
    whole, texts = run("--count", 130, "--group", 60, "--folder", tmp_path / "other")
    assert texts == list(range(130))
    decode = foreign.decode_with_tokenizer

    def dies(tokenizer, text, *rest):
        if text == foreign.Bench(foreign.Options(scheme="parallel"), "cpu").text(75):
            raise KeyboardInterrupt
        return decode(tokenizer, text, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(foreign, "decode_with_tokenizer", dies)
        run("--count", 130, "--group", 60)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    resumed, texts = run("--count", 130, "--group", 60)
    assert texts == list(range(60, 130))
    assert resumed == whole
    assert whole.startswith("parallel: 130 foreign texts, 2 nonces and all forms each: 0 messages")


def test_files_of_machines_are_put_together(run):
    """One reads texts 0 to 9, one 5 to 24: what both ask for is read once, and either report is of all."""
    assert run("--count", 10)[1] == list(range(10))
    says, texts = run("--first", 5, "--count", 20)
    assert texts == list(range(10, 25))
    assert says.startswith("parallel: 25 foreign texts")
    assert run("--count", 3) == (says, [])


def test_time_that_is_up_loses_no_reading(foreign, run, monkeypatch):
    """The clock stands still for three texts of a piece, then an hour is over."""
    ticks = iter([0.0] * 5)
    with monkeypatch.context() as patch:
        patch.setattr(foreign.time, "time", lambda: next(ticks, 3600.0))
        says, texts = run("--count", 20, "--minutes", 1)
    assert says.startswith(f"parallel: {len(texts)} foreign texts")
    assert 0 < len(texts) < 20
    says, more = run("--count", 20)
    assert texts + more == list(range(20))
    assert "20 foreign texts" in says
    assert run("--count", 20, "--minutes", 0)[0] == says


def test_a_text_is_left_half_read_when_the_time_is_up(foreign, monkeypatch):
    """The clock is looked at before every text and every pass of the model; at the fifth look it is late."""
    ticks = iter([0.0] * 4)
    bench = foreign.Bench(foreign.Options(nonces=2, words=2), "cpu")
    monkeypatch.setattr(foreign.time, "time", lambda: next(ticks, 3600.0))
    assert bench.read(range(2), 60.0) == []


def test_no_reading_in_time_is_said(run):
    says, texts = run("--count", 20, "--minutes", 0)
    assert (says, texts) == ("error: no text was read in 0 minutes: allow more\n", [])


def test_other_settings_have_other_files(run, tmp_path):
    """Number of texts, of processes and the time are no such settings."""
    run("--count", 2)
    (first,) = (tmp_path / "runs").iterdir()
    for change in (("--group", 20), ("--words", 4), ("--seed", 1), ("--nonces", 3), ("--scheme", "robust")):
        says, texts = run("--count", 2, *change)
        assert texts == [0, 1]
        assert "2 foreign texts" in says
    assert len(list((tmp_path / "runs").iterdir())) == 6
    assert run("--count", 2, "--processes", 2, "--minutes", 3)[1] == []
    first.write_text(first.read_text().replace('"words": 8', '"words": 9'))
    assert run("--count", 2)[0] == f"error: {first} has other settings than its name says: remove it\n"


def test_a_file_that_holds_something_else_is_named(run, tmp_path):
    run("--count", 2)
    (first,) = (tmp_path / "runs").iterdir()
    first.write_text(first.read_text().replace('"message": false', '"message": 0', 1))
    says, _ = run("--count", 2)
    assert says == f"error: {first}: readings[0].message is 0, true or false is needed\n"


def test_processes_take_the_gpus_in_turn(foreign, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    shares = [foreign.Share(index, range(1), 0.0) for index in range(4)]
    assert [share.device("cuda") for share in shares] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [share.device("cpu") for share in shares] == ["cpu"] * 4
