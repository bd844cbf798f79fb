"""What a live evaluation needs before the first text: the run, its model, the code of its law, and its cost."""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from polar.code.adaptive import AdaptiveCode, adapt_codes, fixed_code, law_given_dither
from polar.code.construction import chain_entropies, design_codes
from polar.code.key_schedule import KeySchedule
from polar.evaluation.choices import adaptive_settings, decoders_of, text_length, with_message_sets
from polar.evaluation.live.texts import TreeTextWriter
from polar.evaluation.settings import EvaluationSettings
from wm_env.common.arrays import Floats
from wm_env.criteria.channel import BlockChannel, tree_channels
from wm_env.law import JointLaw
from wm_env.lm.build.partial import Context
from wm_env.lm.build.states import encode_prompts
from wm_env.lm.models.exact.network import VERSION
from wm_env.lm.models.load import dtype_named, load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.text import token_bytes
from wm_env.runs import FinishedRun
from wm_env.tree import StateTree


@dataclass(frozen=True)
class Session:
    """A run, the model that it belongs to, and the code of its law; the pad of a block is as long as its message."""

    tree: StateTree
    law: JointLaw
    writer: TreeTextWriter
    contexts: list[Context]
    codes: list[AdaptiveCode]
    given_dither: list[Floats]
    """P~(x|s,d) of the code averaged over messages, (N, D, Q) for every block: what a receiver can expect."""
    settings: EvaluationSettings
    channels: tuple[BlockChannel, ...]
    """By which texts are edited; empty if they are not."""
    lengths_follow_state: bool
    """Whether the code has a length for every state; then there is one decoder, `polar.code.adaptive.decode_states`."""

    @property
    def decoders(self) -> tuple[str, ...]:
        """Names of the decoders of texts with one length."""
        return decoders_of(self.settings)

    @cached_property
    def coded(self) -> list[Floats]:
        """P~(x|s), averaged over keys too, (N, Q) for every block: what an observer can expect."""
        return [law.mean(1) for law in self.given_dither]

    @property
    def dither_bits(self) -> int:
        """d, bits of a block's key beyond the pad."""
        return self.codes[0].codes[0].dither_bits

    @property
    def longest(self) -> int:
        """The most message bits of any state."""
        return max(int(code.lengths.max()) for code in self.codes)

    @property
    def mean_bits(self) -> float:
        """E[l], bits per block."""
        laws = self.law.blocks
        means = [float(law.state_probs.numpy() @ code.lengths) for law, code in zip(laws, self.codes, strict=True)]
        return float(np.mean(means))


def open_session(run: FinishedRun, settings: EvaluationSettings) -> Session:
    """Check the settings, load the model and design the code. The pools of keyed texts have 2^l draws, l the largest.

    Raises:
        ValueError: an unknown decoder, more message bits than the law carries or no state that carries one, or another
            model than the tree's.
        OSError: the model cannot be read.
    """
    tree, name = run.tree, run.folder.path
    decoders_of(settings)
    law = with_message_sets(run.law, settings)
    bits = text_length(law, settings, run.task)
    if bits == "auto":
        codes = adapt_codes(law, adaptive_settings(settings, run.task))
        if not any(code.lengths.any() for code in codes):
            raise ValueError("no state of this law carries a bit so well: raise auto_error or auto_tv")
    else:
        chains = [chain_entropies(block, law.block_length) for block in law.blocks]
        fixed = design_codes(law, chains, KeySchedule(bits, bits))
        codes = [fixed_code(block, code) for block, code in zip(law.blocks, fixed, strict=True)]
    if settings.channel != "none" and bits == "auto":
        raise ValueError(f"channel={settings.channel}: edited texts are read with one length only; name message_bits")
    channels = () if settings.channel == "none" else tree_channels(tree, settings.channel, settings.noise)
    lm = _load_as(tree, settings, str(name))
    meta, theirs = tree.meta, tree.meta.model_fingerprint[:12] or "none"
    if (lm.fingerprint, lm.tokenizer_fingerprint) != (meta.model_fingerprint, meta.tokenizer_fingerprint):
        raise ValueError(
            f"the tree of {name} was made with model {meta.model} (fingerprint {theirs}), "
            f"{settings.model} is another one ({lm.fingerprint[:12]}): name the tree's own"
        )
    writer = TreeTextWriter(lm, token_bytes(lm.tokenizer), tree.block_length, len(tree.blocks), tree.meta.temperature)
    given_dither = [law_given_dither(code).numpy() for code in codes]
    contexts = encode_prompts(lm, tree.prompts, writer.blocks * writer.block_length)
    return Session(tree, law, writer, contexts, codes, given_dither, settings, channels, bits == "auto")


def _load_as(tree: StateTree, settings: EvaluationSettings, name: str) -> MaskedLM:
    """The model, in the arithmetic that the tree was made in.

    Raises:
        ValueError: that is nothing that models are loaded in, or not as the model is stored.
    """
    made_in, lm = tree.meta.dtype or "float32", None
    if made_in in ["float32", "bfloat16", "float64"]:
        lm = load_lm(settings.model, device=settings.device, dtype=dtype_named(made_in))
    elif str(made_in).startswith(VERSION):
        lm = load_lm(settings.model, device=settings.device, arithmetic="exact")
    if lm is None or lm.number_format != made_in:
        raise ValueError(
            f"the tree of {name} says that its model computed in {made_in!r}, "
            f"{'which is not implemented' if lm is None else f'here it computes in {lm.number_format}'}: build it again"
        )
    return lm


@dataclass(frozen=True)
class TextCost:
    """What the texts cost: canvases through the model, and seconds at the speed of this machine now."""

    canvases: int
    seconds: float


def estimate_texts(session: Session) -> TextCost:
    """Measure the model on one short pass and one of a pool, and count."""
    writer, texts = session.writer, session.settings.texts
    draws = 1 << session.longest
    length = sorted(map(len, session.contexts))[len(session.contexts) // 2] + writer.blocks * writer.block_length
    steps = texts * writer.blocks * writer.block_length
    seconds = 4 * steps * _seconds(writer.lm, 1, length) + steps * _seconds(writer.lm, draws, length)
    return TextCost(steps * (4 + draws), seconds)


def _seconds(lm: MaskedLM, rows: int, length: int) -> float:
    canvas = torch.full((rows, length), lm.mask_id)
    lm.log2_probs(canvas, length - 1, 1.0)  # the first pass pays for set-up that the others do not
    start = time.perf_counter()
    for _ in range(3):
        lm.log2_probs(canvas, length - 1, 1.0).sum().item()
    return (time.perf_counter() - start) / 3
