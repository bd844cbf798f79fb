"""Candidate blocks of a state: the Q most likely ones, or Q independent keyed draws.

The law of a block x of L tokens after a context c is the chain rule from left to right, one commit per step,

    p(x | c) = prod_{t=1..L} p_tau(x_t | c, x_<t, masks at t..L).

The canvas is the context, the committed tokens and masks up to the end of the block; nothing follows. A
masked-diffusion model reads the number of masks as a hint of what is left to say, so this choice is part of the law.

Scores are log2 probabilities in float64. Blocks are ordered by (score rounded to `SCORE_STEP`, token ids), so blocks
that are equally likely keep one order on every device. Powers of two, their sums and draws are computed with integers
(`wm_env.lm.models.exact.law`): from equal laws every machine makes equal pools.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from wm_env.common.arrays import Floats, Ints
from wm_env.common.threads import side_by_side
from wm_env.lm.models.exact.law import log2_sum, masses, renormalised
from wm_env.lm.models.masked_lm import MaskedLM, is_layer_stack
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import is_text, spell

SCORE_STEP = 2.0**-12
"""Bits. Above the noise of float32 forward passes (about 1e-5), below every difference that matters."""

_CDF_BITS = 60
"""Cells of [0, 1) are whole multiples of 2^-60."""


@dataclass(frozen=True)
class Pool:
    """The candidates of one state, q <= Q of them, best first.

    Attributes:
        tokens: token ids, shape (q, L). Of several token blocks with the same text: the most likely one in a top pool,
            the one drawn first in a sampled pool (given the text, that one follows the model's law of tokenisations).
        log2_prob: log2 of the untruncated law, in bits, summed over the token blocks found for the text, shape (q,).
        cover: shape (q,), sums to 1: that law renormalised (top), or the share of the draws (sampled).
        text: the byte strings, q different ones.
        exact: no token block that is missing here is likelier than the least likely one in `tokens`, except blocks
            that are not text. Never true for a sampled pool.
        merged: token blocks whose text another block had already.
        dropped: token blocks (top) or draws (sampled) that were not text.
    """

    tokens: Ints
    log2_prob: Floats
    cover: Floats
    text: tuple[bytes, ...]
    exact: bool
    merged: int
    dropped: int


def make_pools(lm: MaskedLM, vocabulary: Mapping[int, bytes], contexts: Ints, settings: PoolSettings) -> list[Pool]:
    """The pools of several contexts of equal length, shape (N, C), computed together.

    `vocabulary` is `token_bytes(lm.tokenizer)`.

    Raises:
        ValueError: the canvas is too long for the model, there are no Q blocks to choose the top from, or none of the
            blocks that were found or drawn is text.
    """
    make = top_pools if settings.pool == "top" else sampled_pools
    return make(lm, vocabulary, contexts, settings)


def check_pool_size(lm: MaskedLM, settings: PoolSettings) -> None:
    """Check that there are Q blocks to choose the top from; draws may repeat, so a sampled pool needs no number.

    Raises:
        ValueError: there are fewer.
    """
    allowed = int((~lm.banned).sum())
    if settings.pool == "top" and allowed ** min(settings.block_length, 64) < settings.candidates:
        raise ValueError(
            f"candidates={settings.candidates}: {allowed} tokens make only {allowed**settings.block_length} blocks"
        )


def forward_rows(
    lm: MaskedLM, canvases: Tensor, position: int, temperature: float, rows: int
) -> Iterator[tuple[slice, Tensor]]:
    """Run any number of canvases of equal length, (n, T), through the model in passes of `rows` canvases.

    Unless the model is exact, the last pass is filled up with copies. Yields which canvases a pass held and their log2
    p_tau at `position`, (at most `rows`, V) float64, as many passes at a time as run at once: a large vocabulary allows
    no more in memory.
    """
    parts = [canvases[start : start + rows] for start in range(0, len(canvases), rows)]

    def one_pass(part: Tensor) -> Tensor:
        if lm.is_exact:
            return lm.log2_probs(part, position, temperature)
        padding = part[-1:].expand(rows - len(part), -1)
        return lm.log2_probs(torch.cat([part, padding]), position, temperature)[: len(part)]

    start = 0
    for log2_probs in side_by_side((partial(one_pass, part) for part in parts), passes_at_once(lm)):
        yield slice(start, start + len(log2_probs)), log2_probs
        start += len(log2_probs)


def passes_at_once(lm: MaskedLM) -> int:
    """How many passes run side by side: on a CPU as many as torch may use threads, see `wm_env.common.threads`.

    Networks of other kinds are asked for one pass at a time: whoever adds one need not make it safe for threads.
    """
    splits = lm.is_exact or is_layer_stack(lm.network)
    return torch.get_num_threads() if splits and lm.banned.device.type == "cpu" else 1


def canvas_of(context: Ints, prefixes: Ints, block_length: int, mask_id: int) -> Ints:
    """Context (C,), committed tokens (n, t) and masks: shape (n, C + L)."""
    canvas = np.full((len(prefixes), len(context) + block_length), mask_id, dtype=np.int64)
    canvas[:, : len(context)] = context
    canvas[:, len(context) : len(context) + prefixes.shape[1]] = prefixes
    return canvas


def score_steps(log2_prob: Floats) -> Floats:
    """Scores in whole steps of `SCORE_STEP`, still as float64 so that -inf stays what it is."""
    return np.round(log2_prob / SCORE_STEP)


@dataclass(frozen=True)
class _Beam:
    """The W best prefixes of one state, (n, t), with their scores; `dropped` is the best rounded score ever dropped."""

    tokens: Ints
    scores: Floats
    dropped: float = -math.inf


def top_pools(lm: MaskedLM, vocabulary: Mapping[int, bytes], contexts: Ints, settings: PoolSettings) -> list[Pool]:
    """The Q most likely blocks of every context by beam search; see `make_pools`.

    A score never rises when a prefix grows, so if no dropped prefix had a higher score than the last candidate, no
    block behind it has one either: then `Pool.exact` is true, and a wider beam would find no likelier block.
    """
    check_pool_size(lm, settings)
    beams = [_Beam(np.empty((1, 0), dtype=np.int64), np.zeros(1))] * len(contexts)
    for step in range(settings.block_length):
        beams = _extend_beams(lm, contexts, beams, step, settings)
    return [_top_pool(beam, vocabulary, settings.candidates) for beam in beams]


def _extend_beams(
    lm: MaskedLM, contexts: Ints, beams: Sequence[_Beam], step: int, settings: PoolSettings
) -> list[_Beam]:
    """One more token for every prefix of every state: a batch over states and beams."""
    length = settings.block_length
    canvases = [
        canvas_of(context, beam.tokens, length, lm.mask_id) for context, beam in zip(contexts, beams, strict=True)
    ]
    scores = torch.from_numpy(np.concatenate([beam.scores for beam in beams]))
    best_ids, best_scores = [], []
    for which, log2_probs in forward_rows(
        lm,
        torch.from_numpy(np.concatenate(canvases)),
        contexts.shape[1] + step,
        settings.temperature,
        settings.rows_at(step),
    ):
        totals = scores[which, None].to(log2_probs.device) + log2_probs
        ids = _best_tokens(totals, settings.beam_width + 1)
        best_ids.append(ids.cpu())
        best_scores.append(totals.gather(1, ids).cpu())
    ends = np.cumsum([len(beam.scores) for beam in beams])[:-1]
    return [
        _extended(beam, ids, totals, settings.beam_width)
        for beam, ids, totals in zip(
            beams,
            np.split(torch.cat(best_ids).numpy(), ends),
            np.split(torch.cat(best_scores).numpy(), ends),
            strict=True,
        )
    ]


def _best_tokens(totals: Tensor, count: int) -> Tensor:
    """Ids of the `count` best tokens of every row, by rounded score and then by id, shape (n, min(count, V))."""
    size = totals.shape[1]
    ids = torch.arange(size, device=totals.device)
    # One integer holds both keys, so that there are no ties for topk to break as it likes.
    keys = (totals / SCORE_STEP).round().clamp_min(-(2.0**40)).long() * size + (size - 1 - ids)
    return keys.topk(min(count, size), dim=1).indices


def _extended(beam: _Beam, ids: Ints, totals: Floats, width: int) -> _Beam:
    parent, column = np.nonzero(np.isfinite(totals))
    tokens = np.concatenate([beam.tokens[parent], ids[parent, column, None]], axis=1)
    scores = totals[parent, column]
    order = _order(scores, tokens)
    lost = score_steps(scores[order[width:]])
    return _Beam(tokens[order[:width]], scores[order[:width]], max(beam.dropped, lost.max(initial=-math.inf)))


def _order(scores: Floats, tokens: Ints) -> Ints:
    """Indices that sort by (rounded score downwards, token ids upwards)."""
    return np.lexsort((*tokens.T[::-1], -score_steps(scores)))


def _top_pool(beam: _Beam, vocabulary: Mapping[int, bytes], candidates: int) -> Pool:
    groups, dropped = _group_by_text(beam.tokens, vocabulary)
    first = np.array([members[0] for members in groups.values()], dtype=np.int64)
    mass = np.array([_log2_sum(beam.scores[members]) for members in groups.values()])
    if not len(first):
        raise ValueError(f"none of the {len(beam.scores)} best blocks is text: give a larger beam_width")
    kept = _order(mass, beam.tokens[first])[:candidates]
    weakest = score_steps(beam.scores[first[kept]].min()) if len(kept) == candidates else -math.inf
    # At a very low temperature the others may be too unlikely for a float: a candidate of probability 0 is none.
    kept = kept[_normalised(mass[kept]) > 0]
    return Pool(
        tokens=beam.tokens[first[kept]],
        log2_prob=mass[kept],
        cover=_normalised(mass[kept]),
        text=tuple(list(groups)[group] for group in kept),
        exact=bool(beam.dropped <= weakest),
        merged=len(beam.scores) - dropped - len(groups),
        dropped=dropped,
    )


def _normalised(log2_prob: Floats) -> Floats:
    cover: Floats = renormalised(torch.from_numpy(log2_prob)).numpy()
    return cover


def _log2_sum(log2_prob: Floats) -> float:
    return float(log2_sum(torch.from_numpy(log2_prob)))


def _group_by_text(blocks: Ints, vocabulary: Mapping[int, bytes]) -> tuple[dict[bytes, list[int]], int]:
    """Rows of `blocks` (n, L) that have the same text, in the order given, and the number of rows that are not text."""
    groups: dict[bytes, list[int]] = {}
    dropped = 0
    for row, block in enumerate(blocks.tolist()):
        text = spell(vocabulary, block)
        if is_text(text):
            groups.setdefault(text, []).append(row)
        else:
            dropped += 1
    return groups, dropped


def sampled_pools(lm: MaskedLM, vocabulary: Mapping[int, bytes], contexts: Ints, settings: PoolSettings) -> list[Pool]:
    """Q independent draws from the untruncated law for every context; see `make_pools`.

    The cover is the share of the draws, so averaged over the key it is the model's law given that the block is text.
    """
    uniforms = np.stack([keyed_uniforms(settings.key, context, settings) for context in contexts])
    blocks = np.empty((len(contexts), settings.candidates, 0), dtype=np.int64)
    scores = np.zeros(blocks.shape[:2])
    for step in range(settings.block_length):
        drawn, log2_prob = _draw_tokens(lm, contexts, blocks, uniforms[:, :, step], settings)
        blocks = np.concatenate([blocks, drawn[..., None]], axis=2)
        scores += log2_prob
    return [_sampled_pool(tokens, score, vocabulary) for tokens, score in zip(blocks, scores, strict=True)]


def keyed_uniforms(key: bytes, context: Ints, settings: PoolSettings) -> Floats:
    """Uniforms in [0, 1), multiples of 2^-53, one per draw and token, shape (Q, L).

    Keyed BLAKE2b of (context ids, draw, token position): they depend on nothing else, on no device and no batch.
    """
    state = hashlib.blake2b(context.astype("<i8").tobytes(), key=key, person=b"candidate draw", digest_size=8)
    values = np.empty((settings.candidates, settings.block_length))
    for draw, position in np.ndindex(values.shape):
        stream = state.copy()
        stream.update(draw.to_bytes(8, "little") + position.to_bytes(8, "little"))
        values[draw, position] = (int.from_bytes(stream.digest(), "little") >> 11) * 2.0**-53
    return values


def _draw_tokens(
    lm: MaskedLM, contexts: Ints, blocks: Ints, uniforms: Floats, settings: PoolSettings
) -> tuple[Ints, Floats]:
    """The next token of every draw, (N, Q), and its log2 probability; equal prefixes of a state share a canvas."""
    canvases, canvas_of_draw, count = [], np.empty(uniforms.shape, dtype=np.int64), 0
    for state, context in enumerate(contexts):
        prefixes, inverse = np.unique(blocks[state], axis=0, return_inverse=True)
        canvases.append(canvas_of(context, prefixes, settings.block_length, lm.mask_id))
        canvas_of_draw[state] = count + inverse.reshape(-1)
        count += len(prefixes)
    tokens = np.empty(uniforms.shape, dtype=np.int64)
    log2_prob = np.empty(uniforms.shape)
    for which, log2_probs in forward_rows(
        lm,
        torch.from_numpy(np.concatenate(canvases)),
        contexts.shape[1] + blocks.shape[2],
        settings.temperature,
        settings.rows_at(blocks.shape[2]),
    ):
        for row, scores in enumerate(log2_probs, start=which.start):
            draws = canvas_of_draw == row
            ids = inverse_cdf(scores, torch.from_numpy(uniforms[draws]).to(scores.device))
            tokens[draws] = ids.cpu().numpy()
            log2_prob[draws] = scores[ids].cpu().numpy()
    return tokens, log2_prob


def inverse_cdf(log2_prob: Tensor, uniforms: Tensor) -> Tensor:
    """The token whose cell of [0, 1), cells in the order of ids, holds each uniform; never one of probability 0."""
    cdf = masses(log2_prob, _CDF_BITS).cumsum(0)
    # One rounded product, so the same cell everywhere; a uniform next to 1 may round up to the whole.
    points = (uniforms * cdf[-1].to(torch.float64)).floor().to(torch.int64).clamp(max=int(cdf[-1]) - 1)
    return torch.searchsorted(cdf, points, right=True)


def _sampled_pool(blocks: Ints, scores: Floats, vocabulary: Mapping[int, bytes]) -> Pool:
    groups, dropped = _group_by_text(blocks, vocabulary)
    if not groups:
        raise ValueError(f"none of {len(blocks)} drawn blocks is text: draw more candidates or lower the temperature")
    first = np.array([members[0] for members in groups.values()], dtype=np.int64)
    distinct = [np.unique(blocks[members], axis=0, return_index=True)[1] for members in groups.values()]
    mass = np.array(
        [_log2_sum(scores[np.array(members)[once]]) for members, once in zip(groups.values(), distinct, strict=True)]
    )
    draws = np.array([len(members) for members in groups.values()], dtype=np.float64)
    order = _order(mass, blocks[first])
    return Pool(
        tokens=blocks[first[order]],
        log2_prob=mass[order],
        cover=(draws / draws.sum())[order],
        text=tuple(list(groups)[group] for group in order),
        exact=False,
        merged=sum(len(once) for once in distinct) - len(groups),
        dropped=dropped,
    )
