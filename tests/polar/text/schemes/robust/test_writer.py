import itertools

import numpy as np
import pytest
from scipy.stats import chisquare, kstest
from word_texts import letters

from polar.text.keys.key import Key
from polar.text.schemes.robust.randomness import Randomness
from polar.text.schemes.robust.reading.likelihood import race_times
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.tape import NONCES, SEGMENT, SLOTS, levels
from polar.text.schemes.robust.writer import Writer

KEY = Key(bytes(range(32)))
LAW = np.array([0.5, 0.0, 0.3, 0.15, 0.05])


def test_over_all_numbers_of_a_grid_the_winner_has_the_models_law(monkeypatch):
    points = ((np.arange(40) + 0.5) / 40 * 2.0**64).astype(np.uint64)
    writer = Writer(KEY, [0] * 32, 0, RobustSettings(), letters())
    law = np.array([0.6, 0.3, 0.1])
    counts = np.zeros(3)
    for numbers in itertools.product(points, repeat=3):
        monkeypatch.setattr(writer, "_numbers", lambda *place, numbers=numbers: np.array(numbers))
        counts[writer.race(law, 0, 0)] += 1
    assert np.abs(counts / counts.sum() - law).max() < 1.5 / 40


@pytest.mark.parametrize("payload", [[0] * 32, [1] * 32, [1, 0] * 16])
def test_every_payload_gives_the_models_law_at_every_level(payload):
    settings = RobustSettings()
    level = levels(32)
    places = {kind: np.argwhere(level == kind)[0] for kind in (0, 5, 32, 33)}
    for word, slot in places.values():
        counts = np.zeros(5)
        for nonce in range(1500):
            counts[Writer(KEY, payload, nonce, settings, letters()).race(LAW, int(word), int(slot))] += 1
        assert counts[1] == 0
        assert chisquare(counts[LAW > 0], 1500 * LAW[LAW > 0]).pvalue > 1e-4


def test_tokens_of_two_texts_and_of_neighbouring_places_are_independent():
    pairs, neighbours = np.zeros((2, 2)), np.zeros((2, 2))
    law = np.array([0.5, 0.5])
    for nonce in range(0, 3000, 2):
        first, second = (Writer(KEY, [1] * 32, nonce + step, RobustSettings(), letters()) for step in (0, 1))
        one = first.race(law, 3, 1)
        pairs[one, second.race(law, 3, 1)] += 1
        neighbours[one, first.race(law, 4, 1)] += 1
    for table in (pairs, neighbours):
        assert chisquare(table.reshape(-1)).pvalue > 1e-4


@pytest.mark.parametrize("apart", [1, NONCES >> 3, NONCES >> 1, NONCES - 1])
def test_no_two_nonces_share_a_number(apart):
    """The largest place and token of the last nonce included."""
    random = Randomness(KEY)
    slot, token, digest = np.array(SLOTS - 1), np.array(2**24 - 1), np.array(7, dtype=np.uint64)
    words = SEGMENT * np.array([NONCES - 1 - apart, NONCES - 1])[:, None] + np.arange(SEGMENT)
    for numbers in (random.words(words, slot, token, digest), random.pilots(words, slot, token)):
        assert len(np.unique(numbers)) == words.size


def test_race_times_are_exponential_and_pilots_lead_with_the_searched_bits():
    random = Randomness(KEY, "use")
    token, slot = np.arange(4000), np.full(4000, 2)
    for words in (
        random.words(np.array(9), slot, token, np.array(7, dtype=np.uint64)),
        random.pilots(np.array(9), slot, token),
    ):
        assert kstest(race_times(words), "expon").pvalue > 1e-4
    leads = random.pilot_leads(np.array([1]), slot[:50], token[:50])
    for lane in range(8):
        pilots = random.pilots(np.array(8 + lane), slot[:50], token[:50])
        assert np.array_equal(pilots >> np.uint64(48), leads[:, lane])


def test_payloads_share_numbers_exactly_as_far_as_they_agree():
    random = Randomness(KEY, "")
    one, other = random.digests([0, 1, 1, 0]), random.digests([0, 1, 0, 0])
    assert np.array_equal(one[:3], other[:3])
    assert not np.intersect1d(one[3:], other[3:]).size
    assert one[4] == one[5]


def test_wrong_arguments_are_named():
    settings = RobustSettings()
    with pytest.raises(ValueError, match="32 zeros and ones"):
        Writer(KEY, [0] * 31, 0, settings, letters())
    with pytest.raises(ValueError, match=f"nonce={NONCES}"):
        Writer(KEY, [0] * 32, NONCES, RobustSettings(), letters())
    with pytest.raises(ValueError, match="nonce=-1"):
        Writer(KEY, [0] * 32, -1, settings, letters())
    with pytest.raises(ValueError, match="no token has a probability"):
        Writer(KEY, [0] * 32, 0, settings, letters()).choose(np.zeros(5))
    with pytest.raises(ValueError, match="payload_bits=0"):
        RobustSettings(payload_bits=0)
