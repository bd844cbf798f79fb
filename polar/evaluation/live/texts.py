"""Texts of four kinds that continue the same prompts, and what the language model says of each.

* run: watermarked by the law of the run, a candidate of the tree in every block.
* cover: plain text of the truncated model, the tree's own law.
* model: plain text of the untruncated model at the same temperature. A block that ends inside a character is drawn
  again, since nobody can send it; so this is the model's law given that every block is text.
* keyed: watermarked blocks of pools that are drawn from the untruncated model with a key of the text's own. Of every
  pool as many bits are sent as it carries at total variation 0, so averaged over keys the text has the law of `model`.

Everything the model says is the chain rule p(x_t | context, x_<t, masks at t..L), committed from left to right.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polar.code.adaptive import AdaptiveCode, send_adapted
from polar.text.schemes.block.walk import CIRCLE, PoolCode, make_code
from wm_env.common.arrays import Floats, Ints
from wm_env.law import JointLaw
from wm_env.lm.build.partial import Context
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.pools.candidates import Pool, inverse_cdf, make_pools
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import is_text, spell
from wm_env.tree import StateTree

TextKind = Literal["run", "keyed", "model", "cover"]

_MOST_DRAWS = 1000
"""Blocks that a text may waste because they are not text."""


@dataclass(frozen=True)
class Continuation:
    """A text of B blocks behind a prompt.

    Attributes:
        kind: where it comes from, see the module.
        prompt: row of the prompt in the tree.
        blocks: the byte strings of the blocks.
        bits: -log2 p of all tokens under the model at the tree's temperature.
        natural_bits: the same at temperature 1, where the model was trained.
        message: bits of every block's message as a number; 0 for plain text.
        message_bits: their lengths; 0 for plain text.
        redrawn: blocks that were drawn again because they were not text.
    """

    kind: TextKind
    prompt: int
    blocks: tuple[bytes, ...]
    bits: float
    natural_bits: float
    message: tuple[int, ...]
    message_bits: tuple[int, ...]
    redrawn: int = 0

    @property
    def text(self) -> bytes:
        """What a receiver or an observer gets."""
        return b"".join(self.blocks)


@dataclass(frozen=True)
class TreePaths:
    """T texts as paths through a tree; arrays of shape (T, B).

    Attributes:
        state: rows of the states.
        candidate: the candidates.
        message: messages, all 0 for plain text.
        message_bits: their lengths, all 0 for plain text.
        key: keys of the blocks, as long as the longest message, of which a message is padded with the first bits, and
            the dither behind it; all 0 for plain text.
    """

    state: Ints
    candidate: Ints
    message: Ints
    message_bits: Ints
    key: Ints


def run_paths(
    tree: StateTree, law: JointLaw, codes: list[AdaptiveCode], prompts: Ints, rng: np.random.Generator
) -> TreePaths:
    """Watermarked texts: uniform messages and keys, the candidates from the polar encoder."""
    longest, dither_bits = max(int(code.lengths.max()) for code in codes), codes[0].codes[0].dither_bits
    state, columns = prompts, []
    for block, of_law, code in zip(tree.blocks, law.blocks, codes, strict=True):
        unused = longest - code.lengths[state]
        message = rng.integers(1 << longest, size=len(prompts)) >> unused
        pad, dither = rng.integers([[1 << longest], [1 << dither_bits]], size=(2, len(prompts)))
        candidate = send_adapted(of_law, code, state, message ^ (pad >> unused), dither, rng)
        key = pad << dither_bits | dither
        columns.append((state, candidate, message, code.lengths[state], key))
        state = block.child[state, candidate]
    return TreePaths(*(np.stack(column, axis=1) for column in zip(*columns, strict=True)))


def cover_paths(tree: StateTree, prompts: Ints, rng: np.random.Generator) -> TreePaths:
    """Plain texts of the truncated model."""
    state, columns = prompts, []
    for block in tree.blocks:
        candidate = np.array([rng.choice(block.cover.shape[1], p=block.cover[row]) for row in state])
        columns.append((state, candidate, *np.zeros((3, len(state)), dtype=np.int64)))
        state = block.child[state, candidate]
    return TreePaths(*(np.stack(column, axis=1) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class TreeTextWriter:
    """The model that continues prompts.

    Attributes:
        lm: the model.
        vocabulary: `wm_env.lm.text.token_bytes` of its tokenizer.
        block_length: L.
        blocks: B.
        temperature: tau.
    """

    lm: MaskedLM
    vocabulary: Mapping[int, bytes]
    block_length: int
    blocks: int
    temperature: float

    def along_path(self, tree: StateTree, kind: TextKind, paths: TreePaths, row: int, context: Context) -> Continuation:
        """Text number `row` of `paths`, scored by the model."""
        tokens: list[int] = []
        strings = []
        for block, state, candidate in zip(tree.blocks, paths.state[row], paths.candidate[row], strict=True):
            tokens += block.tokens[state, candidate].tolist()
            strings.append(block.text[state][candidate])
        scores = self.score(context, tokens)
        message, lengths = (tuple(values[row].tolist()) for values in (paths.message, paths.message_bits))
        return Continuation(kind, int(paths.state[row, 0]), tuple(strings), *scores, message, lengths)

    def plain(self, prompt: int, context: Context, rng: np.random.Generator) -> Continuation:
        """A text of the untruncated model.

        Raises:
            ValueError: the model draws hardly anything that is text.
        """
        strings: list[bytes] = []
        total, redrawn = np.zeros(2), 0
        while len(strings) < self.blocks:
            tokens, bits = self._block(context, [partial(_drawn, float(u)) for u in rng.random(self.block_length)])
            string = spell(self.vocabulary, tokens)
            if not is_text(string):
                redrawn += 1
                if redrawn == _MOST_DRAWS:
                    raise ValueError(f"{redrawn} blocks of {self.lm.name} were not text: lower the temperature")
                continue
            strings.append(string)
            total += bits
            context += tokens
        nothing = (0,) * self.blocks
        scores = float(total[0]), float(total[1])
        return Continuation("model", prompt, tuple(strings), *scores, nothing, nothing, redrawn)

    def score(self, context: Context, tokens: list[int]) -> tuple[float, float]:
        """-log2 p of the tokens at the tree's temperature and at 1."""
        total = np.zeros(2)
        for start in range(0, len(tokens), self.block_length):
            block = tokens[start : start + self.block_length]
            total += self._block(context + tuple(tokens[:start]), [partial(_given, token) for token in block])[1]
        return float(total[0]), float(total[1])

    def _block(self, context: Context, choices: list[Callable[[Tensor], int]]) -> tuple[Context, Floats]:
        """Commit L tokens, each as its choice says from its law; also their bits at tau and at 1."""
        tokens: Context = ()
        bits = np.zeros(2)
        for step, choose in enumerate(choices):
            masks = (self.lm.mask_id,) * (self.block_length - step)
            canvas = torch.tensor([context + tokens + masks])
            natural = self.lm.log2_probs(canvas, len(context) + step, 1.0)[0]
            law = self.lm.log2_law(natural[None] * math.log(2), self.temperature)[0]
            token = choose(law)
            tokens += (token,)
            bits -= [float(law[token]), float(natural[token])]
        return tokens, bits


