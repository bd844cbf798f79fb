"""What marking costs the sender: processor time of writing with a mark over that of plain sampling, in one process."""

import time
from collections.abc import Callable

import numpy as np
import torch
from mark_schemes.door import Mark, payload_of
from mark_texts import CONTEXT, held_out_prompts, marks

from polar.text.schemes.robust.sampling import Sampling, write_forward
from wm_env.lm.models.masked_lm import MaskedLM


def writing_ratio(lm: MaskedLM, name: str, temperature: float, length: int, rounds: int) -> float:
    """Median over the rounds of the ratio of times, marked over plain, a text of its own each."""
    ratios = []
    for number in range(rounds):
        context = np.array([lm.encode(held_out_prompts()[number])[:CONTEXT]])
        plain, marked = (_writing(lm, marks()[each], context, temperature, length, number) for each in ("plain", name))
        first, second = (plain, marked) if number % 2 else (marked, plain)
        spent = {first: _seconds(first)}
        spent[second] = _seconds(second)
        ratios.append(spent[marked] / spent[plain])
    return float(np.median(ratios))


def _writing(
    lm: MaskedLM, mark: Mark, context: np.ndarray, temperature: float, length: int, number: int
) -> Callable[[], object]:
    def write() -> object:
        chooser = mark.chooser(1, number, payload_of(number), length)
        with torch.no_grad():
            return write_forward(lm, context, [chooser], length, Sampling(temperature))

    return write


def _seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start
