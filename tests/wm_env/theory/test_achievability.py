"""Random codebooks and the likelihood encoder against sums written out by hand."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from wm_env.theory.achievability import (
    Codebook,
    Letter,
    decoding_error,
    letter,
    message_variation,
    random_codebook,
    size_of,
    state_variation,
)
from wm_env.theory.capacity import block_law, dense_cover


def random_letter(seed: int, states: int = 2, tokens: int = 3, labels: int = 2) -> Letter:
    rng = np.random.default_rng(seed)
    cover = dense_cover(
        torch.from_numpy(rng.dirichlet(np.ones(states))), torch.from_numpy(rng.dirichlet(np.ones(tokens), states))
    )
    return letter(block_law(cover, torch.from_numpy(rng.dirichlet(np.ones(labels), (states, tokens)))))


def sent_law(law: Letter, book: Codebook, m: int, k: int) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
    """P~(s^n, x^n | m, k), one state sequence, word and text after the other."""
    n = book.length
    words = book.words[m, k].tolist()
    sent = {}
    for s in product(range(len(law.state)), repeat=n):
        prior = math.prod(float(law.state[letter_]) for letter_ in s)
        likelihood = [
            math.prod(float(law.state_given_label[u, a]) for u, a in zip(word, s, strict=True)) for word in words
        ]
        for x in product(range(law.token.shape[-1]), repeat=n):
            sent[s, x] = sum(
                prior
                * weight
                / sum(likelihood)
                * math.prod(float(law.token[u, a, b]) for u, a, b in zip(word, s, x, strict=True))
                for word, weight in zip(words, likelihood, strict=True)
            )
    return sent


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_measures_match_sums_by_hand(seed: int) -> None:
    law = random_letter(seed)
    messages, keys, n = 3, 2, 2
    book = random_codebook(law, n, messages, keys, 3, torch.Generator().manual_seed(seed))
    assert book.words.shape == (messages, keys, 3, n)
    sent = {(m, k): sent_law(law, book, m, k) for m in range(messages) for k in range(keys)}

    variation = message_variation(law, book)
    for m in range(messages):
        gap = 0.0
        for s, x in sent[0, 0]:
            cover = math.prod(float(law.state[a] * law.cover[a, b]) for a, b in zip(s, x, strict=True))
            gap += abs(sum(sent[m, k][s, x] for k in range(keys)) / keys - cover)
        assert float(variation[m]) == pytest.approx(gap / 2, abs=1e-12)

    correct = 0.0
    for k in range(keys):
        for x in product(range(3), repeat=n):
            correct += max(sum(p for (_, text), p in sent[m, k].items() if text == x) for m in range(messages))
    assert decoding_error(law, book) == pytest.approx(1 - correct / (messages * keys), abs=1e-12)

    seen = state_variation(law, book)
    for m, k in sent:
        gap = 0.0
        for s in product(range(2), repeat=n):
            mixture = np.mean(
                [
                    math.prod(float(law.state_given_label[u, a]) for u, a in zip(word, s, strict=True))
                    for word in book.words[m, k].tolist()
                ]
            )
            gap += abs(float(mixture) - math.prod(float(law.state[a]) for a in s))
        assert float(seen[m, k]) == pytest.approx(gap / 2, abs=1e-12)


def test_the_letter_law_is_consistent() -> None:
    law = random_letter(4, states=3, tokens=4, labels=3)
    joint = law.label[:, None, None] * law.state_given_label[..., None] * law.token
    assert joint.sum((0, 2)).tolist() == pytest.approx(law.state.tolist())
    assert (joint.sum(0) / law.state[:, None]).numpy() == pytest.approx(law.cover.numpy())


def test_the_proofs_inequality_and_large_codebooks() -> None:
    """V(P~_SX, Q~_SX) is at most the mean state variation, and both vanish as the codebook grows."""
    law = random_letter(5)
    generator = torch.Generator().manual_seed(1)
    small = random_codebook(law, 3, 1, 4, 2, generator)
    large = random_codebook(law, 3, 1, 256, 64, generator)
    assert float(state_variation(law, large).mean()) < 0.3 * float(state_variation(law, small).mean())
    assert float(message_variation(law, large)[0]) < 0.1
    assert 0 < float(message_variation(law, small)[0]) <= 1


def test_labels_that_say_nothing_cost_nothing_and_carry_nothing() -> None:
    cover = dense_cover(
        torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    )
    law = letter(block_law(cover, torch.full((2, 2, 2), 0.5, dtype=torch.float64)))
    book = random_codebook(law, 3, 4, 2, 2, torch.Generator().manual_seed(0))
    assert message_variation(law, book).tolist() == pytest.approx([0] * 4, abs=1e-12)
    assert decoding_error(law, book) == pytest.approx(0.75)


def test_sizes_and_refusals() -> None:
    assert (size_of(0.0, 8), size_of(0.5, 8), size_of(0.3, 4)) == (1, 16, 2)
    cover = dense_cover(torch.ones(1, dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    identity = torch.eye(2, dtype=torch.float64)[None]
    with pytest.raises(ValueError, match=r"P\(u\|s\) > 0"):
        letter(block_law(cover, identity))
