"""From prompts to a state tree: the pools of every context that a text can reach, block by block."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wm_env.common.arrays import Floats
from wm_env.lm.build.cost import state_flops
from wm_env.lm.build.crew import Crew
from wm_env.lm.build.partial import Context, clean_parts, read_parts, save_part
from wm_env.lm.models.exact.functions import exp2
from wm_env.lm.models.exact.law import log2_sum
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.models.stack import reductions
from wm_env.lm.pools.candidates import Pool, make_pools
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import spell, token_bytes
from wm_env.tree import StateTree, TreeBlock, TreeMeta, check_tree, number_symbols


@dataclass(frozen=True)
class Grown:
    """A tree and the pools it was made of, by block, in the order of the states."""

    tree: StateTree
    pools: tuple[tuple[Pool, ...], ...]


def encode_prompts(lm: MaskedLM, prompts: Sequence[str], text_length: int) -> list[Context]:
    """The token ids of every prompt, checked to leave room for a text of `text_length` tokens.

    Raises:
        ValueError: no prompt, an empty one, one that is too long, or one that the tokenizer cannot give back.
    """
    if not prompts:
        raise ValueError("no prompts: at least one is needed")
    room = lm.max_length - text_length
    if room < 1:
        raise ValueError(f"texts of {text_length} tokens leave no room for a prompt: {lm.name} reads {lm.max_length}")
    vocabulary = token_bytes(lm.tokenizer)
    contexts = []
    for number, prompt in enumerate(prompts, start=1):
        ids = lm.encode(prompt)
        if lm.text_tokenizer.is_byte_level and spell(vocabulary, ids) != prompt.encode():
            raise ValueError(f"prompt {number} is changed by the tokenizer of {lm.name}: normalise it (NFC) first")
        if not ids:
            raise ValueError(f"prompt {number} is empty")
        if len(ids) > room:
            raise ValueError(
                f"prompt {number} has {len(ids)} tokens; {lm.name} reads {lm.max_length} and the text takes "
                f"{text_length}, so it may have at most {room}"
            )
        # Two prompts that the tokenizer makes equal would be one state under two names.
        if tuple(ids) in contexts and prompt not in prompts[: number - 1]:
            raise ValueError(f"prompt {number} and an earlier one are the same to the tokenizer of {lm.name}: drop one")
        contexts.append(tuple(ids))
    return contexts


def pool_law(lm: MaskedLM, settings: PoolSettings) -> dict[str, Any]:
    """Everything that the pool of a context depends on, as JSON types.

    In floats that includes the hardware, torch's kernels and the rows of a pass; in exact arithmetic none of them.
    """
    law = {
        "model": lm.fingerprint,
        "tokenizer": lm.tokenizer_fingerprint,
        "dtype": lm.number_format,
        **{name: getattr(settings, name) for name in settings.__dataclass_fields__ if name not in ("key", "rows")},
        "key": sha256(settings.key).hexdigest(),
    }
    if lm.is_exact:
        return law
    device = lm.banned.device
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {
        **law,
        "dtype": lm.number_format + reductions(device),
        "device": f"{device.type} {kind}",
        "torch": torch.__version__,
        "compiled": lm.compiled,
        "rows": settings.rows,
    }


def grow_tree(
    lm: MaskedLM,
    prompts: Sequence[str],
    settings: PoolSettings,
    *,
    blocks: int,
    batch_size: int,
    parts: Path | None = None,
    seed: int = 0,
    report: Callable[[int, float], object] = lambda states, flops: None,
    crew: Crew | None = None,
) -> Grown:
    """The tree of equally likely prompts.

    The context after a candidate is the context before it and the candidate's token ids; where several token blocks
    had one text, `Pool.tokens` says which stands for it. Candidates that continue one another stay, see
    `prefix_pairs`.

    Args:
        prompts: their texts.
        settings: how candidates are chosen.
        blocks: B >= 1.
        batch_size: states of equal length that are computed together. It changes the speed, never the tree.
        parts: folder for finished batches, so that a killed build can go on; none are kept without it.
        seed: what the settings' key and the choice of prompts came from; noted in the tree.
        report: called with the states that this process has finished since its last call, and their FLOPs.
        crew: the processes that share the work; every one of them calls this function with the same arguments and
            gets the same tree. More than one need `parts` in a folder that all of them see.

    Raises:
        ValueError: prompts that are empty or too long, what `make_pools` refuses, or processes that do not agree.
        OSError: `parts` cannot be written.
        StoppedError: another process failed.
    """
    crew = Crew() if crew is None else crew
    if blocks < 1 or batch_size < 1:
        raise ValueError("blocks and batch_size must be at least 1")
    if crew.size > 1 and parts is None:
        raise ValueError("several processes need a folder for their parts")
    prompt_contexts = encode_prompts(lm, prompts, blocks * settings.block_length)
    law = pool_law(lm, settings)
    vocabulary = token_bytes(lm.tokenizer)
    known = {} if parts is None else _open_together(parts, law, vocabulary, crew)
    contexts, tree_blocks, tree_pools = prompt_contexts, [], []
    for number in range(blocks):
        if crew.first:
            report(sum(context in known for context in contexts), 0.0)
        todo = list(dict.fromkeys(context for context in contexts if context not in known))
        # A batch for every process, the longest first, so that none is left with a long one at the end.
        work = list(batches(todo, min(batch_size, max(1, -(-len(todo) // crew.size)))))[::-1]
        for piece in crew.pieces(f"block {number}", len(work)):
            batch = work[piece]
            made = make_pools(lm, vocabulary, np.array(batch, dtype=np.int64), settings.at_block(number))
            known.update(zip(batch, made, strict=True))
            if parts is not None:
                save_part(parts, law, batch, made)
            report(len(batch), len(batch) * state_flops(lm, len(batch[0]), settings))
        if crew.size > 1 and parts is not None:
            known.update(_read_together(parts, law, vocabulary, crew, f"block {number}"))
        if missing := sum(context not in known for context in contexts):
            raise ValueError(
                f"{parts} lacks {missing} finished states: --out must be in a folder that all machines share"
            )
        pools = tuple(known[context] for context in contexts)
        tree_pools.append(pools)
        tree_blocks.append(_tree_block(pools, settings, last=number == blocks - 1))
        contexts = [
            context + tuple(block)
            for context, pool in zip(contexts, pools, strict=True)
            for block in pool.tokens.tolist()
        ]
    tree = StateTree(
        blocks=tuple(tree_blocks),
        prior=np.full(len(prompts), 1 / len(prompts)),
        prompts=tuple(prompts),
        meta=TreeMeta(
            model=Path(lm.name).resolve().name if Path(lm.name).exists() else lm.name,
            model_fingerprint=lm.fingerprint,
            tokenizer_fingerprint=lm.tokenizer_fingerprint,
            block_length=settings.block_length,
            candidates=settings.candidates,
            # As a file gives it back, so that the fingerprint stays.
            temperature=float(settings.temperature),
            pool=settings.pool,
            beam_width=settings.beam_width if settings.pool == "top" else 0,
            context_length=max(map(len, prompt_contexts)) + (blocks - 1) * settings.block_length,
            banned=int(lm.banned.sum()),
            seed=seed,
            dtype=str(law["dtype"]),
            rows=0 if lm.is_exact else settings.rows,
        ),
    )
    check_tree(tree)
    return Grown(tree, tuple(tree_pools))


def _open_together(
    parts: Path, law: Mapping[str, Any], vocabulary: Mapping[int, bytes], crew: Crew
) -> dict[Context, Pool]:
    """What an earlier build left, the same in all processes.

    ValueError if this process computes another law than the first one.
    """
    first = json.loads(crew.agree("law", json.dumps(law)))
    for name, value in law.items():
        if first[name] != value:
            raise ValueError(
                f"process {crew.rank} has {name} {value!r}, process 0 has {first[name]!r}: one tree needs machines of "
                "one kind"
            )
    if crew.first:
        clean_parts(parts, law)
    return _read_together(parts, law, vocabulary, crew, "start")


def _read_together(
    parts: Path, law: Mapping[str, Any], vocabulary: Mapping[int, bytes], crew: Crew, when: str
) -> dict[Context, Pool]:
    """All parts, read by all processes after the last one was written and before the next one is."""
    crew.meet(f"{when}: all written")
    pools = read_parts(parts, law, vocabulary)
    crew.meet(f"{when}: all read")
    return pools


def batches(contexts: Sequence[Context], size: int) -> Iterator[list[Context]]:
    """Different contexts in batches of equal length, shortest first, at most `size` in each."""
    by_length: dict[int, dict[Context, None]] = {}
    for context in contexts:
        by_length.setdefault(len(context), {})[context] = None
    for _, group in sorted(by_length.items()):
        members = list(group)
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _tree_block(pools: Sequence[Pool], settings: PoolSettings, last: bool) -> TreeBlock:
    """The pools side by side, padded to Q; children are numbered in the order of states and candidates."""
    width = settings.candidates
    text = tuple(pool.text + (b"",) * (width - len(pool.text)) for pool in pools)
    there = np.array([[bool(string) for string in row] for row in text])
    child = np.full(there.shape, -1, dtype=np.int64)
    if not last:
        child[there] = np.arange(there.sum())
    tokens = np.full((*there.shape, settings.block_length), -1, dtype=np.int64)
    tokens[there] = np.concatenate([pool.tokens for pool in pools])
    return TreeBlock(
        cover=_padded([pool.cover for pool in pools], there, 0.0),
        log2_prob=_padded([pool.log2_prob for pool in pools], there, -np.inf),
        symbol=number_symbols(text),
        child=child,
        tokens=tokens,
        retained=np.array([_retained(pool) for pool in pools]),
        exact=np.array([pool.exact for pool in pools]),
        text=text,
    )


def _padded(rows: Sequence[Floats], there: np.ndarray[Any, np.dtype[np.bool_]], value: float) -> Floats:
    padded = np.full(there.shape, value)
    padded[there] = np.concatenate(rows)
    return padded


def _retained(pool: Pool) -> float:
    """The mass of the candidates, which may be far below 2^-52: a sum of integers in units of its largest term."""
    return float(exp2(log2_sum(torch.from_numpy(pool.log2_prob))[None]))
