"""Polar coding: from a law of labels and symbols to a code, its encoder and its decoders.

A `BlockLaw` (`wm_env.law`) says how labels U = V G and symbols X are drawn in every state S. Here V has two bits, and X
is U with probability 0.94, else another symbol; both message bits have a one-time pad, and MAP reads the blocks.

    import numpy as np, torch
    from polar.code import *
    from wm_env.law import BlockLaw
    channel = torch.full((1, 4, 4), 0.02, dtype=torch.float64) + 0.92 * torch.eye(4)
    law = BlockLaw(torch.ones(1).double(), channel.mean(1), torch.arange(4)[None], torch.full((1, 4), 0.25), channel)
    code = design_code(chain_entropies(law, block_length=2), KeySchedule(message_bits=2, key_bits=2))
    message, pad, states = *np.random.default_rng(0).integers(4, size=(2, 1000)), np.zeros(1000, dtype=int)
    sent = encode_blocks(law, code, states, message ^ pad, surplus=states, rng=np.random.default_rng(1)).candidate
    table = decision_table("map", code, word_evidence(law, code_channel(law, code)), label_evidence(law))
    wrong = np.mean(table[sent, 0].numpy() ^ pad != message)

`wrong` is near 0.06. Short blocks whose law is known exactly:

* `polar_transform`: U = V G.
* `chain_entropies`, `length_set`, `threshold_set`, `design_code`: which positions of V carry what.
* `KeySchedule`: which bits of a key pad the message, and which are common randomness of both ends.
* `encode_blocks`, `code_channel`: the encoder, and the channel P(x | word, surplus, state) that it makes, exactly.
* `DECODERS`, `decision_table`: successive, maximum-likelihood and MAP decoding as tables.
* `adapt_codes`, `send_adapted`, `decode_states`: messages whose length follows the state.

Long blocks of independent tokens:

* `token_code`, `spectrum`, `choose_sets`: index sets by density evolution (`polarise`).
* `conditional_llrs`, `draw`: the successive passes over a word with exact LLRs.
* `decide`, `fill`, `decode_paths`: decoding, filling and list decoding, compiled (numba); PAC codes with `PAC_TAPS`.
* `Check`, `check_values`: a CRC on the message.
* `memoryless`: encoder and decoder of Theorem 1.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polar.code import memoryless
    from polar.code.adaptive import AdaptiveCode, AdaptiveSettings, adapt_code, adapt_codes, decode_states, send_adapted
    from polar.code.batches import decide
    from polar.code.codec import Encoded, code_channel, encode_blocks
    from polar.code.construction import (
        BlockCode,
        ChainEntropies,
        chain_entropies,
        design_code,
        design_codes,
        length_set,
        threshold_set,
    )
    from polar.code.decoders import (
        DECODERS,
        Decoder,
        decision_table,
        decoder_named,
        label_evidence,
        observations,
        observe,
        word_evidence,
    )
    from polar.code.density_evolution import polarise
    from polar.code.index_sets import choose_sets, spectrum, token_code
    from polar.code.key_schedule import KeySchedule, key_bits_of, theorem_key_bits
    from polar.code.lists.passes import decode_paths, fill
    from polar.code.lists.precoding import PAC_TAPS, Check, check_values, convolve
    from polar.code.successive import conditional_llrs, draw
    from polar.code.transform import label_words, polar_transform

_NAMES = {
    "adaptive": ("AdaptiveCode", "AdaptiveSettings", "adapt_code", "adapt_codes", "decode_states", "send_adapted"),
    "codec": ("Encoded", "code_channel", "encode_blocks"),
    "construction": (
        "BlockCode",
        "ChainEntropies",
        "chain_entropies",
        "design_code",
        "design_codes",
        "length_set",
        "threshold_set",
    ),
    "decoders": (
        "DECODERS",
        "Decoder",
        "decision_table",
        "decoder_named",
        "label_evidence",
        "observations",
        "observe",
        "word_evidence",
    ),
    "density_evolution": ("polarise",),
    "index_sets": ("choose_sets", "spectrum", "token_code"),
    "key_schedule": ("KeySchedule", "key_bits_of", "theorem_key_bits"),
    "successive": ("conditional_llrs", "draw"),
    "batches": ("decide",),
    "lists.passes": ("decode_paths", "fill"),
    "lists.precoding": ("PAC_TAPS", "Check", "check_values", "convolve"),
    "transform": ("label_words", "polar_transform"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A door, from its module, which is imported when it is first needed: some need torch, and some do not."""
    if name in _MODULE_OF:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    if name == "memoryless":
        return import_module(f"{__name__}.memoryless")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DECODERS",
    "PAC_TAPS",
    "AdaptiveCode",
    "AdaptiveSettings",
    "BlockCode",
    "ChainEntropies",
    "Check",
    "Decoder",
    "Encoded",
    "KeySchedule",
    "adapt_code",
    "adapt_codes",
    "chain_entropies",
    "check_values",
    "choose_sets",
    "code_channel",
    "conditional_llrs",
    "convolve",
    "decide",
    "decision_table",
    "decode_paths",
    "decode_states",
    "decoder_named",
    "design_code",
    "design_codes",
    "draw",
    "encode_blocks",
    "fill",
    "key_bits_of",
    "label_evidence",
    "label_words",
    "length_set",
    "memoryless",
    "observations",
    "observe",
    "polar_transform",
    "polarise",
    "send_adapted",
    "spectrum",
    "theorem_key_bits",
    "threshold_set",
    "token_code",
    "word_evidence",
]
