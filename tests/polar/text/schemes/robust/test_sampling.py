from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from serving import MERGES, TOKENS
from tiny_lm import write_lm
from word_texts import letters

from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.sampling import Sampling, truncated, write_confident, write_forward
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.words import as_letters
from polar.text.schemes.robust.writer import Writer
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.marginals import laws_at

KEY = Key(bytes(range(32)))
PAYLOAD = [1, 0, 0, 1] * 8


@pytest.fixture(scope="module")
def mini():
    return load_lm("mini")


def test_truncated_laws():
    law = np.array([0.1, 0.4, 0.2, 0.3])
    assert truncated(law, 1.0, None) is law
    assert truncated(law, 0.7, None).tolist() == [0, 0.4, 0, 0.3]
    assert truncated(law, 0.71, None).tolist() == [0, 0.4, 0.2, 0.3]
    assert truncated(law, 1.0, 1).tolist() == [0, 0.4, 0, 0]
    assert truncated(law, 0.5, 3).tolist() == [0, 0.4, 0, 0.3]


def test_a_batch_writes_what_each_text_alone_would(mini):
    contexts = np.array([mini.encode("The mayor said on")[:3], mini.encode("Two dogs ran home")[:3]])
    sampling = Sampling(temperature=0.8, top_p=0.9)

    def writers():
        return [Writer(KEY, PAYLOAD, nonce, RobustSettings(), letters()) for nonce in (0, 1)]

    both = write_forward(mini, contexts, writers(), 12, sampling)
    alone = write_forward(mini, contexts[1:], writers()[1:], 12, sampling)
    assert both.shape == (2, 12)
    assert np.array_equal(both[1], alone[0])
    assert not np.array_equal(both[0], both[1])


def test_the_most_confident_place_comes_first(mini):
    asked = []

    class Recorder(Writer):
        def choose_at(self, law, place):
            asked.append(place)
            return super().choose_at(law, place)

    writer = Recorder(KEY, PAYLOAD, 0, RobustSettings(clock="tokens"), letters())
    tokens = write_confident(mini, mini.encode("The mayor said"), writer, 8, Sampling(block_length=4))
    assert len(tokens) == 8
    assert sorted(asked[:4]) == [0, 1, 2, 3]
    assert sorted(asked[4:]) == [4, 5, 6, 7]
    assert mini.mask_id not in tokens


def test_the_law_of_the_most_confident_first_is_kept(tmp_path, monkeypatch):
    """Over nonces the blocks of two tokens have the law that passes over all orders give."""
    lm = load_lm(write_lm(tmp_path / "lm", scale=0.6))
    sampling = Sampling(temperature=1.0, top_k=3, block_length=2)
    context = [0, 1, 2]

    def law_at(block, place):
        law = np.exp2(lm.log2_probs(torch.tensor([context + block]), 3 + place, 1.0)[0].numpy())
        return {token: law[token] for token in np.argsort(-law)[:3].tolist()}

    expected = {}
    laws = [law_at([lm.mask_id] * 2, place) for place in (0, 1)]
    first = int(max(laws[1].values()) > max(laws[0].values()))
    for token, mass in laws[first].items():
        block = [lm.mask_id] * 2
        block[first] = token
        for other, share in law_at(block, 1 - first).items():
            pair = (token, other) if first == 0 else (other, token)
            expected[pair] = mass / sum(laws[first].values()) * share / sum(law_at(block, 1 - first).values())
    strings = as_letters(lm.text_tokenizer.strings)
    robust = RobustSettings(clock="tokens")
    counts = dict.fromkeys(expected, 0)
    laws_of = lru_cache(lambda canvas, positions: laws_at(lm, torch.tensor(canvas), positions, 1.0))
    monkeypatch.setattr(
        "polar.text.schemes.robust.sampling.laws_at",
        lambda lm, canvas, positions, temperature: laws_of(tuple(map(tuple, canvas.tolist())), tuple(positions)),
    )
    for nonce in range(1200):
        writer = Writer(KEY, PAYLOAD, nonce, robust, strings)
        counts[tuple(write_confident(lm, context, writer, 2, sampling))] += 1
    assert sum(expected.values()) == pytest.approx(1.0)
    assert chisquare(list(counts.values()), [1200 * expected[pair] for pair in counts]).pvalue > 1e-4


def test_a_text_with_the_most_confident_places_first_is_read(tmp_path):
    lm = load_lm(write_lm(tmp_path / "lm", TOKENS, MERGES, scale=0.2))
    robust = RobustSettings(payload_bits=8, clock="tokens")
    writer = Writer(KEY, PAYLOAD[:8], 1, robust, as_letters(lm.text_tokenizer.strings))
    tokens = write_confident(lm, [0, 1, 2], writer, 160, Sampling(block_length=4))
    text = lm.text_tokenizer.strings
    found = Receiver(KEY, lm.text_tokenizer, robust, range(4)).decode(
        b"".join(text[token] for token in tokens).decode()
    )
    assert (found.payload, found.nonce) == (tuple(PAYLOAD[:8]), 1)
