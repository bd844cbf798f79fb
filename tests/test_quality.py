import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_lm import brute_force, write_lm

from wm_env.lm.llada import MaskedLM
from wm_env.lm.load import load_lm
from wm_env.lm.quality import Options, chain_rule_bits, cut_windows, main, measure, report, sample


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
    np.testing.assert_allclose(bits.sum(dim=1).numpy(), -np.array(list(law.values())), atol=1e-4)
    assert float((-bits.sum(dim=1)).exp2().sum()) == pytest.approx(1.0, abs=1e-6)


def test_a_banned_token_in_the_text_costs_infinitely_many_bits(lm: MaskedLM) -> None:
    bits = chain_rule_bits(lm, torch.tensor([[0, 1, 6, 2]]), 1)
    assert torch.isfinite(bits[0]).tolist() == [True, False, True]


def test_figures_and_standard_errors_follow_their_definitions(lm: MaskedLM) -> None:
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(0, 4, (40, 8), generator=generator)
    quality = measure(lm, windows, context=4)
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
    texts = [sample(lm, "ab", 16, 8, 1.0, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("ab")
    assert "<|" not in texts[0]


def test_bad_requests_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--text"):
        list(report(Options(str(folder))))
    with pytest.raises(ValueError, match="at least"):
        list(report(Options(str(folder), prompts=tmp_path, samples=0)))
    (tmp_path / "prompts").write_text("a b a b a b a b a b a b a b a b a b a b a b\n")
    with pytest.raises(ValueError, match="at most 40"):
        list(report(Options(str(folder), prompts=tmp_path / "prompts")))


def test_the_command_prints_figures_and_samples(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("ab ba " * 10)
    (tmp_path / "prompts").write_text("a b\nb a\nb\n")
    measured = ["--text", str(tmp_path / "text"), "--windows", "20", "--context", "4"]
    read = ["--prompts", str(tmp_path / "prompts"), "--samples", "2", "--tokens", "8"]
    monkeypatch.setattr(sys, "argv", ["quality", str(folder), *measured, *read])
    main()
    figures, first, *_ = capsys.readouterr().out.splitlines()
    assert "bits per byte (20 blocks of 8 tokens after 4; standard errors)" in figures
    assert first.startswith("a b |")


def test_the_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quality", "maxi", "--text", str(tmp_path / "text")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: unknown model 'maxi'")
    assert error.count("\n") == 1


def test_the_usage_line_is_the_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/quality.py", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: python -m wm_env.lm.quality [")
