"""What one block can carry at best: success, bit error and zero error for l message bits, with a TV budget.

Both ends know the state, so the law p of a block over Q candidates; the message is uniform on K = 2^l words. However l
key bits are used, the success probability is at most min(1, P0 + t), t the total variation of the messages' laws, mean
over messages, and P0 the value of the best partition of the candidates into K bins,

    P0 = max over partitions of sum_w min(p(B_w), 1/K);

a pad reaches it. With more shared key the largest success is min(1, U + t), U = sum_x min(p(x), 1/K) >= P0. Q
candidates with mass never carry more than Q of the K words, which caps both at Q/K. l bits pass without error at TV 0,
l fixed, if and only if l <= H_min(p).

Every limit holds for any decoder that knows at most the state, but a decoder that does not know it may have less:
`wm_env.theory.common_maps`. The states' law is given here. A code that spends total variation in one block changes
which states come later; `wm_env.theory.steering` has the limits over all of that.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import comb

from wm_env.common.arrays import Floats, Ints
from wm_env.law import JointLaw, state_reach
from wm_env.theory.partition import excess_bound, partition_items
from wm_env.tree import StateTree

NODES = 20_000
"""Partial partitions that the search for the best one keeps; no state of the shipped tree needs more than 5,000."""

_ROUNDING = 1e-12
_LISTED = 12
"""Most items whose subset sums are listed outright; those of more items are searched in two halves."""
_SPLIT = 32
"""Most items that are split as evenly as they can be, in milliseconds; of more items only the smallest are."""


@dataclass(frozen=True)
class Limit:
    """The one-shot optimum of l message bits, averaged over the states of a block.

    Attributes:
        success: value of the partitions found, at most E[P0]: a success probability that l key bits reach at TV 0.
        gap: E[P0] is at most `success + gap`.
        shared_key_success: E[U], the same with any amount of shared key.
        largest_success: E[min(1, candidates / 2^l)], which no TV budget exceeds.
        least_bit_error: bit error rate if the words of the candidates were centres of disjoint spheres that cover all
            words; no TV budget has less.
        distance_masses: least mass with 0, 1, ..., l wrong bits, shape (l + 1,), sums to 1.
        zero_error: probability of the states with l <= H_min, which carry l bits without error at TV 0.
    """

    success: float
    gap: float
    shared_key_success: float
    largest_success: float
    least_bit_error: float
    distance_masses: Floats
    zero_error: float

    def block_error(self, tv_budget: float) -> float:
        """No code with l key bits has a smaller block error rate at this average TV: a unit of TV buys one of success.

        It counts the partitions' proven bound, so it may lie `gap` below what a code reaches.
        """
        return max(0.0, 1 - min(self.largest_success, self.success + self.gap + tv_budget))

    def shared_key_block_error(self, tv_budget: float) -> float:
        """No code has a smaller block error rate at this average TV, with any amount of shared key; attained."""
        return max(0.0, 1 - min(self.largest_success, self.shared_key_success + tv_budget))

    def bit_error(self, tv_budget: float) -> float:
        """phi: no code has a smaller bit error rate at this average TV, with any key; in [0, 1/2].

        A bound, not always attained, least of all where the decoder does not know the state. The budget turns the mass
        with the most wrong bits into right mass.
        """
        bits = len(self.distance_masses) - 1
        beyond = np.cumsum(self.distance_masses[::-1])[::-1] - self.distance_masses
        kept = self.distance_masses - np.clip(tv_budget - beyond, 0, self.distance_masses)
        return max(self.least_bit_error, float(np.arange(bits + 1) @ kept) / bits)


def min_entropy(pmf: Floats) -> Floats:
    """H_min = -log2 max p in bits, over the last axis: l bits pass without error at TV 0 if and only if l <= H_min."""
    bits: Floats = -np.log2(pmf.max(-1))
    return bits


def shared_key_success(pmf: Floats, message_bits: int) -> Floats:
    """U = sum_x min(p(x), 2^-l) over the last axis, in [0, 1]: the best success probability with any shared key."""
    success: Floats = np.minimum(pmf, 2.0**-message_bits).sum(-1)
    return success


def key_limited_success(pmf: Floats, message_bits: int, key_bits: int) -> float:
    """What r key bits allow at TV 0, in [0, 1]: no code that uses r key bits in any way succeeds more often.

    For a message m the r bits choose among 2^r decoding maps d_k. Key k holds at most 2^-r of the mass, and candidate x
    at most p(x); the sum over m is then at most 2^r times the largest sum_w min(2^-r, p(d^-1(w))) of any map d. So

        P_c <= 2^(r-l) max_d sum_w min(2^-r, p(d^-1(w))) + t,    t = mean over m of TV(P^m, p).

    With r < l there are words for all candidates that a packing needs, and the maximum is sum_x min(2^-r, p(x)).

    Args:
        pmf: p(x), shape (Q,).
        message_bits: l >= 0.
        key_bits: r >= 0. The bound is proven up to the bound on the best partition where r = l; with r > l it is U.
    """
    if key_bits < message_bits:
        return float(np.minimum(pmf, 2.0**-key_bits).sum() * 2.0 ** (key_bits - message_bits))
    if key_bits > message_bits:
        return float(shared_key_success(pmf, message_bits))
    return _partition(pmf, message_bits, 0.0, NODES)[2]


def distance_masses(pmf: Floats, message_bits: int) -> Floats:
    """Least mass that must be decoded with 0, 1, ..., l wrong bits, shape (..., l + 1), sums to 1.

    A candidate serves the words around its own: the first 2^-l of its mass is right, the next C(l,1) 2^-l is one bit
    off, the next C(l,2) 2^-l two bits, and so on.
    """
    masses: Floats = _filled(pmf[..., None], _shells(message_bits)).sum(-2)
    return masses


def _shells(message_bits: int) -> Floats:
    """Share of the words that are 0, 1, ..., l bits from one of them, shape (l + 1,)."""
    shells: Floats = comb(message_bits, np.arange(message_bits + 1)) / 2**message_bits
    return shells


def _filled(mass: Floats | float, shells: Floats) -> Floats:
    """What a mass puts into each of the shells, along the last axis, if it fills them one after the other."""
    filled: Floats = np.clip(mass - (shells.cumsum(-1) - shells), 0, shells)
    return filled


def block_limit(cover: Floats, state_probs: Floats, message_bits: int, gap: float = 1e-4, nodes: int = NODES) -> Limit:
    """The one-shot optimum of a block whose state both ends know.

    The states that leave the most doubt about E[P0] get the exact search until the doubt is at most `gap`.

    Args:
        cover: P(x|s), shape (N, Q).
        state_probs: law of the states, shape (N,).
        message_bits: l >= 1.
        gap: how well E[P0] is to be known.
        nodes: see `best_partition`; with too few of them `Limit.gap` stays above `gap`.
    """
    value, bound = partition_bounds(cover, state_probs, message_bits, gap, nodes)
    nearest = _nearest_masses((cover > 0).sum(1), message_bits)
    return Limit(
        success=float(state_probs @ value),
        gap=float(state_probs @ (bound - value)),
        shared_key_success=float(state_probs @ shared_key_success(cover, message_bits)),
        largest_success=float(state_probs @ nearest[:, 0]),
        least_bit_error=float(state_probs @ nearest @ np.arange(message_bits + 1)) / message_bits,
        distance_masses=state_probs @ distance_masses(cover, message_bits),
        zero_error=float(state_probs @ (message_bits <= min_entropy(cover) + 1e-12)),
    )


def partition_bounds(
    cover: Floats, state_probs: Floats, message_bits: int, gap: float = 1e-4, nodes: int = NODES
) -> tuple[Floats, Floats]:
    """Value of the best partition found of every state and a bound on that of every partition, shape (N,) each.

    Arguments as of `block_limit`.
    """
    found = [_partition(row, message_bits, 0.0, 0) for row in cover]
    value = np.array([value for _, value, _ in found])
    bound = np.array([bound for _, _, bound in found])
    doubt = state_probs * (bound - value)
    for state in np.argsort(-doubt, kind="stable"):
        if doubt.sum() <= gap:
            break
        _, value[state], bound[state] = _partition(cover[state], message_bits, gap / 10, nodes)
        doubt[state] = state_probs[state] * (bound[state] - value[state])
    return value, bound


def _nearest_masses(candidates: Ints, message_bits: int) -> Floats:
    """Share of the words that are 0, 1, ..., l bits from the nearest of so many words, if spheres around these were
    disjoint until all words are covered; shape (N, l + 1) for candidates (N,)."""
    return _filled(1.0, candidates[:, None] * _shells(message_bits))


def tree_limit(tree: StateTree, message_bits: int, gap: float = 1e-4, nodes: int = NODES) -> Limit:
    """The one-shot optimum of l message bits in every block of a tree, averaged over its blocks and states.

    States count as often as the model reaches them; a TV budget is an average over blocks and states too. A limit of
    codes that leave these frequencies as they are. One that spends TV changes them, and may do better: it is held
    against `law_limit`, and every code against `wm_env.theory.steering`. See `block_limit`.
    """
    weights = np.concatenate(state_reach(tree)) / len(tree.blocks)
    return block_limit(np.concatenate([block.cover for block in tree.blocks]), weights, message_bits, gap, nodes)


def law_limit(law: JointLaw, message_bits: int, gap: float = 1e-4, nodes: int = NODES) -> Limit:
    """The same for the states as often as a law reaches them: a limit of the codes with these Z(s)."""
    weights = np.concatenate([block.state_probs.numpy() for block in law.blocks]) / len(law.blocks)
    cover = np.concatenate([block.cover.numpy() for block in law.blocks])
    return block_limit(cover, weights, message_bits, gap, nodes)


def best_partition(pmf: Floats, message_bits: int, gap: float = 0.0, nodes: int = NODES) -> tuple[Ints, float]:
    """The partition of the candidates into 2^l bins that maximises sum_w min(p(B_w), 2^-l).

    Candidates of at least 2^-l sit alone (no loss), the others go longest first into the emptiest bin; then pairs of an
    overfull and an underfull bin are split anew as evenly as their items allow, until no pair gains. If that is not
    provably within `gap` of the optimum, `wm_env.theory.partition` goes on. Deterministic.

    Args:
        pmf: p(x), shape (Q,), sums to 1; zeros are padding.
        message_bits: l >= 0.
        gap: how close to the optimum is near enough.
        nodes: most partial partitions that the search keeps at a time; 0 leaves it out.

    Returns:
        bins: shape (Q,), the bin 0..2^l - 1 of every candidate, -1 where p(x) = 0. No bin is empty while another has
            two candidates.
        value: sum_w min(p(B_w), 2^-l), in [0, U].
    """
    bins, value, _ = _partition(pmf, message_bits, gap, nodes)
    return bins, value


def _partition(pmf: Floats, message_bits: int, gap: float, nodes: int) -> tuple[Ints, float, float]:
    """`best_partition` with an upper bound on the value of every partition."""
    count = 2**message_bits
    cap = 1.0 / count
    order = [int(x) for x in np.argsort(-pmf, kind="stable") if pmf[x] > 0]
    bins: list[list[int]] = [[x] for x in order[:count]] + [[] for _ in range(count - len(order))]
    loads = [float(pmf[items].sum()) for items in bins]
    for x in order[count:]:
        emptiest = loads.index(min(loads))
        bins[emptiest].append(x)
        loads[emptiest] += pmf[x]
    _split_pairs(pmf, bins, cap)
    value = _value(pmf, bins, cap)
    alone = [items for items in bins if len(items) == 1 and pmf[items[0]] >= cap]
    # Two bins, or one, for the rest: the best split of the pair is the best partition.
    bound = value
    if count - len(alone) > 2 or len(order) - len(alone) > _SPLIT:
        rest = [x for x in order if pmf[x] < cap]
        sizes, most = pmf[rest] / cap, float(shared_key_success(pmf, message_bits))
        bound = most - cap * excess_bound(sizes, count - len(alone))
        if nodes and bound - value > gap + _ROUNDING:
            shared, excess = partition_items(sizes, count - len(alone), (most - value) / cap, nodes)
            bound = min(bound, most - cap * excess)
            if shared:
                bins = _fill_empty(alone + [[rest[i] for i in items] for items in shared])
                value = _value(pmf, bins, cap)
    labels = np.full(len(pmf), -1, dtype=np.int64)
    for number, items in enumerate(bins):
        labels[items] = number
    return labels, value, max(bound, value)


def _value(pmf: Floats, bins: list[list[int]], cap: float) -> float:
    return float(sum(min(pmf[items].sum(), cap) for items in bins))


def _fill_empty(bins: list[list[int]]) -> list[list[int]]:
    """Give every empty bin a candidate of a bin that has several; it never lowers the value."""
    filled = [list(items) for items in bins]
    for items in filled:
        largest = max(filled, key=len)
        if not items and len(largest) > 1:
            items.append(largest.pop())
    return filled


def _split_pairs(pmf: Floats, bins: list[list[int]], cap: float) -> None:
    """Split pairs of an overfull and an underfull bin anew, in place, until no pair loses less mass."""
    loads = [float(pmf[items].sum()) for items in bins]
    improved = True
    while improved:
        improved = False
        for over in range(len(bins)):
            for under in range(len(bins)):
                if len(bins[over]) < 2 or loads[over] <= cap or loads[under] >= cap:
                    continue
                items = bins[over] + bins[under]
                first = [items[i] for i in _half_sum(pmf[items])]
                second = [x for x in items if x not in first]
                halves = [float(pmf[half].sum()) for half in (first, second)]
                if min(halves[0], cap) + min(halves[1], cap) > cap + loads[under] + 1e-15:
                    bins[over], bins[under] = first, second
                    loads[over], loads[under] = halves
                    improved = True


def _half_sum(sizes: Floats) -> list[int]:
    """The subset with a sum nearest to half of the total: it splits a pair of bins with the least mass above the cap.

    The mass above the cap, (s - c)+ + (T - s - c)+, is convex in the sum s of one half and symmetric about T/2. Of more
    than `_SPLIT` items the largest go to the emptier half one after the other, and the smallest fill up.
    """
    target = sizes.sum() / 2
    if len(sizes) <= _SPLIT:
        return _nearest_sum(sizes, target)
    largest_first = np.argsort(-sizes, kind="stable")
    large, small = largest_first[:-_SPLIT], largest_first[-_SPLIT:]
    chosen: list[int] = []
    sums = [0.0, 0.0]
    for item in large:
        side = int(sums[1] < sums[0])
        sums[side] += float(sizes[item])
        if side == 0:
            chosen.append(int(item))
    return chosen + [int(small[i]) for i in _nearest_sum(sizes[small], target - sums[0])]


def _nearest_sum(sizes: Floats, target: float) -> list[int]:
    """The subset with the sum nearest to `target`."""
    count = len(sizes)
    if count <= _LISTED:
        return _members(int(np.abs(_subset_sums(sizes) - target).argmin()))
    half = count // 2
    left, right = _subset_sums(sizes[:half]), _subset_sums(sizes[half:])
    by_sum = np.argsort(right, kind="stable")
    after = np.searchsorted(right[by_sum], target - left)
    pairs = by_sum[np.stack([np.clip(after - 1, 0, None), np.clip(after, None, len(right) - 1)])]
    distance = np.abs(left + right[pairs] - target)
    side, first = np.unravel_index(int(distance.argmin()), distance.shape)
    return _members(int(first) | int(pairs[side, first]) << half)


def _subset_sums(sizes: Floats) -> Floats:
    """Sum of every subset; bit i of the index says whether item i is in."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums, sums + size])
    return sums


def _members(subset: int) -> list[int]:
    return [i for i in range(subset.bit_length()) if subset >> i & 1]
