"""What it says for a key that a text follows its keyed draws (scheme block, sampled pool).

A key that has nothing to do with the text has a block x of tokens among its Q draws with probability at most Q p(x).
The evidence that the text goes on with x is w(x) / (Q p(x)), for a law w on the token blocks that the text can go on
with that depends on the text alone: its mean over keys is at most the sum of w, which is 1. So the product over the
blocks of a text is a supermartingale, and reaches e with probability at most 1/e. A high value needs a w that knows
how texts are made of tokens: mostly of the longest that fit.
"""

import math

from polar.text.vocabulary import Vocabulary
from wm_env.lm.pools.candidates import Pool

LONGEST_TOKEN = 0.75
"""w of the longest token that fits; the next one has this share of the rest, and so on."""


def log2_evidence(vocabulary: Vocabulary, pool: Pool, candidate: int, draws: int, text: bytes) -> float:
    """Evidence of a text that goes on with a candidate, in bits.

    Args:
        pool: the distinct blocks of `draws` keyed draws.
        candidate: number of the block in the pool.
        draws: Q.
        text: what the text goes on with, from the beginning of the block.
    """
    log2_w = 0.0
    for token in pool.tokens[candidate].tolist():
        rank = vocabulary.matches(text).index(token)
        log2_w += math.log2(LONGEST_TOKEN) + rank * math.log2(1 - LONGEST_TOKEN)
        text = text[len(vocabulary.text((token,))) :]
    return log2_w - math.log2(draws) - float(pool.log2_prob[candidate])
