"""Exact evaluation of a code whose message length follows the state, and transmissions beside it."""

from collections.abc import Sequence

import numpy as np

from polar.code.adaptive import (
    AdaptiveCode,
    AdaptiveSettings,
    DecodedBlock,
    adapt_codes,
    adaptive_errors,
    decode_states,
    induced_law,
    send_adapted,
)
from polar.code.decoders import observations
from polar.evaluation.covertness import text_variation, untruncated_bound
from polar.evaluation.points import AdaptivePoint
from wm_env.common.intervals import block_interval
from wm_env.information import total_variation
from wm_env.law import JointLaw
from wm_env.theory.error_free import error_free_bits
from wm_env.tree import StateTree


def evaluate_adaptive(
    tree: StateTree, law: JointLaw, settings: AdaptiveSettings, transmissions: int = 0, seed: int = 0
) -> AdaptivePoint:
    """Choose the lengths, enumerate all errors and total variations, and measure beside it.

    There are as many Monte Carlo `transmissions` of every block, drawn with `seed`; 0 for none.
    """
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
    measured = _measure(law, codes, decoded, transmissions, np.random.default_rng(seed))
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
    law: JointLaw,
    codes: Sequence[AdaptiveCode],
    decoded: Sequence[DecodedBlock],
    transmissions: int,
    rng: np.random.Generator,
) -> tuple[float, tuple[float, float]] | None:
    """Bit error rate of real transmissions with its interval; None without transmissions or bits."""
    sent = wrong = 0
    longest = max(int(code.lengths.max()) for code in codes)
    dithers = 1 << codes[0].codes[0].dither_bits
    if transmissions == 0 or longest == 0:
        return None
    for block, code, result in zip(law.blocks, codes, decoded, strict=True):
        z = block.state_probs.numpy()
        states = rng.choice(len(z), size=transmissions, p=z / z.sum())
        lengths = code.lengths[states]
        message, pad = rng.integers(1 << longest, size=(2, len(states))) >> (longest - lengths)
        dither = rng.integers(dithers, size=len(states))
        candidates = send_adapted(block, code, states, message ^ pad, dither, rng)
        lost = result.lengths[states, candidates, dither] != lengths
        difference = result.words[states, candidates, dither] ^ pad ^ message
        sent += int(lengths.sum())
        wrong += int(np.where(lost, lengths, np.bitwise_count(difference)).sum())
    if sent == 0:
        return None
    # As in `montecarlo`: the bits of a block err together, so the interval counts blocks of the longest message.
    trials = max(sent // longest, 1)
    return wrong / sent, block_interval(wrong / sent * trials, trials)
