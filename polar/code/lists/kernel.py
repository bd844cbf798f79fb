"""The compiled passes over lists of paths: decoding by the likeliest paths, filling by weighted drafts.

A path is a prefix of V with its probability. All paths take the same steps at the same time, so a step may write every
path's numbers to the path's own row of its level: what lay there is dead for all of them. When a path becomes a copy of
another one, no number moves; the copy reads the rows of the other one, level by level, until it writes its own.

Position i of V is the precoded bit v_i = sum_j c_j w_(i-j) (mod 2) with c_0 = 1, from the word W that carries forced
and free bits (PAC codes; with c = 1 V is W). A path's register holds its last bits w.
"""

import numpy as np

from polar.code.compiled import (
    COMBINE,
    FREE,
    KNOWN,
    LEAST,
    SECOND,
    STORE,
    SUM,
    Bits,
    second_bit,
    transform_signs,
)
from polar.compiling import compiled
from wm_env.common.arrays import Floats, Ints

_IMPOSSIBLE = 1e-15
"""A bit of at most this probability counts as impossible: float64 soft bits end there."""
_SMALL = 1e-200


@compiled
def parity(number: int) -> int:
    """The sum of the bits of a number below 2^32, modulo 2."""
    number ^= number >> 16
    number ^= number >> 8
    number ^= number >> 4
    number ^= number >> 2
    return (number ^ number >> 1) & 1


@compiled
def level_of(length: int) -> int:
    """log2 of a power of two."""
    level = 0
    while length > 1:
        length >>= 1
        level += 1
    return level


@compiled
def probability(soft: float, bit: int) -> float:
    """P(V = bit) for a soft bit."""
    return (1.0 + soft * (1 - 2 * bit)) / 2


@compiled
def likeliest_paths(
    steps: Ints, received: Floats, values: Bits, taps: int, paths: int, words: Bits, scores: Floats
) -> None:
    """Decode frames: `words` becomes W of the likeliest paths, (F, P, n), `scores` their log-probabilities, (F, P).

    Args:
        steps: with known nodes pruned and free ones not.
        received: soft bits of U, shape (F, n).
        values: W with 0 for free bits, shape (F, n).
        taps: c as a number, c_0 its lowest bit.
        paths: P.
        words, scores: filled, likeliest path first; score -inf where there are fewer paths.
    """
    frames, n = received.shape
    levels = level_of(n) + 1
    soft, left, word = np.empty((paths, 2 * n)), np.empty((paths, n)), np.empty((paths, n))
    soft_at, left_at = np.zeros((levels, paths), dtype=np.int64), np.zeros((levels, paths), dtype=np.int64)
    register, score = np.zeros(paths, dtype=np.int64), np.zeros(paths)
    chosen = np.zeros((paths, n), dtype=np.uint8)
    both, scratch = np.empty(2 * paths), np.empty(2 * paths)
    for frame in range(frames):
        soft[0, n:] = received[frame]
        soft_at[levels - 1] = 0
        register[:] = 0
        score[0] = 0.0
        active, given = 1, values[frame]
        for number in range(len(steps)):
            step, first, length = steps[number, 0], steps[number, 1], steps[number, 2]
            if step == KNOWN:
                for path in range(active):
                    seen = soft[soft_at[level_of(length), path], length : 2 * length]
                    register[path] = write_known(
                        word[path, :length], given[first : first + length], register[path], taps
                    )
                    score[path] += word_score(seen, word[path, :length])
                    chosen[path, first : first + length] = given[first : first + length]
            elif step == FREE:
                active = _fork(
                    first, active, taps, soft, soft_at, left_at, register, score, chosen, both, scratch, word
                )
            else:
                walk(step, length, active, soft, left, word, soft_at, left_at)
        order = np.argsort(-score[:active])
        scores[frame] = -np.inf
        for rank in range(active):
            scores[frame, rank] = score[order[rank]]
            words[frame, rank] = chosen[order[rank]]


@compiled
def walk(
    step: int, length: int, active: int, soft: Floats, left: Floats, word: Floats, soft_at: Ints, left_at: Ints
) -> None:
    """A step of all active paths that decides nothing.

    Numbers are reached by their places, not through slices: nodes are short, and a slice costs more than one of them.
    """
    half = length // 2
    level = level_of(length)
    for path in range(active):
        if step == STORE:
            for i in range(length):
                left[path, length + i] = word[path, i]
            left_at[level, path] = path
        elif step == COMBINE:
            row = left_at[level - 1, path]
            for i in range(half):
                word[path, half + i] = word[path, i]
                word[path, i] *= left[row, half + i]
        elif step == SUM:
            row = soft_at[level, path]
            for i in range(half):
                soft[path, half + i] = soft[row, length + i] * soft[row, length + half + i]
        else:
            row, signs = soft_at[level, path], left_at[level - 1, path]
            for i in range(half):
                turned, other = soft[row, length + i] * left[signs, half + i], soft[row, length + half + i]
                soft[path, half + i] = second_bit(turned, other, 1.0, LEAST)
    if step in (SUM, SECOND):
        for path in range(active):
            soft_at[level - 1, path] = path


