"""Exact evaluation of a code whose message length follows the state, and transmissions beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polar.code.adaptive import (
    AdaptiveCode,
    AdaptiveSettings,
    Decoded,
    adapt_codes,
    adaptive_errors,
    decode_states,
    induced_law,
    send,
)
from polar.code.decoders import observations
from polar.evaluation.covertness import text_variation, untruncated_bound
from polar.evaluation.montecarlo import block_interval
from wm_env.information import total_variation
from wm_env.law import JointLaw
from wm_env.theory.error_free import error_free_bits
from wm_env.tree import StateTree


@dataclass(frozen=True)
class AdaptivePoint:
    """What messages of adapted length achieve, with a pad as long as the message.

    Attributes:
        mean_bits: E[l], bits per block.
        limit: no code whose length is a function of state and key has more bits without error at `tv_mean` and this
            law of the states, with any key.
        longest: the most bits of any state.
        dither_bits: d, bits of the key beyond the pad.
        share_by_length: probability of the states with 0, 1, ..., longest bits.
        ber: exact bit error rate: wrong bits over bits sent, all bits wrong where the decoder takes another length.
        bler: exact probability that a block has another length or a wrong bit.
        tv_mean: V(P~ Z, P Z), mean over blocks.
        tv_max: its largest value over blocks.
        tv_text: the same for whole texts; null where the sum is too large.
        tv_untruncated_bound: bound on the TV against the text of the untruncated model.
        ber_mc: bit error rate measured over the transmissions; null if there were none.
        ber_mc_ci95: its 95 % interval.
    """

    mean_bits: float
    limit: float
    longest: int
    dither_bits: int
    share_by_length: tuple[float, ...]
    ber: float
    bler: float
    tv_mean: float
    tv_max: float
    tv_text: float | None
    tv_untruncated_bound: float | None
    ber_mc: float | None
    ber_mc_ci95: tuple[float, float] | None


def evaluate_adaptive(tree: StateTree, law: JointLaw, settings: AdaptiveSettings) -> AdaptivePoint:
    """Choose the lengths, enumerate all errors and total variations, and measure beside it."""
    codes = adapt_codes(law, settings)
    decoded = [
        decode_states(block, code, seen)
        for block, code, seen in zip(law.blocks, codes, observations(tree, "path"), strict=True)
    ]
    exact = [adaptive_errors(*each) for each in zip(law.blocks, codes, decoded, strict=True)]
    bits, wrong, blocks = (float(np.mean(values)) for values in zip(*exact, strict=True))
    induced = [induced_law(code) for code in codes]
    variations = [
        float(block.state_probs @ total_variation(sent, block.cover))
        for block, sent in zip(law.blocks, induced, strict=True)
    ]
    variation = float(np.mean(variations))
    covers = [block.cover.numpy() for block in law.blocks]
    text = text_variation(tree, [sent[:, None] for sent in induced])
    measured = _measure(law, codes, decoded, settings)
    longest = max(int(code.lengths.max()) for code in codes)
    shares = [
        np.bincount(code.lengths, weights=block.state_probs.numpy(), minlength=longest + 1)
        for block, code in zip(law.blocks, codes, strict=True)
    ]
    return AdaptivePoint(
        mean_bits=bits,
        limit=error_free_bits(covers, [block.state_probs.numpy() for block in law.blocks], variation),
        longest=longest,
        dither_bits=settings.dither_bits,
        share_by_length=tuple(np.mean(shares, axis=0).tolist()),
        ber=wrong / bits if bits else 0.0,
        bler=blocks,
        tv_mean=variation,
        tv_max=max(variations),
        tv_text=text,
        tv_untruncated_bound=untruncated_bound(tree, text),
        ber_mc=None if measured is None else measured[0],
        ber_mc_ci95=None if measured is None else measured[1],
    )


def _measure(
    law: JointLaw, codes: Sequence[AdaptiveCode], decoded: Sequence[Decoded], settings: AdaptiveSettings
) -> tuple[float, tuple[float, float]] | None:
    """Bit error rate of real transmissions with its interval; None without transmissions or bits."""
    rng = np.random.default_rng(settings.seed)
    sent = wrong = 0
    longest = max(int(code.lengths.max()) for code in codes)
    if settings.transmissions == 0 or longest == 0:
        return None
    for block, code, result in zip(law.blocks, codes, decoded, strict=True):
        z = block.state_probs.numpy()
        states = rng.choice(len(z), size=settings.transmissions, p=z / z.sum())
        lengths = code.lengths[states]
        message, pad = rng.integers(1 << longest, size=(2, len(states))) >> (longest - lengths)
        dither = rng.integers(1 << settings.dither_bits, size=len(states))
        candidates = send(block, code, states, message ^ pad, dither, rng)
        lost = result.lengths[states, candidates, dither] != lengths
        difference = result.words[states, candidates, dither] ^ pad ^ message
        sent += int(lengths.sum())
        wrong += int(np.where(lost, lengths, np.bitwise_count(difference)).sum())
    if sent == 0:
        return None
    # As in `montecarlo`: the bits of a block err together, so the interval counts blocks of the longest message.
    trials = max(sent // longest, 1)
    return wrong / sent, block_interval(wrong / sent * trials, trials)
