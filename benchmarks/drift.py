"""Drift: what changes between devices and number formats for whoever rebuilds candidates instead of reading a law file.

python benchmarks/drift.py --out drift.json
python benchmarks/drift.py --out here.json --reference drift.json    also against another machine's figures

The embedded model on the CPU in fp32 is the reference; compared with it are the same in passes of another shape, for
which other kernels are chosen, fp32 and bf16 on a GPU, or bf16 on the CPU where there is no GPU. Every stack makes the
same pools (the most likely blocks, and keyed draws) after the openings of the shipped prompts, and reads the texts that
the reference wrote with the scheme of `python -m polar`.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command import MANY, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch

    from polar.text.channel import open_channel
    from polar.text.decoding import decode
    from polar.text.embedding import embed_with_retries
    from polar.text.keys.key import Key
    from polar.text.schemes.block.walk import CIRCLE, PoolCode, make_code
    from polar.text.settings import Settings
    from wm_env.common.arguments import parse
    from wm_env.common.files import check_output, read_json, write_json
    from wm_env.common.json_values import entry, read_as
    from wm_env.common.tables import aligned_table
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.models.stack import stack_of
    from wm_env.lm.pools.candidates import SCORE_STEP, Pool, make_pools, score_steps
    from wm_env.lm.pools.settings import PoolSettings
    from wm_env.lm.prompts import read_prompts
    from wm_env.lm.text import token_bytes

KEY = Key(b"drift between stacks, no secret!")
BATCH = 25
ANGLES = 64
"""Turns of the circle over which the words of a block are averaged."""
ROWS, OTHER_ROWS = 64, 24
LENGTH = 8
"""L of the pools."""


@dataclass(frozen=True)
class Options:
    """Measure the drift of the embedded model between the stacks of this machine."""

    out: Path
    """JSON file for the figures and the reference's pools."""
    reference: Path | None = None
    """Such a file from another machine: its reference is compared too."""
    states: int = 100
    """States: openings of shipped prompts."""
    context: int = 32
    """Tokens of every opening."""
    candidates: int = 8
    """Q of both kinds of pools."""
    temperature: float = 4.0
    """tau of the pools; that of the shipped tree."""
    tv_budget: float = 0.05
    """Total variation that the code of a top pool may cost."""
    texts: int = 6
    """Texts that the reference writes and every stack reads; 16 message bits each."""


@dataclass(frozen=True)
class Made:
    """What one stack made of every state.

    Attributes:
        name: of the stack.
        stack: all that is known to matter, in words.
        pools: kind of pool -> one pool per state.
        seconds: for all pools.
    """

    name: str
    stack: str
    pools: dict[str, list[Pool]]
    seconds: float


@dataclass(frozen=True)
class Drift:
    """One kind of pool of one stack against the reference's.

    Attributes:
        stack, pool: which.
        states: number of states.
        sets_differ: states with another set of candidates.
        orders_differ: states with the same candidates in another order.
        largest_difference: of the log2 probability of a candidate that both have, in bits.
        mean_difference: the mean of these differences; null where no candidate is in both.
        right, wrong, unread: shares of the blocks that the reference sends (candidates by their probability) whose word
            this stack reads right, reads wrong, or cannot find.
    """

    stack: str
    pool: str
    states: int
    sets_differ: int
    orders_differ: int
    largest_difference: float | None
    mean_difference: float | None
    right: float
    wrong: float
    unread: float


def make(name: str, lm: MaskedLM, contexts: np.ndarray, options: Options, rows: int = ROWS) -> Made:
    vocabulary, pools = token_bytes(lm.tokenizer), {}
    start = time.perf_counter()
    for kind in ("top", "sampled"):
        width = options.candidates
        settings = PoolSettings(kind, LENGTH, width, options.temperature, width + 4, rows, b"drift")
        pools[kind] = [
            pool
            for first in range(0, len(contexts), BATCH)
            for pool in make_pools(lm, vocabulary, contexts[first : first + BATCH], settings)
        ]
    return Made(name, str(stack_of(lm)), pools, time.perf_counter() - start)


