"""One message over the blocks of a text: what arithmetic coding from a shared offset makes of a law, exactly.

Sender and receiver follow the law of the run and share a uniform offset (`polar.text.offset_coding`). For every message
the text has the law q of the run, so its total variation is that of the law. A message of l bits is read with the
probability E min(1, 2^-l / q(text)), the largest of all codes whose texts have this law; codes that have its total
variation t may have up to t more than that of the model's own law.
"""

from dataclasses import dataclass

import numpy as np

from wm_env.common.arrays import Floats
from wm_env.criteria.text_budget import MOST_TEXTS, texts_of
from wm_env.law import JointLaw, induced_cover
from wm_env.tree import StateTree

TARGETS = (0.001, 0.01, 0.1)
"""Error probabilities of a message that operating points are given for."""


@dataclass(frozen=True)
class WholeTextPoint:
    """The longest message over the first blocks of a text within an error probability.

    Attributes:
        blocks: n.
        target: most error probability of the message.
        message_bits: l.
        rate_bits_per_token: l per token.
        error: probability that the message is read wrongly, exact; the receiver knows the prompt.
        limit_bits: no code of n blocks with this law's total variation has more bits within the target, any key.
        tv_text: total variation of the n blocks.
    """

    blocks: int
    target: float
    message_bits: int
    rate_bits_per_token: float
    error: float
    limit_bits: int
    tv_text: float


def whole_text_points(tree: StateTree, law: JointLaw) -> list[WholeTextPoint]:
    """The points of n = 1, ..., B blocks; fewer where there are too many texts, none where paths join."""
    points = []
    laws = [induced_cover(block).numpy() for block in law.blocks]
    covers = [block.cover for block in tree.blocks]
    for blocks in range(1, len(tree.blocks) + 1):
        if len(tree.prior) * tree.meta.candidates**blocks > MOST_TEXTS:
            break
        try:
            sent, plain = (texts_of(tree, each[:blocks])[0] for each in (laws, covers))
        except ValueError:
            break
        variation = float(tree.prior @ np.abs(sent - plain).sum(1)) / 2
        tokens = blocks * tree.block_length
        for target in TARGETS:
            bits = _longest(tree.prior, sent, 1 - target)
            limit = _longest(tree.prior, plain, 1 - target - variation)
            error = max(0.0, 1 - success(tree.prior, sent, bits))
            points.append(WholeTextPoint(blocks, target, bits, bits / tokens, error, limit, variation))
    return points


def success(prior: Floats, texts: Floats, message_bits: int) -> float:
    """E min(1, 2^-l / q(text | prompt)) = sum min(q, 2^-l), for the law of texts (N, texts)."""
    return float(prior @ np.minimum(texts, 0.5**message_bits).sum(1))


def _longest(prior: Floats, texts: Floats, wanted: float) -> int:
    bits = 0
    while bits < 64 and success(prior, texts, bits + 1) >= wanted:
        bits += 1
    return bits
