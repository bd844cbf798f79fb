"""The beam search against sums over tokens one by one, and against a search of all payloads."""

import numpy as np
import pytest
from word_texts import letters, mini_tokenizer, write_words

from polar.text.keys.key import Key
from polar.text.schemes.robust.randomness import NO_BITS, Randomness
from polar.text.schemes.robust.reading.alignment import EDIT_MODELS, align, start_law
from polar.text.schemes.robust.reading.beam import log2_votes, search, votes_of
from polar.text.schemes.robust.reading.likelihood import load_likelihoods
from polar.text.schemes.robust.reading.places import Place, Stretch
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.words import split_text

KEY = Key(bytes(range(32)))
BITS = 14
SETTINGS = RobustSettings(payload_bits=BITS)
PAYLOAD = np.random.default_rng(0).integers(0, 2, BITS)


@pytest.fixture(scope="module")
def laid_out():
    text = write_words(KEY, PAYLOAD.tolist(), 0, 60, SETTINGS)
    words = split_text(mini_tokenizer().encode(text), letters())
    place = Place(Randomness(KEY, SETTINGS.purpose), load_likelihoods()[0], words, Stretch(0, 128, BITS))
    return place, votes_of(place, align(place.pilots().ratios(), EDIT_MODELS[0], start_law(128)))


def test_the_evidence_of_many_beginnings_is_that_of_each(laid_out):
    place, votes = laid_out
    digests = np.repeat(NO_BITS, 9000)
    for level in range(BITS):
        digests = place.randomness.extend(digests, np.arange(9000) >> level & 1)
    places = range(len(votes.first))
    together = log2_votes(place, votes, places, digests)
    assert together.shape == (9000,)
    for number in (0, 4095, 4096, 8999):
        total = 0.0
        for start, end in zip(votes.first, [*votes.first[1:], len(votes.level)], strict=True):
            ratio = place.ratios(votes.pairs.at(np.arange(start, end)), digests[number : number + 1])
            weight = votes.weight[start:end]
            total += np.log2((weight * ratio).sum() + max(1 - weight.sum(), 0.02))
        assert together[number] == pytest.approx(total, abs=1e-3)


def test_a_beam_that_holds_all_beginnings_finds_the_best_one(laid_out):
    place, votes = laid_out
    found = search(place, votes, 1 << BITS)
    assert len(found.bits) == 1 << (BITS - 1)
    assert len({tuple(bits) for bits in found.bits.tolist()}) == len(found.bits)
    assert (np.diff(found.log2_evidence) <= 0).all()
    assert found.bits[0].tolist() == PAYLOAD[:-1].tolist()
    fewer = found.first(5)
    assert (fewer.bits == found.bits[:5]).all()
    assert (fewer.log2_evidence == found.log2_evidence[:5]).all()
