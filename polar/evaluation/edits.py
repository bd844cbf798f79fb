"""Errors of a code after edits: the decoder has what is left of the block, and decides as its rule says.

A token that was seen to be edited is an erasure, not an error: what is left of the block often tells the candidate, and
otherwise a set of candidates with their posterior. So a code survives most edits of single tokens.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polar.code.codec import code_channel
from polar.code.construction import BlockCode
from polar.code.decoders import decision_table, label_evidence, word_evidence
from polar.evaluation.exact import error_rates
from wm_env.common.arrays import Ints
from wm_env.criteria.channel import BlockChannel, received_law
from wm_env.law import BlockLaw, JointLaw


@dataclass(frozen=True)
class EditedPoint:
    """Exact error rates behind a channel, mean over the blocks, of a decoder that knows the law and the key only.

    Attributes:
        message_bits: l.
        channel: how tokens are edited.
        noise: probability that a token is.
        decoder: sc, ml or map.
        ber: bit error rate.
        bler: block error rate.
    """

    message_bits: int
    channel: str
    noise: float
    decoder: str
    ber: float
    bler: float


def edited_error_rates(
    law: JointLaw, codes: Sequence[BlockCode], channels: Sequence[BlockChannel], decoder: str = "map"
) -> tuple[float, float]:
    """Exact bit and block error rate behind a channel, mean over the blocks, of a decoder that knows the law only.

    Args:
        law: of every block.
        codes: of every block, without frozen bits beyond what memory allows.
        channels: of every block, see `wm_env.criteria.channel.tree_channels`.
        decoder: a name in `polar.code.decoders.DECODERS`.
    """
    rates = [
        error_rates(*_words_and_decisions(block, code, channel, decoder))
        for block, code, channel in zip(law.blocks, codes, channels, strict=True)
    ]
    bit, of_block = np.mean(rates, axis=0).tolist()
    return bit, of_block


def edited_decisions(law: BlockLaw, code: BlockCode, channel: BlockChannel, decoder: str) -> Ints:
    """The word that a decoder returns for every output of every state, shape (N, Y); 0 where there is none.

    The code has no surplus.
    """
    _, decisions = _words_and_decisions(law, code, channel, decoder)
    decided: Ints = decisions[:, 0][channel.output.clamp_min(0)].numpy()
    return decided


def _words_and_decisions(law: BlockLaw, code: BlockCode, channel: BlockChannel, decoder: str) -> tuple[Tensor, Tensor]:
    """P(o, w, e) of the outputs, and the decision table."""
    received = torch.einsum("nweq,nqy->nwey", code_channel(law, code), channel.kernel)
    seen = dataclasses.replace(law, symbol=channel.output, cover=received.mean((1, 2)), shared=None)
    words = word_evidence(seen, received)
    return words, decision_table(decoder, code, words, label_evidence(received_law(law, channel)))