@compiled
def write_known(word: Floats, given: Bits, register: int, taps: int) -> int:
    """Write the word U of a node whose W is given; returns the register after it."""
    for i in range(len(word)):
        register = register << 1 & 0xFFFFFFFF | given[i]
        word[i] = 1.0 - 2.0 * parity(register & taps)
    transform_signs(word, 1)
    return register


@compiled
def word_score(seen: Floats, word: Floats) -> float:
    """ln of the probability of a word under independent soft bits."""
    score, product = 0.0, 1.0
    for i in range(len(word)):
        product *= max((1.0 + seen[i] * word[i]) / 2, LEAST)
        if product < _SMALL:
            score += np.log(product)
            product = 1.0
    return float(score + np.log(product))


@compiled
def copy_path(source: int, target: int, soft_at: Ints, left_at: Ints, register: Ints, chosen: Bits, upto: int) -> None:
    """Make path `target` a copy of path `source`, of whose W the first `upto` bits are decided."""
    for level in range(len(soft_at)):
        soft_at[level, target] = soft_at[level, source]
        left_at[level, target] = left_at[level, source]
    register[target] = register[source]
    chosen[target, :upto] = chosen[source, :upto]


@compiled
def _smallest(values: Floats, scratch: Floats, rank: int) -> float:
    """The value with `rank` values before it in order, by Hoare's selection.

    numpy's partition, compiled, takes ten times as long for the few values of a list.
    """
    low, high = 0, len(values) - 1
    for number in range(len(values)):
        scratch[number] = values[number]
    while low < high:
        pivot, i, j = scratch[(low + high) // 2], low, high
        while i <= j:
            while scratch[i] < pivot:
                i += 1
            while scratch[j] > pivot:
                j -= 1
            if i <= j:
                scratch[i], scratch[j] = scratch[j], scratch[i]
                i, j = i + 1, j - 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return float(scratch[rank])


@compiled
def _drop_unlikely(both: Floats, scratch: Floats, paths: int) -> None:
    """Set all but the `paths` largest of the scores to -inf; of equal ones the first are kept.

    Scores lie in pairs, the larger first.
    """
    if len(both) <= paths:
        return
    likelier, other = both[::2], both[1::2]
    if len(likelier) == paths and other.max() < likelier.min():
        # The usual case at good positions: every path goes on by its likelier value.
        other[:] = -np.inf
        return
    bound = _smallest(both, scratch, len(both) - paths)
    spare = paths
    for number in range(len(both)):
        spare -= both[number] > bound
    for number in range(len(both)):
        if both[number] == bound and spare > 0:
            spare -= 1
        elif both[number] <= bound:
            both[number] = -np.inf


@compiled
def _fork(
    first: int,
    active: int,
    taps: int,
    soft: Floats,
    soft_at: Ints,
    left_at: Ints,
    register: Ints,
    score: Floats,
    chosen: Bits,
    both: Floats,
    scratch: Floats,
    word: Floats,
) -> int:
    """Continue every path by both values of a free bit and keep the likeliest paths; returns how many there are.

    A path whose two continuations are kept stays with its likelier one; the other takes the place of a path that has
    none, or a new place.
    """
    paths = len(score)
    for path in range(active):
        register[path] = register[path] << 1 & 0xFFFFFFFF
        # The likelier value first, by its sign: far from certain, the two logarithms may be equal to rounding.
        distance = abs(soft[soft_at[0, path], 1])
        both[2 * path] = score[path] + np.log((1.0 + distance) / 2)
        both[2 * path + 1] = score[path] + np.log(max((1.0 - distance) / 2, LEAST))
    _drop_unlikely(both[: 2 * active], scratch, paths)
    place = 0
    for path in range(active):
        likelier, other = both[2 * path], both[2 * path + 1]
        bit = parity(register[path] & taps) ^ (1 if soft[soft_at[0, path], 1] < 0 else 0)
        if likelier > -np.inf and other > -np.inf:
            while place < active and max(both[2 * place], both[2 * place + 1]) > -np.inf:
                place += 1
            copy_path(path, place, soft_at, left_at, register, chosen, first)
            # A place among the active paths has no continuation of its own, so it is not visited as one.
            _take(place, first, 1 - bit, other, taps, register, score, chosen, word)
            _take(path, first, bit, likelier, taps, register, score, chosen, word)
            place += 1
        elif likelier > -np.inf:
            _take(path, first, bit, likelier, taps, register, score, chosen, word)
    return min(2 * active, paths)


@compiled
def _take(
    path: int,
    first: int,
    bit: int,
    value: float,
    taps: int,
    register: Ints,
    score: Floats,
    chosen: Bits,
    word: Floats,
) -> None:
    register[path] |= bit
    chosen[path, first] = bit
    score[path] = value
    word[path, 0] = 1.0 - 2.0 * parity(register[path] & taps)


@compiled
def draw_drafts(
    steps: Ints,
    received: Floats,
    forced: Bits,
    values: Bits,
    taps: int,
    paths: int,
    generator: np.random.Generator,
    words: Bits,
    dead_ends: Ints,
) -> None:
    """Fill frames: `words` becomes U, shape (F, n), `dead_ends` the forced bits that gave way, shape (F,).

    Every free bit of V is drawn from its conditional law in every draft; forced bits weigh the drafts, which are
    resampled when their weights have grown uneven. In the end one draft is drawn by weight.

    Args:
        steps: without pruning.
        received: soft bits of U, shape (F, n).
        forced: 1 for forced positions, shape (n,).
        values: W with 0 for free bits, shape (F, n).
        taps: as above.
        paths: drafts of a frame.
        generator: source of the draws.
    """
    frames, n = received.shape
    levels = level_of(n) + 1
    soft, left, word = np.empty((paths, 2 * n)), np.empty((paths, n)), np.empty((paths, n))
    soft_at, left_at = np.zeros((levels, paths), dtype=np.int64), np.zeros((levels, paths), dtype=np.int64)
    register, weight, chance = np.zeros(paths, dtype=np.int64), np.ones(paths), np.ones(paths)
    for frame in range(frames):
        soft[0, n:] = received[frame]
        soft_at[levels - 1] = 0
        register[:] = 0
        weight[:] = 1.0 / paths
        dead_ends[frame] = 0
        for number in range(len(steps)):
            step, first, length = steps[number, 0], steps[number, 1], steps[number, 2]
            if step != KNOWN and step != FREE:
                walk(step, length, paths, soft, left, word, soft_at, left_at)
                continue
            lost = 0
            for path in range(paths):
                register[path] = register[path] << 1 & 0xFFFFFFFF
                bit = values[frame, first] ^ parity(register[path] & taps)
                chance[path] = probability(soft[soft_at[0, path], 1], bit)
                lost += chance[path] <= _IMPOSSIBLE
            stuck = 1 if forced[first] == 1 and lost == paths else 0
            dead_ends[frame] += stuck
            for path in range(paths):
                plain = parity(register[path] & taps)
                bit = values[frame, first] ^ plain
                if forced[first] == 1:
                    bit ^= stuck
                else:
                    bit = 0 if generator.random() < probability(soft[soft_at[0, path], 1], 0) else 1
                register[path] |= bit ^ plain
                word[path, 0] = 1.0 - 2.0 * bit
            if forced[first] == 1 and stuck == 0 and paths > 1:
                for path in range(paths):
                    weight[path] *= chance[path] if chance[path] > _IMPOSSIBLE else 0.0
                weight /= weight.sum()
                if 1 / (weight * weight).sum() < paths / 2 or weight.min() == 0:
                    _resample(weight, generator.random(), soft_at, left_at, register, word)
        point, kept = generator.random(), 0
        while kept < paths - 1 and point >= weight[kept]:
            point -= weight[kept]
            kept += 1
        for i in range(n):
            words[frame, i] = word[kept, i] < 0


@compiled
def _resample(weight: Floats, shift: float, soft_at: Ints, left_at: Ints, register: Ints, word: Floats) -> None:
    """Replace the drafts by a systematic sample of them; all weights become equal."""
    paths = len(weight)
    old_soft, old_left, old_register = soft_at.copy(), left_at.copy(), register.copy()
    old_bit = word[:, 0].copy()
    source, upto = 0, weight[0]
    for path in range(paths):
        point = (path + shift) / paths
        while source < paths - 1 and upto <= point:
            source += 1
            upto += weight[source]
        soft_at[:, path] = old_soft[:, source]
        left_at[:, path] = old_left[:, source]
        register[path] = old_register[source]
        word[path, 0] = old_bit[source]
    weight[:] = 1.0 / paths
