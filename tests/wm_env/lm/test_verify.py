import json

import pytest
import torch

from wm_env.lm import verify
from wm_env.lm.models.exact import steps
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.verify import Number, fixed_canvases, numbers, stored_numbers
from wm_env.tree import shipped_tree


@pytest.fixture(scope="module")
def lm() -> MaskedLM:
    return load_lm("mini")


@pytest.fixture(scope="module")
def asked(lm: MaskedLM) -> list[Number]:
    return list(numbers(lm, shipped_tree(), stored_numbers()))


def test_this_machine_computes_the_published_numbers(asked: list[Number]) -> None:
    published = stored_numbers()
    assert {number.name for number in asked} == published.keys() - {"arithmetic"}
    seen = set()
    for number in asked:
        # One way of multiplying is enough here, and the scheme block takes its time: `make verify` does all.
        if number.name not in seen and number.name != "text of the scheme block":
            assert number.compute() == published[number.name]
        seen.add(number.name)


def test_a_rounding_that_is_spoiled_is_seen(asked: list[Number], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of squares in float32, say, as a norm of a library has them."""
    right = steps.EagerSteps.inverse_rms

    def spoiled(self: steps.EagerSteps, q: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return right(self, q, step).to(torch.float32).to(torch.float64)

    monkeypatch.setattr(steps.EagerSteps, "inverse_rms", spoiled)
    number = next(number for number in asked if number.name.startswith("canvases"))
    assert number.compute() != stored_numbers()[number.name]


def test_canvases_are_fixed_and_cover_lengths_and_masks() -> None:
    canvases = list(fixed_canvases(8192, 2))
    assert {canvas.shape[1] for canvas, _ in canvases} == {24, 56, 64, 128, 256}
    assert {int((canvas == 2).sum()) for canvas, _ in canvases} >= set(range(1, 9))
    for canvas, position in canvases:
        assert canvas[0, position:].tolist() == [2] * (canvas.shape[1] - position)


def test_what_differs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = stored_numbers() | {"tokenizer": "another"}
    path = tmp_path / "published.json"
    path.write_text(json.dumps(changed))
    monkeypatch.setattr(verify, "PUBLISHED", path)
    first = ("model", "tokenizer")
    all_numbers = verify.numbers
    monkeypatch.setattr(
        verify, "numbers", lambda *arguments: (number for number in all_numbers(*arguments) if number.name in first)
    )
    assert verify.main([]) == 1
    printed = capsys.readouterr().out
    assert "this machine does not compute the published numbers: tokenizer" in printed
    path.write_text(json.dumps(changed | {"arithmetic": "exact-0"}))
    assert verify.main([]) == 2
    assert "'exact-0', not 'exact-1'" in capsys.readouterr().err


def test_new_numbers_are_written_for_a_new_model(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    all_numbers = verify.numbers
    monkeypatch.setattr(
        verify, "numbers", lambda *arguments: (number for number in all_numbers(*arguments) if number.name == "model")
    )
    out = tmp_path / "numbers.json"
    assert verify.main(["--write", str(out)]) == 0
    assert json.loads(out.read_text()) == {"arithmetic": "exact-1", "model": stored_numbers()["model"]}


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--threads", "0"]) == 2
    assert verify.main(["--device", "cuda:99"]) == 2
    assert "cannot be used here" in capsys.readouterr().err
