"""The numbers of a model must not depend on how many threads torch may use."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread

import numpy as np
import pytest
import torch
from encoder_networks import random_network
from relative_files import write_encoder
from repository import ROOT
from tiny_lm import ALL_BYTES, write_lm
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from wm_env.common.threads import side_by_side, torch_threads
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.pools.candidates import forward_rows, make_pools, passes_at_once
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import token_bytes


@pytest.fixture(scope="module")
def lm() -> MaskedLM:
    """The embedded model: the products of smaller ones are not divided among threads."""
    return load_lm("mini")


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_pass_is_the_same_with_any_number_of_threads(lm: MaskedLM, rows: int) -> None:
    canvas = torch.arange(1000, 1000 + 53 * rows).reshape(rows, 53)
    floats = load_lm("mini", arithmetic="float")
    found: dict[str, list[Tensor]] = {"exact": [], "float": [], "exact logits": []}
    for threads in (1, 2, 3, 4, 6, 8):
        torch.set_num_threads(threads)
        found["exact"].append(lm.log2_probs(canvas, 50, 4.0))
        found["float"].append(floats.log2_probs(canvas, 50, 4.0))
        # The logits of floats do change with the threads on most machines; `log2_probs` takes care of that.
        found["exact logits"].append(lm.logits_at(lm.network, canvas, 50))
    for results in found.values():
        assert all(torch.equal(results[0], other) for other in results)


def test_pools_are_the_same_with_any_number_of_passes_at_once(lm: MaskedLM) -> None:
    contexts = np.stack([np.arange(start, start + 9) for start in (700, 800, 900)])
    settings = PoolSettings("top", 2, 5, 4.0, 6, 4)
    pools = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        assert passes_at_once(lm) == threads
        pools.append(make_pools(lm, token_bytes(lm.tokenizer), contexts, settings))
    for one, other in zip(*pools, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.log2_prob, other.log2_prob)


def test_passes_are_given_in_order_and_keep_their_canvases(lm: MaskedLM) -> None:
    torch.set_num_threads(3)
    canvases = torch.arange(2000, 2000 + 7 * 6).reshape(7, 6)
    parts = list(forward_rows(lm, canvases, 4, 1.0, 2))
    assert [(part.start, part.stop) for part, _ in parts] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    for part, law in parts:
        padded = torch.cat([canvases[part], canvases[part][-1:].expand(2 - len(law), -1)])
        assert torch.equal(law, lm.log2_probs(padded, 4, 1.0)[: len(law)])


def test_no_canvases_are_no_pass(lm: MaskedLM) -> None:
    torch.set_num_threads(3)
    assert list(forward_rows(lm, torch.empty(0, 6, dtype=torch.int64), 4, 1.0, 2)) == []


def test_an_encoder_is_run_by_one_thread(tmp_path) -> None:
    torch.manual_seed(0)
    shape = {"vocab_size": 261, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    encoder = load_lm(write_encoder(tmp_path, BertForMaskedLM(BertConfig(**shape, intermediate_size=48)).eval()))
    torch.set_num_threads(3)
    assert passes_at_once(encoder) == 1
    assert sum(len(law) for _, law in forward_rows(encoder, torch.full((5, 6), 7), 4, 1.0, 2)) == 5


def test_the_setting_is_what_it_was(lm: MaskedLM) -> None:
    torch.set_num_threads(3)
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="position"):
        list(forward_rows(lm, torch.full((6, 4), 7), 9, 1.0, 2))
    assert torch.get_num_threads() == 3


def test_side_by_side_runs_each_call_with_one_thread_and_no_more_than_asked() -> None:
    torch.set_num_threads(3)
    started: list[int] = []

    def call(number: int) -> tuple[int, int]:
        started.append(number)
        return number, torch.get_num_threads()

    results = side_by_side((lambda number=number: call(number) for number in range(7)), 3)
    assert next(results) == (0, 1)
    assert set(started) <= {0, 1, 2, 3}
    assert list(results) == [(number, 1) for number in range(1, 7)]
    assert sorted(started) == list(range(7))
    assert torch.get_num_threads() == 3


def test_who_stops_early_gets_the_setting_back() -> None:
    torch.set_num_threads(3)
    results = side_by_side((lambda number=number: number for number in range(9)), 2)
    assert next(results) == 0
    results.close()
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "exact", "float", "bfloat16"])
def test_four_threads_get_what_one_gets(kind: str, tmp_path: Path) -> None:
    """Each asks for positions of its own; the threads of torch are set and put back meanwhile."""
    if kind in ("bert", "roberta", "modernbert"):
        model = load_lm(write_encoder(tmp_path, random_network(kind)))
    else:
        asked = {"exact": {}, "float": {"arithmetic": "float"}, "bfloat16": {"dtype": torch.bfloat16}}
        model = load_lm(write_lm(tmp_path, ALL_BYTES, ()), **asked[kind])
    torch.set_num_threads(2)
    canvases = torch.arange(10, 10 + 4 * 9 * 12).reshape(4, 9, 12) % 200 + 5
    alone = [[model.log2_probs(canvas[None], place, 1.0) for place, canvas in enumerate(part)] for part in canvases]
    begin = Barrier(4)

    def ask(part: Tensor) -> list[Tensor]:
        begin.wait()
        return [model.log2_probs(canvas[None], place, 1.0) for place, canvas in enumerate(part)]

    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(ask, canvases))
        for one, other in zip(alone, together, strict=True):
            assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))
    assert torch.get_num_threads() == 2


def in_a_new_thread(work: Callable[[], int]) -> int:
    found: list[int] = []
    thread = Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_the_number_of_threads_is_the_caller_s_alone() -> None:
    torch.set_num_threads(3)
    assert in_a_new_thread(torch.get_num_threads) == 3
    with torch_threads(1):
        assert torch.get_num_threads() == 1
        # A thread that first computes meanwhile takes the usual number over, not this one.
        assert in_a_new_thread(torch.get_num_threads) == 3
    assert torch.get_num_threads() == 3


def test_two_threads_that_overlap_leave_nothing_behind() -> None:
    torch.set_num_threads(3)
    inside, leave = Event(), Event()

    def first() -> int:
        with torch_threads(1):
            inside.set()
            leave.wait()
        return torch.get_num_threads()

    def second() -> int:
        inside.wait()
        with torch_threads(1):
            leave.set()
        return torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        assert [call.result() for call in [pool.submit(first), pool.submit(second)]] == [3, 3]
    assert torch.get_num_threads() == in_a_new_thread(torch.get_num_threads) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("used", ["loaded", "used"])
def test_a_model_works_in_a_process_that_was_forked(used: str) -> None:
    """The threads of OpenMP do not survive a fork, and a child must not wait for them."""
    script = (
        "import os, torch\n"
        "from wm_env.lm.models.load import load_lm\n"
        "torch.set_num_threads(2)\n"
        "lm = load_lm('mini')\n"
        "canvas = torch.arange(5, 69)[None].repeat(4, 1)\n"
        f"if {used == 'used'}: lm.log2_probs(canvas, 50, 1.0)\n"
        "torch.randn(600, 600) @ torch.randn(600, 600)\n"
        "child = os.fork()\n"
        "law = lm.log2_probs(canvas, 50, 1.0)\n"
        "if not child: os._exit(0 if bool((law == law[:1]).all()) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    assert done.stdout == "0\n"