def compare(reference: Made, other: Made, options: Options) -> list[Drift]:
    rows = []
    for kind, theirs in reference.pools.items():
        pairs = list(zip(theirs, other.pools[kind], strict=True))
        sets = [set(a.text) != set(b.text) for a, b in pairs]
        orders = [not differs and a.text != b.text for (a, b), differs in zip(pairs, sets, strict=True)]
        differences = [
            abs(float(a.log2_prob[a.text.index(text)] - b.log2_prob[b.text.index(text)]))
            for a, b in pairs
            for text in set(a.text) & set(b.text)
        ]
        shares = np.mean([decoded(a, b, options.tv_budget if kind == "top" else 0.0) for a, b in pairs], axis=0)
        rows.append(
            Drift(
                other.name,
                kind,
                len(pairs),
                sum(sets),
                sum(orders),
                max(differences, default=None),
                float(np.mean(differences)) if differences else None,
                *(float(share) for share in shares),
            )
        )
    return rows


def decoded(sent: Pool, rebuilt: Pool, budget: float) -> tuple[float, float, float]:
    """Shares of right, wrong and unread words when a block of `sent` is read by who rebuilt another pool."""
    written, read = (make_code(pool, budget) for pool in (sent, rebuilt))
    right = wrong = 0.0
    for angle in range(0, CIRCLE, CIRCLE // ANGLES):
        for word in range(1 << written.bits):
            members = list(written.groups[written.group_at(word, angle)])
            mass = sent.cover[members] / sent.cover[members].sum() / (ANGLES << written.bits)
            for candidate, share in zip(members, mass, strict=True):
                found = word_of(rebuilt, read, sent.text[candidate], angle)
                if found is not None:
                    same = written.bits == read.bits and found == word
                    right, wrong = (right + share, wrong) if same else (right, wrong + share)
    return right, wrong, max(0.0, 1 - right - wrong)


def word_of(pool: Pool, code: PoolCode, text: bytes, angle: int) -> int | None:
    """What a block of a text is read as, None if it is none of the pool's or stands for no word."""
    for number, group in enumerate(code.groups):
        if text in [pool.text[candidate] for candidate in group]:
            return code.word_in(number, angle)
    return None


def near_ties(pools: list[Pool]) -> tuple[int, int]:
    """Neighbours in the order of top pools: pairs in all, and pairs whose scores round to the same step or the next."""
    gaps = np.concatenate([np.abs(np.diff(score_steps(pool.log2_prob))) for pool in pools])
    return len(gaps), int((gaps <= 1).sum())


def exchange(writer: MaskedLM, readers: dict[str, MaskedLM], prompts: list[str], count: int) -> dict[str, list[int]]:
    """Texts that `writer` wrote: how many every stack reads right, reads as another message, finds no message in."""
    found = {name: [0, 0, 0] for name in readers}
    for number, prompt in enumerate(prompts[:count]):
        message = (4711 + number).to_bytes(2, "big")
        sent = embed_with_retries(
            open_channel(writer, prompt, Settings()), message, KEY, range(4 * number, 4 * number + 4)
        )
        for name, lm in readers.items():
            read = decode(open_channel(lm, prompt, Settings()), sent.text.encode(), KEY, [sent.nonce]).message
            found[name][0 if read == message else 2 if read is None else 1] += 1
    return found


def load_stacks() -> dict[str, MaskedLM]:
    """The reference first."""
    stacks = {"CPU fp32": load_lm("mini")}
    if torch.cuda.is_available():
        stacks["GPU fp32"] = load_lm("mini", device="cuda")
        stacks["GPU bf16"] = load_lm("mini", device="cuda", dtype=torch.bfloat16)
    else:
        stacks["CPU bf16"] = load_lm("mini", dtype=torch.bfloat16)
    return stacks


def openings(lm: MaskedLM, options: Options) -> np.ndarray:
    """The first tokens of the first prompts that are long enough, (states, context)."""
    rows = [ids[: options.context] for ids in map(lm.encode, read_prompts("shipped")) if len(ids) >= options.context]
    if len(rows) < options.states:
        raise ValueError(f"only {len(rows)} shipped prompts have {options.context} tokens")
    return np.array(rows[: options.states], dtype=np.int64)


def to_json(made: Made) -> dict[str, Any]:
    pools = {
        kind: [
            {
                "text": [text.hex() for text in pool.text],
                "log2_prob": pool.log2_prob.tolist(),
                "cover": pool.cover.tolist(),
            }
            for pool in pools
        ]
        for kind, pools in made.pools.items()
    }
    return {"name": made.name, "stack": made.stack, "seconds": made.seconds, "pools": pools}


@dataclass(frozen=True)
class StoredPool:
    """A pool in a file, its texts in hexadecimal digits."""

    text: tuple[str, ...]
    log2_prob: tuple[float, ...]
    cover: tuple[float, ...]

    def pool(self) -> Pool:
        text = tuple(map(bytes.fromhex, self.text))
        if not len(text) == len(self.log2_prob) == len(self.cover):
            raise ValueError("a pool of the reference has not one number for every text")
        tokens = np.zeros((len(text), LENGTH), dtype=np.int64)
        return Pool(tokens, np.array(self.log2_prob), np.array(self.cover), text, False, 0, 0)


@dataclass(frozen=True)
class StoredPools:
    """Both kinds of pools in a file, one for every state."""

    top: tuple[StoredPool, ...]
    sampled: tuple[StoredPool, ...]


@dataclass(frozen=True)
class Stored:
    """What `to_json` wrote."""

    name: str
    stack: str
    seconds: float
    pools: StoredPools


def read_reference(path: Path, states: int) -> Made:
    """The pools that another machine made of the same states."""
    stored = read_as(Stored, entry(read_json(path), "reference", dict[str, Any], path), path, "reference")
    pools = {
        kind: [pool.pool() for pool in found]
        for kind, found in (("top", stored.pools.top), ("sampled", stored.pools.sampled))
    }
    for found in pools.values():
        if len(found) != states:
            raise ValueError(f"{path} has {len(found)} states, not {states}: give it the same options")
    return Made("other machine", stored.stack, pools, stored.seconds)


def table(rows: list[Drift]) -> str:
    titles = "stack, pool, states, sets differ, orders differ, largest bits, mean bits, right, wrong, unread"
    lines = [titles.split(", ")]
    for row in rows:
        counts = [str(value) for value in (row.states, row.sets_differ, row.orders_differ)]
        bits = ["-" if value is None else f"{value:.2g}" for value in (row.largest_difference, row.mean_difference)]
        lines.append([row.stack, row.pool, *counts, *bits, *(f"{x:.4f}" for x in (row.right, row.wrong, row.unread))])
    return aligned_table(lines)


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, states=MANY, context=MANY, candidates=(1, 1024), tv_budget=(0, 1), texts=(0, 10**9))
    check_output(options.out, "name another --out", "near_ties")
    other = None if options.reference is None else read_reference(options.reference, options.states)
    start = time.perf_counter()
    stacks = load_stacks()
    reference_lm = stacks["CPU fp32"]
    contexts = openings(reference_lm, options)
    made = [make(name, lm, contexts, options) for name, lm in stacks.items()]
    made.insert(1, make(f"CPU fp32, {OTHER_ROWS} rows", reference_lm, contexts, options, OTHER_ROWS))
    if other is not None:
        made.append(other)
    for one in made:
        print(f"{one.name}: {one.stack}, {one.seconds:.1f} s")
    rows = [row for other in made[1:] for row in compare(made[0], other, options)]
    pairs, near = near_ties(made[0].pools["top"])
    prompts = [reference_lm.tokenizer.decode(row) for row in contexts.tolist()]
    texts = exchange(reference_lm, stacks, prompts, options.texts)
    step = f"2^{int(np.log2(SCORE_STEP))} bits"
    print(f"\n{table(rows)}\n\nnear-ties of the reference: {near} of {pairs} neighbours within one step of {step}")
    for name, (right, wrong, none) in texts.items():
        print(f"texts of the reference read by {name}: {right} right, {wrong} wrong, {none} without a message")
    write_json(
        options.out,
        {
            "options": {name: str(value) for name, value in asdict(options).items()},
            "rows": [asdict(row) for row in rows],
            "near_ties": {"pairs": pairs, "within_one_step": near},
            "texts": {
                name: dict(zip(("right", "wrong", "none"), counts, strict=True)) for name, counts in texts.items()
            },
            "reference": to_json(made[0]),
        },
    )
    print(f"\n{options.out}, {time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    run_benchmark(main)
