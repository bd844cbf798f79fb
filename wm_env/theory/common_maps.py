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
which share one, a single bit cannot serve all, and the least block error is 1/6.

`common_map_limits` searches the maps by integer programming, whose bound on the best map makes a bound on all laws of
maps; so it proves what no code of such a decoder exceeds. With l key bits and a single map that is `best_common_map`.
Both add the total variation t: the mass that a code's law has above the cover's is at most t.

A tool for research: `benchmarks/common_maps.py` says with it how much the planner loses. No command needs it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, vstack

from wm_env.common.arrays import Floats, Ints

_ROUNDING = 1e-9
_PROVEN = 1e-7
"""Bounds this near to the success are no further apart than the solver's tolerance."""
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


@dataclass(frozen=True)
class MapLimit:
    """Success at TV 0 of the best code of a decoder that knows only the law of the states.

    Attributes:
        success: some code has it.
        bound: no code has more.
    """

    success: float
    bound: float


def common_map_limits(
    pmf: Floats, seen: Ints, state_probs: Floats, message_bits: int, rounds: int = 100, seconds: float = 10.0
) -> MapLimit:
    """The best success probability over all laws of common maps, any amount of shared key, with a proven bound.

    Exact (both numbers equal to 1e-7) if the integer programmes finish, as they do for some twenty symbols.

    Args:
        pmf: p(x|s), shape (N, Q).
        seen: number 0, 1, ... of what the decoder sees of a candidate, shape (N, Q).
        state_probs: law of the states, shape (N,).
        message_bits: l >= 1.
        rounds: most maps that are added.
        seconds: limit of each search for a map.
    """
    number = np.where(pmf > 0, seen, 0)
    maps = best_common_map(pmf, seen, state_probs, message_bits, seconds)[0][None]
    bound = 1.0
    for _ in range(rounds):
        prices = _solve(pmf, maps[:, number], state_probs, message_bits)
        words, worth = _dearest_map(prices.worth, pmf, number, message_bits, np.inf, seconds)
        excess = worth * 0.5**message_bits - prices.of_map
        bound = min(bound, prices.value + max(excess, 0.0))
        if bound - prices.value < _PROVEN or (maps == words).all(1).any():
            break
        maps = np.concatenate([maps, words[None]])
    return MapLimit(prices.value, bound)


def best_common_map(
    pmf: Floats, seen: Ints, state_probs: Floats, message_bits: int, seconds: float = 10.0
) -> tuple[Ints, MapLimit]:
    """The one map of symbols to words that a decoder without the state uses best with l key bits, and its limit.

    The success is max_d E_S sum_w min(p_S(d^-1(w)), 2^-l). No code that uses l key bits in any way has more, as in
    `wm_env.theory.limits.key_limited_success`. Arguments as of `common_map_limits`; the words have shape (numbers,).
    """
    number = np.where(pmf > 0, seen, 0)
    words, bound = _dearest_map(state_probs[:, None] * pmf, pmf, number, message_bits, 0.5**message_bits, seconds)
    loads = np.zeros((len(pmf), 1 << message_bits))
    np.add.at(loads, (np.arange(len(pmf))[:, None], words[number]), pmf)
    success = float(state_probs @ np.minimum(loads, 0.5**message_bits).sum(1))
    return words, MapLimit(success, max(bound, success))


def _dearest_map(
    worth: Floats, pmf: Floats, seen: Ints, message_bits: int, cap: float, seconds: float
) -> tuple[Ints, float]:
    """The map with the largest sum over states and words, by integer programming; and a bound on that of every map.

    Of a word counts the dearest candidate if `cap` is infinite, otherwise the sum of its candidates' worth, at most the
    cap times the state's probability, which is the row's sum of `worth`.
    """
    states, count = len(pmf), 1 << message_bits
    numbers = int(seen.max()) + 1
    state, place = np.nonzero(pmf > 0)
    value = worth[state, place]
    # Variables: d(number, word), and for every (state, candidate, word) what the word takes of the candidate.
    placed = numbers * count
    item, word = np.indices((len(state), count)).reshape(2, -1)
    part = placed + np.arange(len(item))
    counted = np.where(np.isinf(cap), 1.0, value[item])
    size = placed + len(item)
    one_word = coo_array(
        (np.ones(placed), (np.repeat(np.arange(numbers), count), np.arange(placed))), shape=(numbers, size)
    )
    own_word = coo_array(
        (
            np.repeat([1.0, -1.0], len(item)),
            (
                np.tile(np.arange(len(item)), 2),
                np.concatenate([part, seen[state, place][item] * count + word]),
            ),
        ),
        shape=(len(item), size),
    )
    full = coo_array((counted, (state[item] * count + word, part)), shape=(states * count, size))
    room = np.ones(states) if np.isinf(cap) else cap * worth.sum(1)
    answer = milp(
        np.concatenate([np.zeros(placed), -value[item]]),
        integrality=np.concatenate([np.ones(placed), np.zeros(len(item))]),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_word.tocsr(), 1, 1),
            LinearConstraint(own_word.tocsr(), -np.inf, 0),
            LinearConstraint(full.tocsr(), -np.inf, np.repeat(room, count)),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if answer.x is None:
        return np.zeros(numbers, dtype=np.int64), float(value.sum())
    words: Ints = answer.x[:placed].reshape(numbers, count).argmax(1)
    return words, -float(answer.mip_dual_bound)


def common_map_success(
    pmf: Floats, seen: Ints, state_probs: Floats, message_bits: int, maps: Ints, rounds: int, seed: int = 0
) -> float:
    """The best success probability over laws of the given maps and of those that `rounds` of column generation add.

    Args:
        pmf, seen, state_probs, message_bits: as in `common_map_limits`.
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
