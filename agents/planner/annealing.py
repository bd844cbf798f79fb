"""Words for symbols that several states share: a joint partitioning problem, solved by simulated annealing.

The decoder does not know the state, so a symbol has one word in all its states, and every state would like its words to
hold 2^-l each. The score of a state with loads L_w and capacity c = 2^-l is

    sum_w min(L_w, c) + OCCUPIED sum_w [L_w > 0] + (PAIRS / l) sum_(v, w one bit apart) min(L_v + L_w, 2c).

The first sum is the mass that is decoded rightly at total variation 0. A word without candidates is one that no
budget can set right. The last sum says how much surplus Hamming neighbours could take, at the price of one wrong bit.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wm_env.common.arrays import Floats, Ints

_PAIRS = 0.6
_OCCUPIED = 0.02
_NO_MASS = 1e-9
_PROPOSALS = 80
"""Proposals for each symbol."""
_HOTTEST, _COLDEST = 1e-2, 1e-4
"""Temperatures at the beginning and at the end, in units of the mean weight of a state."""


@dataclass(frozen=True)
class Symbols:
    """Symbols with the states that have them.

    Attributes:
        mass: of every symbol the pairs (state, p(x|s)).
        at: symbols of every state.
    """

    mass: tuple[tuple[tuple[int, float], ...], ...]
    at: tuple[tuple[int, ...], ...]


def number_members(pmf: Floats, symbol: Ints) -> tuple[Symbols, Ints]:
    """Symbols as lists, and the number 0, 1, ... of every candidate's symbol, shape (N, Q), -1 where the pmf is 0."""
    present = pmf > 0
    number = np.full(symbol.shape, -1, dtype=np.int64)
    number[present] = np.unique(symbol[present], return_inverse=True)[1]
    mass: list[list[tuple[int, float]]] = [[] for _ in range(int(number.max()) + 1)]
    for state, place in zip(*np.nonzero(present), strict=True):
        mass[number[state, place]].append((int(state), float(pmf[state, place])))
    at = tuple(tuple(row[row >= 0].tolist()) for row in number)
    return Symbols(tuple(tuple(pairs) for pairs in mass), at), number


def anneal(symbols: Symbols, weights: Sequence[float], start: Sequence[int], message_bits: int) -> list[int]:
    """Words of the symbols with a high weighted sum of the states' scores.

    Proposals, accepted by Metropolis' rule while it cools: a symbol moves to another word, or changes places with
    another symbol of one of its states. Deterministic.

    Args:
        symbols: which symbol has which mass in which state.
        weights: of the states.
        start: a word for every symbol.
        message_bits: l >= 1.
    """
    rng = random.Random(0)
    words = list(start)
    count = 2**message_bits
    loads = [[0.0] * count for _ in symbols.at]
    for word, pairs in zip(words, symbols.mass, strict=True):
        for state, mass in pairs:
            loads[state][word] += mass
    mean = sum(weights) / len(weights)
    steps = _PROPOSALS * len(words)
    for step in range(steps):
        temperature = mean * _HOTTEST * (_COLDEST / _HOTTEST) ** (step / steps)
        symbol = rng.randrange(len(words))
        old, other = words[symbol], -1
        if rng.random() < 0.5:
            new = rng.randrange(count)
        else:
            state, _ = rng.choice(symbols.mass[symbol])
            other = rng.choice(symbols.at[state])
            new = words[other]
        if new == old:
            continue
        changes = _changes(symbols, symbol, other)
        gain = sum(weights[state] * _gain(loads[state], old, new, mass, message_bits) for state, mass in changes)
        if gain >= 0 or rng.random() < math.exp(gain / temperature):
            for state, mass in changes:
                loads[state][old] -= mass
                loads[state][new] += mass
            words[symbol] = new
            if other >= 0:
                words[other] = old
    return words


def _changes(symbols: Symbols, symbol: int, other: int) -> Sequence[tuple[int, float]]:
    """The mass that leaves the word of `symbol` for that of `other` (-1: nobody) in every state."""
    if other < 0:
        return symbols.mass[symbol]
    change = dict(symbols.mass[symbol])
    for state, mass in symbols.mass[other]:
        change[state] = change.get(state, 0.0) - mass
    return tuple(change.items())


def _gain(loads: Sequence[float], old: int, new: int, mass: float, message_bits: int) -> float:
    """Change of a state's score if `mass` leaves word `old` for word `new`."""
    cap = 1 / (1 << message_bits)
    before, after = (loads[old], loads[new]), (loads[old] - mass, loads[new] + mass)
    gain = min(after[0], cap) + min(after[1], cap) - min(before[0], cap) - min(before[1], cap)
    occupied = (after[0] > _NO_MASS) + (after[1] > _NO_MASS) - (before[0] > _NO_MASS) - (before[1] > _NO_MASS)
    in_pairs = 0.0
    for bit in range(message_bits):
        mask = 1 << bit
        # A pair of the two words themselves keeps its mass.
        if old ^ new != mask:
            beside = loads[old ^ mask], loads[new ^ mask]
            in_pairs += min(after[0] + beside[0], 2 * cap) - min(before[0] + beside[0], 2 * cap)
            in_pairs += min(after[1] + beside[1], 2 * cap) - min(before[1] + beside[1], 2 * cap)
    return gain + _OCCUPIED * occupied + _PAIRS / message_bits * in_pairs
