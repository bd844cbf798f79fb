"""The achievability proof of Theorem 1 at small n, computed exactly: random codebooks and the likelihood encoder.

A codebook holds K bins of M sub-bins of J words u^n, all letters drawn from P_U. To send message m under key k in state
s^n the encoder draws j in proportion to P(s^n | u^n(m,k,j)), then x^n from W(.|u^n(m,k,j), s^n). The proof needs

* J above 2^{n I(U;S)}: the encoder's words then look as if they were chosen without regard to the state;
* K J above 2^{n I(U;X,S)}, so K above 2^{n I(U;X|S)} at the smallest J: every message then looks like the cover;
* M J below 2^{n I(U;X)}: the decoder finds the message.

Nothing is sampled but the codebook: all laws are enumerated over every (s^n, x^n), which bounds n to about 10 for
binary alphabets. A sum over words is one product with an n-fold Kronecker power, so its cost does not grow with J.

For research: benchmarks/achievability.py draws the figure of docs/theory.md with it, and no command calls it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wm_env.information import total_variation
from wm_env.law import BlockLaw


@dataclass(frozen=True)
class Letter:
    """The law of one letter over common alphabets of states, labels and tokens.

    Attributes:
        state: P(s), shape (N,).
        label: P(u), shape (M,).
        state_given_label: P(s|u), shape (M, N); positive where P(s) is.
        token: W(x|u,s), shape (M, N, T).
        cover: P(x|s) = sum_u P(u|s) W(x|u,s), shape (N, T).
    """

    state: Tensor
    label: Tensor
    state_given_label: Tensor
    token: Tensor
    cover: Tensor


@dataclass(frozen=True)
class Codebook:
    """Label words u^n(m,k,j): label numbers, shape (messages, keys, bins, n)."""

    words: Tensor

    @property
    def length(self) -> int:
        """n, the letters of a word."""
        return self.words.shape[-1]


def letter(law: BlockLaw) -> Letter:
    """A law of one-token blocks, written over the tokens of all its states together.

    Raises:
        ValueError: a label that some state never uses; the likelihood encoder may then find no word for a state.
    """
    if not (law.p_label > 0).all():
        raise ValueError("the likelihood encoder needs P(u|s) > 0 for every state and label")
    states, labels, candidates = law.p_candidate.shape
    tokens = int(law.symbol.max()) + 1
    index = law.symbol[:, None].expand(states, labels, candidates)
    token = law.p_candidate.new_zeros(states, labels, tokens).scatter_add(-1, index, law.p_candidate)
    joint = law.state_probs[:, None] * law.p_label
    label = joint.sum(0)
    return Letter(
        state=law.state_probs,
        label=label,
        state_given_label=(joint / label).T,
        token=token.transpose(0, 1),
        cover=(law.p_label[:, None] @ token)[:, 0],
    )


def random_codebook(
    law: Letter, length: int, messages: int, keys: int, bins: int, generator: torch.Generator
) -> Codebook:
    """A codebook whose letters are independent draws from P_U; `bins` is J, the words of each message and key."""
    drawn = torch.multinomial(law.label, messages * keys * bins * length, replacement=True, generator=generator)
    return Codebook(drawn.reshape(messages, keys, bins, length))


def size_of(rate: float, length: int) -> int:
    """Number of words at `rate` bits per letter: 2^{n rate}, at least 1."""
    return max(1, round(2 ** (length * rate)))


def state_variation(law: Letter, codebook: Codebook) -> Tensor:
    """V(P_S^n, 1/J sum_j P(s^n|u^n(m,k,j))) of every (m, k), shape (messages, keys).

    Its mean bounds how far the encoder is from one that picks j without regard to the state: the first threshold.
    """
    counts = _word_counts(law, codebook)
    seen = _through(counts, law.state_given_label, codebook.length) / codebook.words.shape[2]
    return total_variation(seen, _power(law.state, codebook.length))


def message_variation(law: Letter, codebook: Codebook) -> Tensor:
    """V(P~^m_{X^n S^n}, P_XS^n) of every message, averaged over the keys inside; shape (messages,), exact.

    The maximum over m is the paper's joint covertness and semantic secrecy; the second threshold, I(U;X|S).
    """
    n = codebook.length
    cover = _power((law.state[:, None] * law.cover).reshape(-1), n)
    variations = []
    for of_message in _word_counts(law, codebook):
        induced = torch.zeros_like(cover)
        for counts in of_message:
            induced += _sent(law, counts, n)
        variations.append(total_variation(induced / len(of_message), cover))
    return torch.stack(variations)


def decoding_error(law: Letter, codebook: Codebook) -> float:
    """Error probability of the best decoder of m from (x^n, k), average over messages and keys; exact."""
    n = codebook.length
    counts = _word_counts(law, codebook)
    messages, keys = counts.shape[:2]
    interleaved = (len(law.state), law.token.shape[-1]) * n
    correct = 0.0
    for key in range(keys):
        received = [
            _sent(law, counts[message, key], n).reshape(interleaved).sum(tuple(range(0, 2 * n, 2)))
            for message in range(messages)
        ]
        correct += float(torch.stack(received).amax(0).sum())
    return max(0.0, 1 - correct / (messages * keys))


def _sent(law: Letter, counts: Tensor, length: int) -> Tensor:
    """P~(s^n, x^n | m, k) of the likelihood encoder over the words counted in `counts`; letters (s, x) interleaved."""
    pairs = (law.state_given_label[..., None] * law.token).flatten(1)
    words = _through(counts, pairs, length)
    normaliser = _through(counts, law.state_given_label, length)
    scale = (_power(law.state, length) / normaliser).reshape((len(law.state), 1) * length)
    return (words.reshape((len(law.state), law.token.shape[-1]) * length) * scale).reshape(-1)


def _word_counts(law: Letter, codebook: Codebook) -> Tensor:
    """How often every one of the M^n possible words occurs, shape (messages, keys, M^n)."""
    labels, n = len(law.label), codebook.length
    places = torch.tensor([labels ** (n - 1 - position) for position in range(n)])
    number = (codebook.words * places).sum(-1)
    counts = torch.zeros(*number.shape[:2], labels**n, dtype=torch.float64)
    return counts.scatter_add_(-1, number, torch.ones(number.shape, dtype=torch.float64))


def _through(counts: Tensor, kernel: Tensor, length: int) -> Tensor:
    """sum_u counts(u^n) prod_t kernel(o_t | u_t), for all outputs o^n; (..., M^n) -> (..., O^n)."""
    batch = counts.shape[:-1]
    mass = counts.reshape(math.prod(batch), -1)
    for _ in range(length):
        # The front letter leaves as u_t and comes back at the end as o_t.
        mass = torch.einsum("bur,uo->bro", mass.reshape(len(mass), len(kernel), -1), kernel)
    return mass.reshape(*batch, -1)


def _power(probs: Tensor, length: int) -> Tensor:
    """The product law of `length` independent letters, flat."""
    power = torch.ones(1, dtype=probs.dtype)
    for _ in range(length):
        power = (power[:, None] * probs).reshape(-1)
    return power
