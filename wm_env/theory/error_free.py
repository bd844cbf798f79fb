"""Most bits that a block carries without a single error, for three classes of codes, with any amount of shared key.

An error-free code of a state maps each key to a rule: the message bits choose a candidate, and the candidate tells the
first bits of the message. A candidate that tells n bits is sent with probability at most 2^-n given the key, because
the message is uniform. Three classes differ in what n may depend on:

* n = l(s), the state alone: l bits pass at the price 1 - U(l) of total variation (`error_free_bits_by_state`).
* n = l(s, k), state and key: `error_free_bits`, an exact linear programme. Key k has a law q_k <= 2^-l(k) of
  candidates, and the law of the state is their mean. All q_k of one length l are one law with total mass pi_l:

      max sum_l l pi_l,    0 <= q_l(x) <= 2^-l pi_l,    sum_x q_l(x) = pi_l,    sum_l q_l = q,    V(q, p) <= t.

  A law below 2^-l is a mean of codes with l bits (McNaughton's rule for preemptive scheduling on parallel machines), so
  the programme is attained. In its dual the candidates have prices a(x): minimise sum_x p(x) a(x) + t (max a - min a)
  where the 2^l cheapest candidates cost at least l on average, for every l. Likely candidates are cheap, so the
  prices rise along the sorted law, and the programme has one variable a candidate and one row a length.
* n = n(s, k, x), the candidate as well: at most H(X|S) of the law that is sent, since the mean of n given the key is at
  most the entropy given the key. `wm_env.optimum.solve` has that bound with its budget; mixtures of dyadic prefix codes
  (`agents.planner.prefix_codes`) come near it.

All three hold for a decoder that knows the state, and so for any decoder. Budgets are means over blocks and states.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from wm_env.common.arrays import Floats, Ints
from wm_env.theory.limits import shared_key_success

_ROUNDING = 1e-12


def error_free_bits(covers: Sequence[Floats], state_probs: Sequence[Floats], tv_budget: float) -> float:
    """Most bits per block without error where the length is a function of state and key.

    No code in which the length is a function of state and key has more bits without error at this average total
    variation and this law of the states; with enough shared key one has as many.

    Args:
        covers: P(x|s) of every block, shape (N, Q) each.
        state_probs: law of the states of every block, shape (N,) each.
        tv_budget: mean over blocks and states, >= 0.
    """
    cover, weights = _all_states(covers, state_probs)
    reached = weights > 0
    cover, weights = np.sort(cover[reached], axis=1)[:, ::-1], weights[reached]
    states, candidates = cover.shape
    most = np.log2((cover > 0).sum(1)).astype(np.int64)
    # Prices as a first price and increments, all >= 0: a_i = sum_(j <= i) step_j.
    tails = cover[:, ::-1].cumsum(1)[:, ::-1]
    rows, columns, entries, least = [], [], [], []
    count = 0
    for bits in range(1, int(most.max(initial=0)) + 1):
        able, cheapest = np.flatnonzero(most >= bits), np.arange(2**bits)
        rows.append(np.repeat(count + np.arange(len(able)), 2**bits))
        columns.append((able[:, None] * candidates + cheapest).ravel())
        # The sum of the 2^l cheapest prices counts step_j once for each of them from j on.
        entries.append(np.tile(-(2.0**bits - cheapest), len(able)))
        least.append(np.full(len(able), -bits * 2.0**bits))
        count += len(able)
    state, later = np.nonzero(cover[:, 1:] > 0)
    rows += [count + state, count + np.arange(states)]
    columns += [state * candidates + later + 1, np.full(states, cover.size)]
    entries += [np.ones(len(state)), np.full(states, -1.0)]
    least.append(np.zeros(states))
    # Prices of padding are free, so that they can satisfy no row and cost nothing.
    matrix = coo_array(
        (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))),
        shape=(count + states, cover.size + 1),
    )
    answer = linprog(  # type: ignore[call-overload]
        np.append((weights[:, None] * tails).ravel(), tv_budget),
        A_ub=matrix.tocsr(),
        b_ub=np.concatenate(least),
        bounds=(0, None),
        method="highs",
    )
    if answer.status != 0:
        raise ValueError(f"tv_budget={tv_budget}: no solution found ({answer.message})")
    return float(answer.fun)


def error_free_bits_by_state(covers: Sequence[Floats], state_probs: Sequence[Floats], tv_budget: float) -> float:
    """Most bits per block without error where the length is a function of the state alone; with any shared key.

    No code in which the length is a function of the state has more. A state carries l bits at the price 1 - U(l), if
    it has 2^l candidates. The budget goes to the cheapest bits of all states, along the convex hull of each state's
    prices, and may end inside a step; whole lengths have at most as many.
    Arguments as of `error_free_bits`.
    """
    cover, weights = _all_states(covers, state_probs)
    most = np.log2((cover > 0).sum(1)).astype(np.int64)
    lengths: Ints = np.arange(most.max() + 1)
    price = 1 - np.stack([shared_key_success(cover, bits) for bits in lengths.tolist()], axis=1)
    price = np.where(price <= _ROUNDING, 0, price)
    state, length = np.arange(len(cover)), np.zeros(len(cover), dtype=np.int64)
    costs, gains = [np.zeros(len(cover))], [np.zeros(len(cover))]
    for _ in lengths[1:]:
        further, added = lengths - length[:, None], price - price[state, length][:, None]
        possible = (further > 0) & (lengths <= most[:, None])
        per_bit = np.divide(added, further, out=np.full(added.shape, np.inf), where=possible)
        longer = np.where(possible.any(1), per_bit.argmin(1), length)
        costs.append(weights * (price[state, longer] - price[state, length]))
        gains.append(weights * (longer - length))
        length = longer
    cost, gain = np.concatenate(costs), np.concatenate(gains)
    cheapest_first = np.argsort(np.divide(cost, gain, out=np.zeros_like(cost), where=gain > 0), kind="stable")
    cost, gain = cost[cheapest_first], gain[cheapest_first]
    left = tv_budget - (cost.cumsum() - cost)
    share = np.divide(left, cost, out=np.ones_like(cost), where=cost > 0).clip(0, 1)
    return float(gain @ share)


def _all_states(covers: Sequence[Floats], state_probs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The states of all blocks, rows padded to one number of candidates, and their share of the mean over blocks."""
    widest = max(cover.shape[1] for cover in covers)
    padded = [np.pad(cover, ((0, 0), (0, widest - cover.shape[1]))) for cover in covers]
    return np.concatenate(padded), np.concatenate(state_probs) / len(covers)
