"""Open-shop scheduling: words for candidates at each of J values of the dither (slots), many states at once.

A decoder that knows the slot, a part of the shared key, finds every word as long as each candidate is sent for one word
only in every slot. That is open-shop scheduling: candidates are jobs, words are machines, slots are time. States that
the decoder cannot tell apart have one schedule for what they share.

Only the candidates with surplus mass, which is sent for other words, need a schedule, and of these only what can be
decoded rightly, which is at most 2^-l. One symbol after the other gets its words in all slots, and takes its share of
the room there is. What finds no room of its own is sent wherever room is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agents.planner.couplings import assign_surplus, fill_in_order
from agents.planner.word_maps import word_loads
from wm_env.common.arrays import Floats, Ints

_ROUNDING = 1e-13
_FAR = 0.2
"""What every wrong bit of surplus counts next to its mass, when its word is chosen."""
_EVEN = 1e-6
"""What the room in a slot counts next to the mass that it gains."""


@dataclass(frozen=True)
class _Jobs:
    """Candidates to schedule, one row for every symbol and state that has it, sorted by symbol.

    Attributes:
        state, place: of the candidate, shape (m,).
        word: its own word, the same in all rows of a symbol.
        weight: of the state.
        own: mass to be sent for the own word.
        surplus: mass to be sent for other words.
        first: first row of every symbol, shape (symbols,).
    """

    state: Ints
    place: Ints
    word: Ints
    weight: Floats
    own: Floats
    surplus: Floats
    first: Ints

    @property
    def symbol(self) -> Ints:
        """The symbol that each row belongs to, as its place in `first`, shape (rows,)."""
        return np.repeat(np.arange(len(self.first)), np.diff(np.append(self.first, len(self.state))))

    def of_symbols(self, chosen: Ints) -> "_Jobs":
        """The rows of some symbols, in the order of `chosen`."""
        ends = np.append(self.first, len(self.state))
        sizes = ends[chosen + 1] - ends[chosen]
        first = np.cumsum(sizes) - sizes
        rows = np.arange(sizes.sum()) + np.repeat(ends[chosen] - first, sizes)
        columns = (self.state, self.place, self.word, self.weight, self.own, self.surplus)
        state, place, word, weight, own, surplus = (column[rows] for column in columns)
        return _Jobs(state, place, word, weight, own, surplus, first)


@dataclass
class _Shop:
    """What is scheduled so far.

    Attributes:
        sent: P(x, w, j), shape (N, Q, 2^l, J).
        room: what is left of every word and slot, shape (N, 2^l, J).
        foreign_room: how much of the room of a word is for candidates of other words, shape (N, 2^l).
    """

    sent: Floats
    room: Floats
    foreign_room: Floats

    def add(self, jobs: _Jobs, masses: Floats, sign: int = 1) -> None:
        """Send masses (m, 2^l, J) of candidates; with sign -1 take them back."""
        rows = np.arange(len(masses))
        foreign = masses.sum(2)
        foreign[rows, jobs.word] = 0
        self.sent[jobs.state, jobs.place] += sign * masses
        self.room[jobs.state] = np.maximum(self.room[jobs.state] - sign * masses, 0)
        self.foreign_room[jobs.state] = np.maximum(self.foreign_room[jobs.state] - sign * foreign, 0)


def scheduled_channel(law: Floats, words: Ints, flows: Floats, slots: int, seen: Ints, weights: Floats) -> Floats:
    """P(x | w, j), shape (N, 2^l, J, Q): word w, and slot j of J equal parts of the point that draws V.

    The average over w and j is q, and every word keeps what is no surplus. Surplus goes where F says, except what finds
    no slot there in which a decoder that knows the slot is right about it. What a candidate sends for its own word is
    packed into few slots, its surplus is not: hardly a slot is as sure of it as a slot of the own word, so that
    likelihoods point to the own word.

    Args:
        law: q(x|s), shape (N, Q).
        words: word of every candidate, shape (N, Q), -1 where the law is 0.
        flows: F(v, w), see `assign_surplus`.
        slots: J >= 1.
        seen: number of what the decoder sees of a candidate, shape (N, Q); one word in all states.
        weights: how much the states count, shape (N,).
    """
    states, count = flows.shape[:2]
    own = law - _cut(law, words, flows.sum(2), seen)
    jobs = _surplus_symbols(law, own, words, seen, weights, 1 / count)
    room = np.full((states, count, slots), 1 / (count * slots))
    shop = _Shop(np.zeros((*law.shape, count, slots)), room, flows.sum(1))
    rest = flows.copy()
    batches = [jobs.of_symbols(chosen) for chosen in _rounds(jobs, states)]
    for batch in batches:
        masses = _schedule(batch, shop.room[batch.state], rest[batch.state, batch.word])
        shop.add(batch, masses)
        rest[batch.state, batch.word] = np.maximum(rest[batch.state, batch.word] - masses.sum(2), 0)
    for batch in batches:
        _try_again(batch, shop)
    _fill(shop, law, own, words)
    by_word: Floats = np.moveaxis(shop.sent / shop.sent.sum(1, keepdims=True), 1, 3)
    return by_word


def _cut(law: Floats, words: Ints, surplus: Floats, seen: Ints) -> Floats:
    """What every candidate contributes to the surplus of its word, shape (N, Q), one after the other.

    Candidates above 2^-l come last, since nothing of their excess is decoded rightly; of the others first those with
    the least mass in all states together, so that all states choose the same ones.
    """
    present = words >= 0
    mass_of = np.bincount(seen[present], law[present])
    in_all = np.where(present, mass_of[np.where(present, seen, 0)], 0)
    order = np.lexsort((in_all, law > 1 / surplus.shape[1] + _ROUNDING), axis=1)
    mass, word = np.take_along_axis(law, order, axis=1), np.take_along_axis(words, order, axis=1)
    wanted = np.take_along_axis(surplus, np.maximum(word, 0), axis=1) - _before(mass, word, surplus.shape[1])
    cut = np.empty_like(law)
    np.put_along_axis(cut, order, np.clip(wanted, 0, mass), axis=1)
    return cut


def _before(mass: Floats, words: Ints, count: int) -> Floats:
    """Mass of the earlier candidates of the same word, shape (N, Q); 0 where there is no word."""
    by_word = np.where(words[:, :, None] == np.arange(count), mass[:, :, None], 0)
    before: Floats = np.where(words[:, :, None] == np.arange(count), by_word.cumsum(1) - by_word, 0).sum(2)
    return before


def _surplus_symbols(law: Floats, own: Floats, words: Ints, seen: Ints, weights: Floats, cap: float) -> _Jobs:
    """The candidates of all symbols of which some state has surplus that could be decoded rightly.

    Symbols of several states come first, in both groups those of most mass.
    """
    state, place = np.nonzero(words >= 0)
    surplus = np.where(law > cap + _ROUNDING, 0, law - own)[state, place]
    symbol = np.unique(seen[state, place], return_inverse=True)[1]
    by_symbol = np.argsort(symbol, kind="stable")
    state, place, surplus, symbol = state[by_symbol], place[by_symbol], surplus[by_symbol], symbol[by_symbol]
    first = np.flatnonzero(np.diff(symbol, prepend=-1))
    jobs = _Jobs(state, place, words[state, place], weights[state], np.minimum(own[state, place], cap), surplus, first)
    single = np.diff(first, append=len(state)) == 1
    mass = np.add.reduceat(jobs.weight * law[state, place], first)
    order = np.lexsort((-mass, single))
    return jobs.of_symbols(order[np.maximum.reduceat(surplus, first)[order] > _ROUNDING])


def _rounds(jobs: _Jobs, states: int) -> Iterator[Ints]:
    """Symbols in batches: no two of a batch have a common state, and in every state they come in the order given."""
    done = np.zeros(states, dtype=np.int64)
    ends = np.append(jobs.first[1:], len(jobs.state))
    number = np.zeros(len(jobs.first), dtype=np.int64)
    for symbol in range(len(jobs.first)):
        rows = jobs.state[jobs.first[symbol] : ends[symbol]]
        number[symbol] = done[rows].max()
        done[rows] = number[symbol] + 1
    for batch in range(int(number.max(initial=-1)) + 1):
        yield np.flatnonzero(number == batch)


def _schedule(jobs: _Jobs, room: Floats, admissible: Floats) -> Floats:
    """The masses of candidates in all words and slots, shape (m, 2^l, J), of symbols that have no common state.

    Args:
        room: what is left in the words and slots of their states, shape (m, 2^l, J).
        admissible: the most that other words may take of a candidate, shape (m, 2^l), 0 at its own word.
    """
    rows, words = np.arange(len(room)), np.arange(room.shape[1])
    placed, masses = _assign(jobs, room, admissible)
    part = room * (placed[jobs.symbol][:, None] == words[:, None])
    total = part.sum(2)
    sent: Floats = part * np.divide(masses, total, out=np.zeros_like(total), where=total > 0)[:, :, None]
    own_room = part[rows, jobs.word]
    # The own mass is packed into the slots with most room.
    sent[rows, jobs.word] = fill_in_order(jobs.own, own_room, np.argsort(-own_room, axis=1, kind="stable"))
    return sent


def _assign(jobs: _Jobs, room: Floats, admissible: Floats) -> tuple[Ints, Floats]:
    """The word of every symbol in every slot, and what each word takes of a candidate.

    Step by step the slot and the word by which most mass finds a place, near words before far ones, less what the own
    word loses by it.

    Returns:
        placed: shape (symbols, J).
        masses: shape (m, 2^l), 0 at the own word.
    """
    slots = room.shape[2]
    rows, symbol = np.arange(len(room)), jobs.symbol
    numbers, own_word = np.arange(len(jobs.first)), jobs.word[jobs.first]
    weight = jobs.weight[:, None, None]
    least = _EVEN / slots * np.add.reduceat(jobs.weight, jobs.first) * room.max(initial=0)
    spare = np.add.reduceat(weight * room, jobs.first)
    placed = np.tile(own_word[:, None], slots)
    masses = np.zeros_like(admissible)
    near = 1 - _FAR * np.bitwise_count(jobs.word[:, None] ^ np.arange(room.shape[1]))
    surplus, own_room = jobs.surplus.copy(), room[rows, jobs.word]
    for _ in range(slots):
        open_slots = placed == own_word[:, None]
        left = own_room * open_slots[symbol]
        lost = np.maximum(left - np.maximum(left.sum(1) - jobs.own, 0)[:, None], 0)
        found = np.minimum(np.minimum(surplus[:, None], admissible - masses)[:, :, None], room)
        gain = np.add.reduceat(weight * (near[:, :, None] * found - lost[:, None]), jobs.first)
        score = np.where(open_slots[:, None], gain + _EVEN * spare, -np.inf).reshape(len(gain), -1)
        word, slot = np.divmod(score.argmax(1), slots)
        better = gain[numbers, word, slot] > least
        if not better.any():
            break
        placed[better, slot[better]] = word[better]
        taken = np.where(better[symbol], found[rows, word[symbol], slot[symbol]], 0)
        masses[rows, word[symbol]] += taken
        surplus -= taken
    return placed, masses


def _try_again(jobs: _Jobs, shop: _Shop) -> None:
    """Schedule anew what has not found all its room, for any word."""
    masses = shop.sent[jobs.state, jobs.place]
    missing = jobs.own + jobs.surplus - masses.sum((1, 2))
    again = np.flatnonzero(np.maximum.reduceat(missing, jobs.first) > _ROUNDING)
    if len(again):
        some = jobs.of_symbols(again)
        shop.add(some, shop.sent[some.state, some.place], sign=-1)
        admissible = shop.foreign_room[some.state]
        admissible[np.arange(len(admissible)), some.word] = 0
        shop.add(some, _schedule(some, shop.room[some.state], admissible))


def _fill(shop: _Shop, law: Floats, own: Floats, words: Ints) -> None:
    """Send the other candidates for their own words, and then what is left, evenly wherever there is room.

    So no slot of a word is for surplus alone unless the whole word is.
    """
    bits = shop.room.shape[1].bit_length() - 1
    state, place = np.nonzero((words >= 0) & ~shop.sent.any((2, 3)))
    word = words[state, place]
    mass = own[state, place, None]
    shop.sent[state, place, word] = mass * _evenly(shop.room)[state, word]
    np.subtract.at(shop.room, (state, word), shop.sent[state, place, word])
    np.maximum(shop.room, 0, out=shop.room)

    left = np.maximum(law - shop.sent.sum((2, 3)), 0)
    loads, capacity = word_loads(words, left, bits), shop.room.sum(2)
    flows = assign_surplus(loads, capacity)
    number = np.arange(1 << bits)
    flows[:, number, number] = loads - flows.sum(2)
    of_word = np.take_along_axis(loads, np.maximum(words, 0), axis=1)
    share = np.divide(left, of_word, out=np.zeros_like(left), where=(words >= 0) & (of_word > 0))
    to_word = share[:, :, None] * np.take_along_axis(flows, np.maximum(words, 0)[:, :, None], axis=1)
    shop.sent += to_word[..., None] * _evenly(shop.room)[:, None]


def _evenly(room: Floats) -> Floats:
    """Shares of the slots in what is spread over the room of a word, shape like `room` (N, 2^l, J)."""
    total = room.sum(2, keepdims=True)
    shares: Floats = np.divide(room, total, out=np.zeros_like(room), where=total > 0)
    return shares
