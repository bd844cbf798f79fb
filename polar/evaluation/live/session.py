"""What a live evaluation needs before the first text: the run, its model, the code of its law, and its cost."""

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from polar.code.adaptive import AdaptiveCode, AdaptiveSettings, adapt_codes, fixed_code, law_given_dither
from polar.code.construction import chain_entropies, message_room
from polar.code.decoders import Decoder, Knowledge
from polar.code.key_schedule import KeySchedule
from polar.evaluation.exact import design_codes
from polar.evaluation.live.texts import Writer
from wm_env.common.arrays import Floats
from wm_env.common.files import check_seed
from wm_env.law import JointLaw
from wm_env.lm.build.partial import Context
from wm_env.lm.build.states import encode_prompts
from wm_env.lm.models.exact.network import VERSION
from wm_env.lm.models.load import dtype_named, load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.text import token_bytes
from wm_env.problem import MESSAGE_BITS
from wm_env.tree import StateTree

MOST_TEXTS = 10**6
"""Texts of a kind; a machine writes a few in a minute."""


@dataclass(frozen=True)
class LiveRequest:
    """What to do live.

    Attributes:
        texts: of every kind, at least 2.
        model: what `load_lm` takes.
        device: where the model runs.
        message_bits: l per block of the run's law; None: `MESSAGE_BITS` or what the law carries; "auto": the most bits
            of every state that meet `adaptive`. The pools of the keyed texts have 2^l draws, l the largest.
        adaptive: how well a state must carry its message with "auto".
        thresholds: T_epsilon and T_delta in bits, which choose M* by the entropies instead of by length, or None.
        decoders: of the run's texts; with "auto" there is one, `polar.code.adaptive.decode_states`.
        knowledge: what they know of the state.
        seed: decides prompts, messages, keys and plain texts.
    """

    texts: int
    model: str
    device: str
    message_bits: int | Literal["auto"] | None
    adaptive: AdaptiveSettings
    thresholds: tuple[float, float] | None
    decoders: tuple[Decoder, ...]
    knowledge: tuple[Knowledge, ...]
    seed: int


@dataclass(frozen=True)
class Session:
    """A run, the model that it belongs to, and the code of its law; the pad of a block is as long as its message."""

    tree: StateTree
    law: JointLaw
    writer: Writer
    contexts: list[Context]
    codes: list[AdaptiveCode]
    given_dither: list[Floats]
    """P~(x|s,d) of the code averaged over messages, (N, D, Q) for every block: what a receiver can expect."""
    request: LiveRequest

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


def open_session(tree: StateTree, law: JointLaw, request: LiveRequest, name: str) -> Session:
    """Check the request, load the model and design the code.

    Args:
        tree: of the run.
        law: of the run.
        request: what to do.
        name: of the run, for errors.

    Raises:
        ValueError: a number out of its range, more message bits than the law carries or no state that carries one, or
            another model than the tree's.
        OSError: the model cannot be read.
    """
    if not 2 <= request.texts <= MOST_TEXTS:
        raise ValueError(f"--texts {request.texts}: 2 to {MOST_TEXTS} are possible")
    check_seed(request.seed)
    codes = _codes(law, request)
    lm = _load_as(tree, request, name)
    meta, theirs = tree.meta, tree.meta.model_fingerprint[:12] or "none"
    if (lm.fingerprint, lm.tokenizer_fingerprint) != (meta.model_fingerprint, meta.tokenizer_fingerprint):
        raise ValueError(
            f"the tree of {name} was made with model {meta.model} (fingerprint {theirs}), "
            f"{request.model} is another one ({lm.fingerprint[:12]}): name the tree's own with --model"
        )
    writer = Writer(lm, token_bytes(lm.tokenizer), tree.block_length, len(tree.blocks), tree.meta.temperature)
    given_dither = [law_given_dither(code).numpy() for code in codes]
    contexts = encode_prompts(lm, tree.prompts, writer.blocks * writer.block_length)
    return Session(tree, law, writer, contexts, codes, given_dither, request)


def _load_as(tree: StateTree, request: LiveRequest, name: str) -> MaskedLM:
    """The model, in the arithmetic that the tree was made in.

    Raises:
        ValueError: that is nothing that models are loaded in, or not as the model is stored.
    """
    made_in, lm = tree.meta.dtype or "float32", None
    if made_in in ["float32", "bfloat16", "float64"]:
        lm = load_lm(request.model, device=request.device, dtype=dtype_named(made_in))
    elif str(made_in).startswith(VERSION):
        lm = load_lm(request.model, device=request.device, arithmetic="exact")
    if lm is None or lm.number_format != made_in:
        raise ValueError(
            f"the tree of {name} says that its model computed in {made_in!r}, "
            f"{'which is not implemented' if lm is None else f'here it computes in {lm.number_format}'}: build it again"
        )
    return lm


def _codes(law: JointLaw, request: LiveRequest) -> list[AdaptiveCode]:
    """The code of every block, whether its length follows the state or not."""
    if request.message_bits == "auto":
        adapted = adapt_codes(law, request.adaptive)
        if not any(code.lengths.any() for code in adapted):
            raise ValueError("no state of this law carries a bit so well: raise --auto-error or --auto-tv")
        return adapted
    schedule = _schedule(law, request.message_bits)
    codes = design_codes(law, [chain_entropies(block, law.block_length) for block in law.blocks], schedule)
    return [fixed_code(block, code) for block, code in zip(law.blocks, codes, strict=True)]


def _schedule(law: JointLaw, message_bits: int | None) -> KeySchedule:
    room = message_room(law)
    bits = min(MESSAGE_BITS, room) if message_bits is None else message_bits
    if not 1 <= bits <= room:
        raise ValueError(f"{bits} message bits per block: this law carries 1 to {room}")
    return KeySchedule(bits, bits)


@dataclass(frozen=True)
class Cost:
    """What the texts cost: canvases through the model, and seconds at the speed of this machine now."""

    canvases: int
    seconds: float


def estimate(session: Session) -> Cost:
    """Measure the model on one short pass and one of a pool, and count."""
    writer, texts = session.writer, session.request.texts
    draws = 1 << session.longest
    length = sorted(map(len, session.contexts))[len(session.contexts) // 2] + writer.blocks * writer.block_length
    steps = texts * writer.blocks * writer.block_length
    seconds = 4 * steps * _seconds(writer.lm, 1, length) + steps * _seconds(writer.lm, draws, length)
    return Cost(steps * (4 + draws), seconds)


def _seconds(lm: MaskedLM, rows: int, length: int) -> float:
    canvas = torch.full((rows, length), lm.mask_id)
    lm.log2_probs(canvas, length - 1, 1.0)  # the first pass pays for set-up that the others do not
    start = time.perf_counter()
    for _ in range(3):
        lm.log2_probs(canvas, length - 1, 1.0).sum().item()
    return (time.perf_counter() - start) / 3
