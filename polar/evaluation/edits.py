"""Errors of a code after edits: the decoder has what is left of the block, and takes the likeliest message.

A token that was seen to be edited is an erasure, not an error: what is left of the block often tells the candidate, and
otherwise a set of candidates with their posterior. So a code survives most edits of single tokens.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.code.decoders import decision_table, label_evidence, word_evidence
from polar.evaluation.exact import error_rates
from wm_env.criteria.channel import BlockChannel
from wm_env.law import JointLaw


def edited_error_rates(
    law: JointLaw, codes: Sequence[BlockCode], channels: Sequence[BlockChannel]
) -> tuple[float, float]:
    """Exact bit and block error rate behind a channel, mean over the blocks, of a decoder that knows the law only.

    Args:
        law: of every block.
        codes: of every block, without frozen bits beyond what memory allows.
        channels: of every block, see `wm_env.criteria.channel.tree_channels`.
    """
    rates = []
    for block, code, channel in zip(law.blocks, codes, channels, strict=True):
        sent = code_channel(block, code)
        received = torch.einsum("nweq,nqy->nwey", sent, channel.kernel)
        seen = dataclasses.replace(block, symbol=channel.output, cover=received.mean((1, 2)), shared=None)
        words = word_evidence(seen, received)
        # The posterior rule looks at the words alone; what the labels say of the unedited block is not used.
        decisions = decision_table("map", code, words, label_evidence(block))
        rates.append(error_rates(words, decisions))
    bit, of_block = np.mean(rates, axis=0).tolist()
    return bit, of_block
