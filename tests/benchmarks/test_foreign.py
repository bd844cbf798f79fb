"""Texts of nobody: threads that share the passes of a model get what each would get alone."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from repository import ROOT

from wm_env.lm.models.load import load_lm


@pytest.fixture(scope="module")
def foreign():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec = importlib.util.spec_from_file_location("benchmark_foreign", ROOT / "benchmarks" / "foreign.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def test_threads_that_share_passes_get_the_laws_that_each_gets_alone(foreign):
    lm = load_lm("mini")
    rng = torch.Generator().manual_seed(1)
    questions = [
        [(torch.randint(100, 8000, (1, length), generator=rng), length - back) for length, back in asked]
        for asked in ([(9, 1), (9, 4), (12, 2)], [(9, 4)], [(12, 2), (9, 2)])
    ]
    meeting = foreign.Meeting(len(questions))
    shared = replace(lm, logits_at=meeting.logits_at)

    def ask(asked):
        laws = [shared.log2_probs(canvas, position, 1.0) for canvas, position in asked]
        meeting.leave(lm.network)
        return laws

    with ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(ask, questions, timeout=60))
    for asked, laws in zip(questions, answers, strict=True):
        for (canvas, position), law in zip(asked, laws, strict=True):
            assert torch.equal(law, lm.log2_probs(canvas, position, 1.0))


def test_what_the_model_raises_ends_all_threads(foreign):
    lm = load_lm("mini")
    meeting = foreign.Meeting(2)
    shared = replace(lm, logits_at=meeting.logits_at)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(shared.log2_probs, torch.tensor([[10**6] * 4]), 3, 1.0) for _ in range(2)]
        assert [type(future.exception(timeout=60)) for future in futures] == [IndexError, IndexError]


@pytest.mark.parametrize("scheme", ["robust", "stream"])
def test_readings_are_those_of_decode(foreign, scheme):
    """No message in a few texts, one reading each."""
    options = foreign.Options(scheme=scheme, count=3, nonces=2, words=2, group=2)
    tally = foreign.work(options, foreign.Share(0, range(2), float("inf")))
    assert tally["texts"] == 3
    assert tally["messages"] == 0
    assert sum(count for name, count in tally.items() if isinstance(name, tuple)) == 3
    assert "3 foreign texts, 2 nonces and all forms each: 0 messages" in foreign.report(options, tally)
