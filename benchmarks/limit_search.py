"""Codes of random small problems, searched exhaustively, against the printed limits.

    python benchmarks/limit_search.py --problems 1000

Every problem is a random law of a few candidates. The best code is found by linear programmes over all decoding maps:
the key draws the map, every message has a law for every map, and the total variation is that of the messages' laws,
mean over messages. A limit is beaten if a code has more than it, and attained if one has as much.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    from wm_env.common.arguments import parse
    from wm_env.common.arrays import Floats, Ints
    from wm_env.theory.capacity import best_rate, dense_cover
    from wm_env.theory.channel_capacity import channel_capacity
    from wm_env.theory.common_maps import common_map_limits
    from wm_env.theory.error_free import error_free_bits
    from wm_env.theory.limits import block_limit, key_limited_success
    from wm_env.theory.long_texts import text_success

SLACK = 1e-6
"""More than the error of a linear programme."""


@dataclass(frozen=True)
class Options:
    """How much is searched."""

    problems: int = 1000
    """Random problems, the same number of every kind, or one more."""
    seed: int = 0
    """Seed of the problems."""


@dataclass(frozen=True)
class Outcome:
    """One problem: the best code found, and the limit; larger is better.

    Attributes:
        best: of the code.
        limit: no code is said to have more.
        reached: a code is said to have as much; the limit itself unless that is rounded in one direction.
    """

    best: float
    limit: float
    reached: float | None = None


@dataclass(frozen=True)
class Kind:
    """A limit and how to try to break it.

    Attributes:
        name: what is limited.
        attained: the documentation says that a code has it.
        problem: one random problem.
    """

    name: str
    attained: bool
    problem: Callable[[np.random.Generator], Outcome]


def best_code(
    covers: Floats, seen: Ints, state_probs: Floats, bits: int, variation: float, gain: Floats | None = None
) -> float:
    """The most that a code with any key gains: by default its success probability.

    Args:
        covers: p(x|s), shape (N, Q), positive.
        seen: what the decoder sees of a candidate, numbers from 0, shape (N, Q).
        state_probs: P(s), shape (N,).
        bits: l.
        variation: most total variation, mean over states and messages.
        gain: of deciding on word w' when w was sent, shape (2^l, 2^l); the identity by default.
    """
    states, candidates = covers.shape
    words = 2**bits
    maps = np.array(list(itertools.product(range(words), repeat=int(seen.max()) + 1)))
    shape = len(maps), states, words, candidates
    masses, choices = int(np.prod(shape)), len(maps)
    mass = np.arange(masses).reshape(shape)
    excess = masses + choices + np.arange(states * words * candidates).reshape(shape[1:])
    columns = masses + choices + excess.size
    worth = np.zeros(columns)
    worth[:masses] = (np.eye(words) if gain is None else gain)[
        np.arange(words)[None, None, :, None], maps[:, seen][:, :, None, :]
    ].ravel()

    # Every message is as likely under every map: sum_x y(d, s, w, x) = P(d) Z(s) / 2^l.
    rows = np.arange(choices * states * words).reshape(shape[:3])
    parts = [
        (np.repeat(rows.ravel(), candidates), mass.ravel(), np.ones(masses)),
        (rows.ravel(), np.repeat(masses + np.arange(choices), states * words), _shares(state_probs, words, choices)),
        (np.full(choices, rows.size), masses + np.arange(choices), np.ones(choices)),
    ]
    equal, total = _matrix(parts, rows.size + 1, columns), np.append(np.zeros(rows.size), 1.0)
    # What a message has of a candidate beyond the cover's share is excess, which is bounded.
    each = np.arange(excess.size).reshape(shape[1:])
    parts = [
        (np.broadcast_to(each, shape).ravel(), mass.ravel(), np.ones(masses)),
        (each.ravel(), excess.ravel(), -np.ones(excess.size)),
        (np.full(excess.size, excess.size), excess.ravel(), np.ones(excess.size)),
    ]
    share = np.broadcast_to((state_probs[:, None] * covers / words)[:, None, :], shape[1:])
    return _most(worth, _matrix(parts, excess.size + 1, columns), np.append(share.ravel(), variation), equal, total)


def _shares(state_probs: Floats, words: int, choices: int) -> Floats:
    shares: Floats = -np.tile(np.repeat(state_probs / words, words), choices)
    return shares


def _most(worth: Floats, upper: csr_array, bounds: Floats, equal: csr_array, totals: Floats) -> float:
    """The value of a linear programme in nonnegative variables."""
    least = linprog(-worth, A_ub=cast(Any, upper), b_ub=bounds, A_eq=cast(Any, equal), b_eq=totals).fun
    assert least is not None
    return -float(least)


def _matrix(parts: list[tuple[Ints, Ints, Floats]], rows: int, columns: int) -> csr_array:
    row, column, entry = (np.concatenate(each) for each in zip(*parts, strict=True))
    return csr_array((entry, (row, column)), shape=(rows, columns))


def any_key(rng: np.random.Generator) -> Outcome:
    """Success of l bits with any key, the state known: min(1, U + TV, Q / 2^l)."""
    bits, candidates = int(rng.integers(1, 3)), int(rng.integers(2, 5))
    cover, variation = rng.dirichlet(np.full(candidates, 0.7), 1), float(rng.choice([0.0, 0.05, 0.2]))
    limit = block_limit(cover, np.ones(1), bits)
    best = best_code(cover, np.arange(candidates)[None], np.ones(1), bits, variation)
    return Outcome(best, 1 - limit.shared_key_block_error(variation))


def bit_errors(rng: np.random.Generator) -> Outcome:
    """1 - bit error with any key, the state known: at most 1 - phi."""
    candidates = int(rng.integers(2, 5))
    cover, variation = rng.dirichlet(np.full(candidates, 0.7), 1), float(rng.choice([0.0, 0.05, 0.2]))
    difference = np.arange(4)[:, None] ^ np.arange(4)
    gain = 1 - np.bitwise_count(difference) / 2
    best = best_code(cover, np.arange(candidates)[None], np.ones(1), 2, variation, gain)
    return Outcome(best, 1 - block_limit(cover, np.ones(1), 2).bit_error(variation))


def unknown_state(rng: np.random.Generator) -> Outcome:
    """Success with any key at TV 0 where the decoder does not know which of some states it is: one map for all."""
    states, candidates = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    covers, state_probs = rng.dirichlet(np.ones(candidates), states), rng.dirichlet(np.ones(states))
    names = np.stack([rng.permutation(5)[:candidates] for _ in range(states)])
    seen = np.unique(names, return_inverse=True)[1].reshape(names.shape)
    best = best_code(covers, seen, state_probs, 1, 0.0)
    return Outcome(best, common_map_limits(covers, seen, state_probs, 1).bound)


def whole_texts(rng: np.random.Generator) -> Outcome:
    """Success of l bits over two blocks of known, independent states at TV 0: U_n."""
    states = int(rng.integers(1, 3))
    covers, state_probs = rng.dirichlet(np.ones(2), states), rng.dirichlet(np.ones(states))
    pairs = list(itertools.product(range(states), repeat=2))
    texts = np.array([np.outer(covers[first], covers[second]).ravel() for first, second in pairs])
    chances = np.array([state_probs[first] * state_probs[second] for first, second in pairs])
    bits = int(rng.integers(1, 3))
    # A decoder that knows the states has a map of its own for every pair of states.
    best = sum(
        chance * best_code(text[None], np.arange(4)[None], np.ones(1), bits, 0.0)
        for chance, text in zip(chances, texts, strict=True)
    )
    found = text_success(covers, state_probs, 2, bits)
    return Outcome(float(best), found.upper, found.lower)


def few_keys(rng: np.random.Generator) -> Outcome:
    """Success of one bit with 0 or 1 key bits, however they are used: 2^(r-l) sum min(p, 2^-r) or P0, + TV."""
    candidates, key_bits = int(rng.integers(2, 5)), int(rng.integers(2))
    pmf, variation = rng.dirichlet(np.ones(candidates)), float(rng.choice([0.0, 0.05, 0.2]))
    maps = np.array(list(itertools.product(range(2), repeat=candidates)))
    best = max(_success_of_maps(pmf, maps[list(chosen)], variation) for chosen in _choices(len(maps), 1 << key_bits))
    return Outcome(best, min(1.0, key_limited_success(pmf, 1, key_bits) + variation))


def _choices(maps: int, keys: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations_with_replacement(range(maps), keys)


def _success_of_maps(pmf: Floats, maps: Ints, variation: float) -> float:
    """The most success of one bit whose key chooses among given maps with equal chances."""
    keys, candidates = maps.shape
    shape = keys, 2, candidates
    masses = keys * 2 * candidates
    mass, excess = np.arange(masses).reshape(shape), masses + np.arange(2 * candidates).reshape(2, candidates)
    columns = masses + excess.size
    worth = np.append((maps[:, None] == np.arange(2)[None, :, None]).ravel(), np.zeros(excess.size))
    rows = np.repeat(np.arange(keys * 2), candidates)
    equal = _matrix([(rows, mass.ravel(), np.ones(masses))], keys * 2, columns)
    each = np.arange(excess.size).reshape(2, candidates)
    parts = [
        (np.broadcast_to(each, shape).ravel(), mass.ravel(), np.ones(masses)),
        (each.ravel(), excess.ravel(), -np.ones(excess.size)),
        (np.full(excess.size, excess.size), excess.ravel(), np.ones(excess.size)),
    ]
    bounds = np.append(np.tile(pmf / 2, 2), variation)
    return _most(worth, _matrix(parts, excess.size + 1, columns), bounds, equal, np.full(keys * 2, 1 / (2 * keys)))


def lengths_by_key(rng: np.random.Generator) -> Outcome:
    """Bits without error where key and state choose the length, of 0 to 2 bits."""
    candidates = int(rng.integers(3, 6))
    pmf, variation = rng.dirichlet(np.full(candidates, 0.8)), float(rng.choice([0.0, 0.1]))
    codes = [
        (bits, np.array(words))
        for bits in range(3)
        for words in itertools.product(range(2**bits), repeat=candidates)
        if len(set(words)) == 2**bits
    ]
    columns = (len(codes) + 1) * candidates
    parts, count = [], 0
    for number, (bits, words) in enumerate(codes):
        for word in range(2**bits):
            places = number * candidates + np.arange(candidates)
            parts.append((np.full(candidates, count), places, (words == word) - 0.5**bits))
            count += 1
    parts.append((np.full(columns - candidates, count), np.arange(columns - candidates), np.ones(columns - candidates)))
    excess = columns - candidates + np.arange(candidates)
    laws = (np.tile(np.arange(candidates), len(codes)), np.arange(columns - candidates))
    below = [
        (*laws, np.ones(columns - candidates)),
        (np.arange(candidates), excess, -np.ones(candidates)),
        (np.full(candidates, candidates), excess, np.ones(candidates)),
    ]
    gain = np.append(np.repeat([bits for bits, _ in codes], candidates), np.zeros(candidates))
    best = _most(
        gain,
        _matrix(below, candidates + 1, columns),
        np.append(pmf, variation),
        _matrix(parts, count + 1, columns),
        np.append(np.zeros(count), 1.0),
    )
    return Outcome(best, error_free_bits([pmf[None]], [np.ones(1)], variation))


def behind_a_channel(rng: np.random.Generator) -> Outcome:
    """Rate behind a channel: the certificate against random starts of another search."""
    states, tokens = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    state_probs, cover = rng.dirichlet(np.ones(states)), rng.dirichlet(np.ones(tokens), states)
    channel = rng.dirichlet(np.full(tokens, 0.5), tokens)
    found = channel_capacity(state_probs, cover, channel, gap=1e-5, iterations=20_000)
    law = dense_cover(*(torch.from_numpy(each) for each in (state_probs, cover, channel)))
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    searched = best_rate(law, states * tokens, restarts=5, generator=generator)
    return Outcome(float(searched.rate), found.rate + found.gap)


KINDS = (
    Kind("l bits, any key, state known: U + TV", True, any_key),
    Kind("one bit, 0 or 1 key bits, state known", False, few_keys),
    Kind("bit errors, any key, state known: phi", False, bit_errors),
    Kind("l bits, any key, state unknown, TV 0", True, unknown_state),
    Kind("l bits over two blocks, any key, TV 0: U_n", True, whole_texts),
    Kind("bits without error, lengths by state and key", True, lengths_by_key),
    Kind("rate behind a channel: certificate", False, behind_a_channel),
)


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, problems=MANY, seed=SEEDS)
    rng = np.random.default_rng(options.seed)
    print("| limit | problems | beaten | attained | largest excess | largest shortfall |\n|" + " --- |" * 6)
    for number, kind in enumerate(KINDS):
        count = options.problems // len(KINDS) + (number < options.problems % len(KINDS))
        found = [kind.problem(rng) for _ in range(count)]
        excess = np.array([each.best - each.limit for each in found])
        short = np.array([(each.limit if each.reached is None else each.reached) - each.best for each in found])
        attained = f"{int((short < SLACK).sum())}" + (" (said of all)" if kind.attained else "")
        print(
            f"| {kind.name} | {count} | {int((excess > SLACK).sum())} | {attained} | {excess.max(initial=-1):.1e} | "
            f"{short.max(initial=0):.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    run_benchmark(main)
