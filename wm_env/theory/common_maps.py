"""Success of a decoder that knows only the law of the states, with any amount of shared key.

The key lets both ends agree on a map D of symbols to words, drawn anew for every block from a law pi of maps. The
encoder knows the state s and sends T_s(x, D) of its candidate x for the word D(x); every word is sent with mass
pi(D) / K, K = 2^l. For given maps the best pi and T solve a linear programme:

    max sum_s Z(s) sum_(x,D) T_s(x, D),   sum_(x: D(x) = w) T_s(x, D) <= pi(D) / K,   sum_D T_s(x, D) <= p(x|s).

Its prices lambda_s(x) of the candidates' masses (in units of Z(s)) tell which map to add: the one with the largest
sum_s Z(s) / K sum_w max over x with D(x) = w of (1 - lambda_s(x))+. If no map is worth more than the programme's
price of sum_D pi(D) = 1, the law of maps is the best.

U = sum_x min(p(x), 1/K) remains an upper bound. It is reached where maps can tell apart the K dearest candidates of
every state at once, a problem of colouring. That can fail: of three states with two candidates each, every two of
which share one, a single bit cannot serve all.

A tool for research: `benchmarks/common_maps.py` says with it how much the planner loses. No command needs it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from wm_env.common.arrays import Floats, Ints

_ROUNDING = 1e-9
_TRIES = 4
_SWEEPS = 3
_SPREAD = 0.5
"""Standard deviation of the random part of log importance, by which symbols are ordered when a map is sought."""


@dataclass(frozen=True)
class _Prices:
    """The programme's solution.

    Attributes:
        value: the success probability.
        worth: Z(s) (1 - lambda_s(x))+ of the candidates, shape (N, Q), 0 where p = 0.
        of_map: what a map must be worth to be used.
    """

    value: float
    worth: Floats
    of_map: float


def common_map_success(
    pmf: Floats, seen: Ints, state_probs: Floats, message_bits: int, maps: Ints, rounds: int, seed: int = 0
) -> float:
    """The best success probability over laws of the given maps and of those that `rounds` of column generation add.

    Args:
        pmf: p(x|s), shape (N, Q).
        seen: number 0, 1, ... of what the decoder sees of a candidate, shape (N, Q).
        state_probs: law of the states, shape (N,).
        message_bits: l >= 1.
        maps: word of every number in `seen`, shape (maps, numbers), at least one map.
        rounds: most maps that are added, one after the other; fewer if no better one is found or U is reached.
        seed: of the search for maps, which is not exhaustive.
    """
    rng = np.random.default_rng(seed)
    limit = float(state_probs @ np.minimum(pmf, 0.5**message_bits).sum(1))
    number = np.where(pmf > 0, seen, 0)
    prices = _solve(pmf, maps[:, number], state_probs, message_bits)
    for _ in range(rounds):
        if prices.value > limit - _ROUNDING:
            break
        tries = [_find_map(prices.worth, number, maps.shape[1], message_bits, rng) for _ in range(_TRIES)]
        worth, words = max(tries, key=lambda each: each[0])
        if worth * 0.5**message_bits <= prices.of_map + _ROUNDING:
            break
        maps = np.concatenate([maps, words[None]])
        prices = _solve(pmf, maps[:, number], state_probs, message_bits)
    return prices.value


def _solve(pmf: Floats, words: Ints, state_probs: Floats, message_bits: int) -> _Prices:
    """The linear programme for maps given as the word of every candidate, shape (maps, N, Q)."""
    maps, states, candidates = words.shape
    count = 1 << message_bits
    masses, points = words.size, maps * states * count
    number, state, place = np.indices(words.shape).reshape(3, -1)
    variable = np.arange(masses)
    point = (number * states + state) * count + words.ravel()
    of_point = masses + np.arange(points) // (states * count)
    full_words = coo_array(
        (
            np.repeat([1.0, -1 / count], [masses, points]),
            (np.append(point, np.arange(points)), np.append(variable, of_point)),
        ),
        shape=(points, masses + maps),
    )
    whole_candidates = coo_array(
        (np.ones(masses), (state * candidates + place, variable)), shape=(pmf.size, masses + maps)
    )
    # The type stubs do not know that sparse matrices are allowed.
    solution = linprog(  # type: ignore[call-overload]
        -np.append(state_probs[state], np.zeros(maps)),
        A_ub=vstack([full_words, whole_candidates]).tocsr(),
        b_ub=np.append(np.zeros(points), pmf.ravel()),
        A_eq=np.append(np.zeros(masses), np.ones(maps))[None],
        b_eq=[1.0],
        method="highs-ipm",
    )
    price = -solution.ineqlin.marginals[points:].reshape(pmf.shape)
    worth = np.where(pmf > 0, np.maximum(state_probs[:, None] - price, 0), 0)
    return _Prices(-solution.fun, worth, -float(solution.eqlin.marginals[0]))


def _find_map(
    worth: Floats, seen: Ints, numbers: int, message_bits: int, rng: np.random.Generator
) -> tuple[float, Ints]:
    """A map with a large sum_s sum_w max of the worth of the candidates of w; this sum, and the words (numbers,).

    One symbol after the other, in an order of importance that is partly random, goes to the word where it adds most;
    then each is taken up and put where it adds most now.
    """
    members = [np.nonzero((seen == number) & (worth > 0)) for number in range(numbers)]
    total = np.array([worth[rows].sum() for rows in members])
    words = np.full(numbers, -1, dtype=np.int64)
    dearest = np.zeros((len(worth), 1 << message_bits))
    for number in np.argsort(-total * np.exp(_SPREAD * rng.normal(size=numbers)), kind="stable"):
        state, place = members[number]
        words[number] = _most_added(worth[state, place], dearest[state], rng)
        dearest[state, words[number]] = np.maximum(dearest[state, words[number]], worth[state, place])
    for _ in range(_SWEEPS):
        before = words.copy()
        for number in rng.permutation(numbers):
            state, place = members[number]
            others = np.where(seen[state] == number, 0, worth[state])
            words[number] = _most_added(worth[state, place], _dearest(others, words[seen[state]], message_bits), rng)
        if np.array_equal(words, before):
            break
    return float(_dearest(worth, words[seen], message_bits).sum()), words


def _most_added(worth: Floats, dearest: Floats, rng: np.random.Generator) -> int:
    """The word to which candidates of several states (n,) add most, beside the dearest ones there (n, 2^l)."""
    added = np.maximum(worth[:, None] - dearest, 0).sum(0)
    return int(rng.choice(np.flatnonzero(added >= added.max() - 1e-15)))


def _dearest(worth: Floats, words: Ints, message_bits: int) -> Floats:
    """The largest worth in every word, shape (N, 2^l)."""
    largest = np.zeros((len(worth), 1 << message_bits))
    np.maximum.at(largest, (np.arange(len(worth))[:, None], words), worth)
    return largest
