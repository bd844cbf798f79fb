"""What every position of a long polar code is for, from the law of one token.

The law is a `BlockLaw` P(s) P(u|s) W(x|u,s). A label U of M values is a word of bit levels, most significant first, and
every level has its own polar code, conditioned on the levels before it. The encoder has all of S^n, the decoder what
it received and the key. A position i of V = U G, at one level, is

* in the message set: V_i nearly uniform given V^{i-1} and S^n, and nearly determined by V^{i-1} and what is received;
* in the key set: nearly uniform given S^n, but not decodable: fixed to key bits that the decoder has;
* drawn otherwise, from P(V_i | V^{i-1}, S^n). A drawn position that the decoder cannot decode is called undecodable; a
  law for which the number of these matters would need chaining, which is not done here.

The scheme `parallel` uses the levels and the bound; `choose_sets`, `positions_within` and `expected_dead_ends` are for
research (`polar.code.memoryless`, benchmarks/memoryless.py), and no command calls them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polar.code.density_evolution import polarise
from polar.code.successive import CERTAIN
from wm_env.common.arrays import Floats
from wm_env.common.files import fingerprint, write_atomically
from wm_env.common.tensors import FileFormat, read_tensors, write_tensors
from wm_env.law import BlockLaw, symbol_label_probs

Bools = NDArray[np.bool_]

SPECTRUM_FORMAT = FileFormat(kind="covert-watermark polarisation", version=1)


@dataclass(frozen=True)
class Level:
    """One bit level of the label as one side sees it; index [a, prefix of the earlier levels].

    Attributes:
        llr: ln P(bit = 0 | a, prefix) - ln P(bit = 1 | a, prefix), shape (A, 2^k).
        mass: P(a, prefix), shape (A, 2^k), sums to 1.
    """

    llr: Floats
    mass: Floats


@dataclass(frozen=True)
class TokenCode:
    """The law of one token, and what each side knows of its label, level by level.

    Attributes:
        law: P(s), P(u|s), W(x|u,s) of one token.
        encoder: levels given the state.
        decoder: levels given the received symbol.
    """

    law: BlockLaw
    encoder: tuple[Level, ...]
    decoder: tuple[Level, ...]


@dataclass(frozen=True)
class Spectrum:
    """How every position of every level polarises; arrays of shape (levels, n).

    Attributes:
        deficit: 1 - H(V_i | V^{i-1}, S^n), bits.
        certain: probability that V^{i-1} and S^n determine V_i.
        decoder_entropy: H(V_i | V^{i-1}, Y^n), bits; exact for erasure laws, otherwise a lower bound.
    """

    deficit: Floats
    certain: Floats
    decoder_entropy: Floats


@dataclass(frozen=True)
class IndexSets:
    """What every position of V is used for; masks of shape (levels, n). The rest is drawn.

    Attributes:
        message: message bits, one-time-padded with key bits.
        key: fixed to further key bits.
        undecodable: drawn positions that the decoder cannot decode.
        salt_bits: how many of a level's first message positions carry its salt instead, see `polar.code.memoryless`.
    """

    message: Bools
    key: Bools
    undecodable: Bools
    salt_bits: int = 0

    @property
    def salts(self) -> tuple[int, ...]:
        """Salt bits of every level."""
        return tuple(min(self.salt_bits, int(count)) for count in self.message.sum(1))

    @property
    def message_bits(self) -> int:
        """Message bits per frame, salt not counted."""
        return int(self.message.sum()) - sum(self.salts)

    @property
    def key_bits(self) -> int:
        """Key bits per frame: the pad of all message positions, then the key positions."""
        return int(self.message.sum()) + int(self.key.sum())


def token_code(law: BlockLaw, channel: Tensor | None = None) -> TokenCode:
    """Split the label of `law` into bit levels for the encoder and for a decoder behind P(y|x) = `channel`.

    Args:
        law: one token: P(s), P(u|s), W(x|u,s), symbols.
        channel: shape (symbols, Y), rows sum to 1; None where the decoder sees X itself.
    """
    given_state = law.state_probs[:, None] * law.p_label
    given_symbol = symbol_label_probs(law)
    received = given_symbol if channel is None else channel.T @ given_symbol
    return TokenCode(law, bit_levels(given_state.numpy()), bit_levels(received.numpy()))


def spectrum(code: TokenCode, log_length: int, cache: Path | None = None) -> Spectrum:
    """Polarise n = 2^log_length tokens; with a cache folder the result is kept there under its fingerprint.

    Raises:
        ValueError: a cached file is damaged.
        OSError: the cache folder cannot be written.
    """
    sides = {"encoder": code.encoder, "decoder": code.decoder}
    atoms = {
        f"{side}.{number}.{part}": array
        for side, levels in sides.items()
        for number, level in enumerate(levels)
        for part, array in (("llr", level.llr), ("mass", level.mass))
    }
    name = fingerprint(atoms, {"log_length": log_length, "version": SPECTRUM_FORMAT.version})
    path = None if cache is None else cache / f"polarisation-{name[:16]}.safetensors"
    if path is not None and path.exists():
        arrays, _ = read_tensors(path, SPECTRUM_FORMAT)
        return Spectrum(**arrays)
    encoder, decoder = ([polarise(*crossovers(level), log_length) for level in levels] for levels in sides.values())
    arrays = {
        "deficit": np.stack([level.deficit for level in encoder]),
        "certain": np.stack([level.certain for level in encoder]),
        "decoder_entropy": np.stack([level.entropy for level in decoder]),
    }
    if path is not None:
        write_atomically(
            path, lambda temporary: write_tensors(temporary, SPECTRUM_FORMAT, arrays, {"fingerprint": name})
        )
    return Spectrum(**arrays)


def choose_sets(
    polarised: Spectrum,
    positions: int,
    salt_bits: int = 0,
    tilt: float = 0.0,
    decoding_budget: float = 1e-3,
) -> IndexSets:
    """Message set: the `positions` decodable positions of all levels that are nearest to uniform given the state.

    Positions count as decodable, cheapest first, while their entropies sum to at most `decoding_budget` bits. For
    erasure laws that sum bounds the block error by a union; for other laws the entropies are lower bounds and the
    choice is a design rule: the block error has to be measured. Any other position is fixed to a key bit where that is
    the lesser evil: 1 - H given the state below H given what is received.

    Args:
        polarised: the entropies.
        positions: size of the message set, salt included.
        salt_bits: salt of every level, see `polar.code.memoryless`.
        tilt: 0 is best for plain filling. With look-ahead, positions that add up few labels are what hurts, since a few
            states determine them: within a level, 1 - H counts 2^tilt times as much with every halving of that number.
        decoding_budget: bits.

    Raises:
        ValueError: fewer decodable positions than asked for.
    """
    shape = polarised.deficit.shape
    decodable = _cheapest(polarised.decoder_entropy, decoding_budget).reshape(shape)
    if not 0 <= positions <= decodable.sum():
        raise ValueError(f"{positions} message positions asked for, {decodable.sum()} are decodable")
    nearest = _smallest(np.where(decodable, polarised.deficit, np.inf), positions)
    halvings = np.array([position.bit_count() for position in range(shape[1])])
    with np.errstate(divide="ignore"):
        tilted = np.where(decodable, np.log2(polarised.deficit) + tilt * halvings, np.inf)
    counts = nearest.sum(1)
    message = np.stack([_smallest(costs, int(count)) for costs, count in zip(tilted, counts, strict=True)])
    key = ~decodable & (polarised.deficit < polarised.decoder_entropy)
    return IndexSets(message, key, ~decodable & ~key, salt_bits)


def positions_within(polarised: Spectrum, budget: float, decoding_budget: float = 1e-3) -> int:
    """The largest message set whose positions miss at most `budget` bits of uniformity, sum of 1 - H."""
    decodable = _cheapest(polarised.decoder_entropy, decoding_budget)
    return int((np.sort(polarised.deficit.reshape(-1)[decodable]).cumsum() <= budget).sum())


def divergence(polarised: Spectrum, sets: IndexSets) -> float:
    """D(cover || law of the plain encoder) in bits, on (S^n, U^n), and so at least that on (S^n, X^n).

    The plain encoder has neither look-ahead nor salt. The value is the sum of 1 - H over the forced positions. States
    in which V_i is determined do not count, because there the encoder sends what the cover would. The value is an upper
    bound if the entropies of the spectrum are lower bounds, and 0 for erasure laws.
    """
    forced = sets.message | sets.key
    return float(np.maximum(polarised.deficit - polarised.certain, 0)[forced].sum())


def expected_dead_ends(polarised: Spectrum, sets: IndexSets) -> float:
    """Mean dead ends of a frame without look-ahead or salt: a determined bit contradicts a forced one half the time."""
    return float(polarised.certain[sets.message | sets.key].sum()) / 2


def bit_levels(joint: Floats) -> tuple[Level, ...]:
    """Bit levels of P(a, u), shape (A, M); labels beyond M have probability 0."""
    count = max(1, (joint.shape[1] - 1).bit_length())
    padded = np.pad(joint, ((0, 0), (0, 2**count - joint.shape[1])))
    levels = []
    for number in range(count):
        halves = padded.reshape(len(joint), 2**number, 2, -1).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            llr = np.nan_to_num(np.diff(-np.log(halves))[..., 0], nan=0.0, posinf=CERTAIN, neginf=-CERTAIN)
        levels.append(Level(np.clip(llr, -CERTAIN, CERTAIN), halves.sum(-1)))
    return tuple(levels)


def crossovers(level: Level) -> tuple[Floats, Floats]:
    """The values of min(P(bit = 0 | a, prefix), P(bit = 1 | a, prefix)) and their probabilities."""
    crossover = 1 / (1 + np.exp(np.abs(level.llr)))
    crossover[np.abs(level.llr) == CERTAIN] = 0.0
    # Equal atoms act alike: the Corollary's thousands of states become two.
    values, place = np.unique(crossover.reshape(-1), return_inverse=True)
    probs = np.bincount(place, level.mass.reshape(-1)).astype(np.float64)
    return values, probs


def _cheapest(costs: Floats, budget: float) -> Bools:
    """Flat mask of the cheapest positions whose costs sum to at most `budget`."""
    return _smallest(costs.reshape(-1), int((np.sort(costs, axis=None).cumsum() <= budget).sum()))


def _smallest(costs: Floats, count: int) -> Bools:
    """Mask of the `count` smallest entries, of the shape of `costs`."""
    mask = np.zeros(costs.size, dtype=np.bool_)
    mask[np.argsort(costs, axis=None, kind="stable")[:count]] = True
    return mask.reshape(costs.shape)
