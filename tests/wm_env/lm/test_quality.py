import gzip
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_lm import brute_force, write_lm

from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.quality import Options, chain_rule_bits, cut_windows, main, measure_quality, quality_lines, sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lm(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def lm(folder: Path) -> MaskedLM:
    return load_lm(folder)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_chain_rule_bits_add_up_to_the_law_of_the_block(lm: MaskedLM, temperature: float) -> None:
    context = [0, 2, 3, 1]
    law = brute_force(lm, 6, context, 3, temperature)
    blocks = torch.tensor(list(law))
    windows = torch.cat((torch.tensor([context]).expand(len(blocks), -1), blocks), dim=1)
    bits = chain_rule_bits(lm, windows, 4, temperature, rows=50)
    assert bits.shape == (216, 3)
    np.testing.assert_allclose(bits.sum(dim=1).numpy(), -np.array(list(law.values())), atol=5e-4)
    assert float((-bits.sum(dim=1)).exp2().sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_banned_token_in_the_text_costs_infinitely_many_bits(lm: MaskedLM) -> None:
    bits = chain_rule_bits(lm, torch.tensor([[0, 1, 6, 2]]), 1)
    assert torch.isfinite(bits[0]).tolist() == [True, False, True]


def test_figures_and_standard_errors_follow_their_definitions(lm: MaskedLM) -> None:
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(0, 4, (40, 8), generator=generator)
    quality = measure_quality(lm, windows, context=4)
    bits = chain_rule_bits(lm, windows, 4).numpy()
    lengths = np.array([sum(2 if token == 3 else 1 for token in row[4:]) for row in windows.tolist()])
    assert quality.windows == 40
    assert quality.bits_per_token == pytest.approx(bits.mean())
    assert quality.bits_per_token_error == pytest.approx(np.std(bits.mean(axis=1), ddof=1) / math.sqrt(40))
    assert quality.bits_per_byte == pytest.approx(bits.sum() / lengths.sum())
    # The error of a ratio by resampling the windows.
    draws = np.random.default_rng(0).integers(40, size=(4000, 40))
    ratios = bits.sum(axis=1)[draws].sum(axis=1) / lengths[draws].sum(axis=1)
    assert quality.bits_per_byte_error == pytest.approx(ratios.std(), rel=0.1)


def test_windows_lie_inside_documents_and_are_uniform(tmp_path: Path, lm: MaskedLM) -> None:
    documents = ["aaaabbbb", "a", "baba ba"]
    (tmp_path / "text").write_text("\n\n".join(documents))
    encoded = [lm.encode(document) for document in documents]
    places = [tuple(ids[i : i + 3]) for ids in encoded for i in range(len(ids) - 2)]
    windows = [tuple(row) for row in cut_windows(lm.tokenizer, tmp_path / "text", 3, 3000, 0).tolist()]
    assert set(windows) == set(places)
    for window in set(places):
        share = places.count(window) / len(places)
        assert windows.count(window) / 3000 == pytest.approx(share, abs=5 * math.sqrt(share / 3000))
    assert windows == [tuple(row) for row in cut_windows(lm.tokenizer, tmp_path / "text", 3, 3000, 0).tolist()]
    with pytest.raises(ValueError, match="no document of 30 tokens"):
        cut_windows(lm.tokenizer, tmp_path / "text", 30, 5, 0)


def test_samples_follow_the_law_of_the_block(lm: MaskedLM) -> None:
    law = brute_force(lm, 6, [0, 2], 1, 1.0)
    generator = torch.Generator().manual_seed(0)
    texts = [sample(lm, "a ", 1, 1, 1.0, generator) for _ in range(400)]
    for token, letters in ((0, "a a"), (1, "a b"), (2, "a  "), (3, "a ab")):
        expected = 2 ** law[token,]
        assert texts.count(letters) / 400 == pytest.approx(expected, abs=4 * math.sqrt(expected / 400))


def test_a_sample_has_no_masks_left_and_repeats_for_a_seed(lm: MaskedLM) -> None:
    texts = [sample(lm, "ab", 2, 8, 1.0, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("ab")
    assert "<|" not in texts[0]


def test_bad_requests_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give text to measure"):
        list(quality_lines(Options(str(folder))))
    with pytest.raises(ValueError, match="at least"):
        list(quality_lines(Options(str(folder), prompts=tmp_path, samples=0)))
    (tmp_path / "prompts").write_text("a b a b a b a b a b a b a b a b a b a b a b\n")
    with pytest.raises(ValueError, match="at most 40"):
        list(quality_lines(Options(str(folder), prompts=tmp_path / "prompts")))


def test_the_command_prints_figures_and_samples(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("ab ba " * 10)
    (tmp_path / "prompts").write_text("a b\nb a\nb\n")
    measured = ["--text", str(tmp_path / "text"), "--windows", "20", "--context", "4"]
    read = ["--prompts", str(tmp_path / "prompts"), "--samples", "2", "--tokens", "8"]
    assert main([str(folder), *measured, *read]) == 0
    figures, first, *_ = capsys.readouterr().out.splitlines()
    assert "bits per byte (20 blocks of 8 tokens after 4; standard errors)" in figures
    assert first.startswith("a b |")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["maxi", "--text", "TEXT"], "unknown model 'maxi'"),
        (["MODEL"], "give text to measure the model"),
        (["MODEL", "--prompts", "PROMPTS", "--tokens", "7"], "tokens=7: "),
        (["MODEL", "--prompts", "PROMPTS", "--tokens", "20"], "tokens=20: "),
        (["MODEL", "--prompts", "PROMPTS", "--seed", "-1"], "seed=-1"),
        (["MODEL", "--prompts", "none"], "none: no such file"),
        (["MODEL", "--prompts", "."], ". is a folder"),
        (["MODEL", "--prompts", "LATIN"], "LATIN is not UTF-8"),
        (["MODEL", "--prompts", "GAP"], "GAP, line 2: an empty prompt"),
        (["MODEL", "--text", "none"], "none: no such file"),
        (["MODEL", "--text", "LATIN"], "LATIN is not UTF-8"),
        (["MODEL", "--text", "TEXT", "--context", "1000"], "TEXT has no document"),
        (["MODEL", "--text", "TEXT", "--windows", "1"], "windows=1: a number from 2 to 100000 is needed"),
        (["MODEL", "--text", "TEXT", "--windows", "1000000000000000"], "windows=1000000000000000: a number from 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TEXT").write_text("ab ba " * 10)
    Path("PROMPTS").write_text("a b\n")
    Path("LATIN").write_bytes("é".encode("latin-1"))
    Path("GAP").write_text("a b\n\nb\n")
    assert main([str(folder) if argument == "MODEL" else argument for argument in arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert message in told.err
    assert "Errno" not in told.err
    assert told.err.count("\n") == 1


def test_prompts_are_read_as_the_builder_reads_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a b"}\n{"text": "b"}\n'))
    assert main([str(folder), "--prompts", str(tmp_path / "prompts.jsonl.gz"), "--tokens", "8"]) == 0
    assert [line.split("|")[0] for line in capsys.readouterr().out.splitlines()] == ["a b ", "b "]


@pytest.mark.parametrize(("ending", "code", "told"), [("Ctrl-C", 130, "interrupted\n"), ("closed pipe", 0, "")])
def test_a_command_that_is_stopped_says_so_in_one_line(
    folder: Path, tmp_path: Path, ending: str, code: int, told: str
) -> None:
    (tmp_path / "prompts").write_text("a b\n" * 100_000)
    endless = ["--prompts", str(tmp_path / "prompts"), "--samples", "100000", "--tokens", "8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "wm_env.lm.quality", str(folder), *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("a b |")
    if ending == "Ctrl-C":
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == told
    assert process.wait() == code


def test_the_usage_line_is_the_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/quality.py", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: python -m wm_env.lm.quality [")
