"""One parallel step: n labels by polar coding, then n tokens by their marginals, in a text that re-tokenises to itself.

The model gives n marginals p_1..p_n, and plain parallel sampling draws each token from its own: the product law of
Theorem 1, with the marginals as the state S^n. A token's label U is b bits of a keyed hash of its bytes. Labels get
exactly their law under the marginals (`polar.code.successive.draw`, level by level), the message bits wherever the
law leaves room for them, and then each token is drawn from its marginal restricted to its label.

**Which law, and what is lost.** The bits of V can be handled in two ways. Forcing them to the message makes no errors,
and the text differs from the model's by at most the sum over message positions of E|P(V_i = 1 | V^{i-1}, S^n) - 1/2|
in total variation. Coupling them with the message keeps the law, and that same sum is the mean number of bits that
differ from the message. This scheme couples: what an observer could see is never traded for bits, and an outer code
(`polar.text.schemes.parallel.outer_code`) makes up for the lost ones.

**Text, not tokens.** The receiver has the text, and reads tokens by tokenising it; tokens drawn independently may spell
a text whose tokenisation is another one. So tokens are drawn in order, and one that would make the text so far
tokenise to anything else is drawn again, with the same label. The first draws are plain parallel sampling, so the law
of a step is as far from it in total variation as the probability that something is drawn again; and no scheme whose
texts all re-tokenise to themselves is nearer, since plain sampling writes others with just that probability. Nothing
is lost in rate. Alternatives, and why not:

* whole steps drawn again until one re-tokenises: as far from plain sampling, and the message bits would bend the law
  further, because some of them re-tokenise more easily than others;
* tokens that are whole words and marks only, which any reader can tell apart: no redraws, but the vocabulary loses
  every piece of a word; on the embedded model that is a quarter of the mass of each token, not some hundredths;
* steps that do not re-tokenise sent as they are: no cost in law at all, but the receiver's tokens are then shifted,
  and each such step is noise to it.
"""

from collections.abc import Callable

import numpy as np

from polar.code.index_sets import Bools, bit_levels
from polar.code.successive import draw
from wm_env.common.arrays import Floats, Ints

Uniform = Callable[[], float]
"""Draws from (0, 1)."""

Accept = Callable[[int], bool]
"""Whether the text may go on with this token."""


def label_masses(marginals: Floats, labels: Ints, bits: int) -> Floats:
    """P(U_t = u) of every position: marginals (n, V) -> (n, 2^bits)."""
    masses = np.zeros((len(marginals), 2**bits))
    for label in range(2**bits):
        masses[:, label] = marginals[:, labels == label].sum(1)
    return masses


def draw_labels(masses: Floats, points: Floats) -> Ints:
    """Labels, shape (n,), with exactly the product law of `masses`, by polar coding level by level.

    Args:
        masses: P(U_t = u), shape (n, 2^b).
        points: numbers in (0, 1), shape (b, n), that V follows; see `polar.code.successive.draw`.
    """
    prefix = np.zeros(len(masses), dtype=np.int64)
    for level, row in zip(bit_levels(masses), points, strict=True):
        word = draw(level.llr[np.arange(len(masses)), prefix][None], row[None])[0]
        prefix = 2 * prefix + word
    return prefix


def place_points(bits: Ints, message: Bools, uniform: Uniform) -> Floats:
    """Points for `draw_labels`, shape (b, n): (bit + w) / 2 at the message positions, w elsewhere, w uniform."""
    points = np.array([uniform() for _ in range(message.size)]).reshape(message.shape)
    points[message] = (bits + points[message]) / 2
    return points


def draw_tokens(
    marginals: Floats,
    labels: Ints,
    word: Ints,
    accept: Callable[[tuple[int, ...]], Accept],
    uniform: Uniform,
) -> tuple[int, ...]:
    """Draw token after token from its marginal restricted to its label, and again what cannot stand in the text.

    Where no token with the wanted label can, one with another label stands, so the receiver may read a wrong bit.

    Args:
        marginals: shape (n, V).
        labels: of all tokens, shape (V,).
        word: the labels of the step, shape (n,).
        accept: what may follow the tokens of this step so far.
        uniform: the sender's draws.

    Raises:
        ValueError: nothing at all may follow.
    """
    tokens: tuple[int, ...] = ()
    for law, label in zip(marginals, word, strict=True):
        accepts = accept(tokens)
        restricted = np.where(labels == label, law, 0.0)
        token = _draw_token(restricted, uniform)
        if token is not None and not accepts(token):
            token = _redraw(restricted, token, accepts, uniform)
        if token is None:
            token = _redraw(law.copy(), None, accepts, uniform)
        if token is None:
            raise ValueError("no token of the vocabulary can follow this text")
        tokens += (token,)
    return tokens


def _redraw(law: Floats, refused: int | None, accepts: Accept, uniform: Uniform) -> int | None:
    """Draw until a token is accepted; refused ones are struck off `law`. None if none is left."""
    while True:
        if refused is not None:
            law[refused] = 0.0
        token = _draw_token(law, uniform)
        if token is None or accepts(token):
            return token
        refused = token


def _draw_token(law: Floats, uniform: Uniform) -> int | None:
    """A token in proportion to `law`, shape (V,); None if all of it is 0."""
    sums = law.cumsum()
    if not sums[-1] > 0:
        return None
    # The last token of positive mass bounds the search: a point next to 1 may round up to the sum.
    last = int(np.searchsorted(sums, sums[-1]))
    return min(int(np.searchsorted(sums, uniform() * sums[-1], side="right")), last)