def _given(token: int, _: Tensor) -> int:
    return token


def _drawn(uniform: float, law: Tensor) -> int:
    return int(inverse_cdf(law, torch.tensor([uniform], dtype=law.dtype, device=law.device)))


@dataclass(frozen=True)
class KeyedPool:
    """A pool as both ends have it.

    Attributes:
        candidates: keyed draws from the model.
        code: of these draws.
        angle: by which the key turns the words.
    """

    candidates: Pool
    code: PoolCode
    angle: int

    def word_of(self, candidate: int) -> int | None:
        """The message that a candidate stands for, None if it stands for none."""
        group = next(number for number, members in enumerate(self.code.groups) if candidate in members)
        return self.code.word_in(group, self.angle)


class KeyedPools:
    """The pools of one text along the contexts that a sender or a reader asks for.

    Both ends have model, prompt and key, so both get the same; asking twice costs nothing.

    Attributes:
        pool: token ids of the context -> pool.
    """

    def __init__(self, writer: TreeTextWriter, draws: int, key: bytes) -> None:
        """`draws` is Q; the key belongs to this text alone."""
        settings = PoolSettings("sampled", writer.block_length, draws, writer.temperature, draws, draws, key)

        def make(context: Context) -> KeyedPool:
            pool = make_pools(writer.lm, writer.vocabulary, np.array([context], dtype=np.int64), settings)[0]
            # Random enough for an evaluation; `polar.text.schemes.block` takes it from a cipher.
            angle = int(np.random.default_rng([*key, *context]).integers(CIRCLE))
            return KeyedPool(pool, make_code(pool, 0.0), angle)

        self.pool = lru_cache(maxsize=None)(make)


def keyed_text(
    writer: TreeTextWriter, pools: KeyedPools, prompt: int, context: Context, rng: np.random.Generator
) -> Continuation:
    """A text whose blocks carry as many uniform bits as their pools can at total variation 0.

    The message is what the channel carries: it is uniform with or without a pad.
    """
    strings, messages, lengths, start = [], [], [], context
    tokens: list[int] = []
    for _ in range(writer.blocks):
        keyed = pools.pool(context)
        pool, bits = keyed.candidates, keyed.code.bits
        message = int(rng.integers(1 << bits))
        members = np.array(keyed.code.groups[keyed.code.group_at(message, keyed.angle)])
        candidate = int(rng.choice(members, p=pool.cover[members] / pool.cover[members].sum()))
        strings.append(pool.text[candidate])
        messages.append(message)
        lengths.append(bits)
        block = pool.tokens[candidate].tolist()
        tokens += block
        context += tuple(block)
    return Continuation("keyed", prompt, tuple(strings), *writer.score(start, tokens), tuple(messages), tuple(lengths))
