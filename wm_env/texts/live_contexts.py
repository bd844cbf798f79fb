"""A language model as a source of `CovertWatermarkText-v0`: asked when a text gets somewhere, and only then."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np

from wm_env.common.arrays import Floats, Ints
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.pools.candidates import make_pools
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import token_bytes
from wm_env.optimum import RateBound, rate_of_labels


class LiveContexts:
    """A language model, asked when a text gets somewhere; a context is its token ids.

    Args:
        prompts: token ids of equally likely prompts, see `wm_env.lm.build.states.encode_prompts`.
        settings: how candidates are chosen.
        kept: contexts whose pools are remembered, the latest ones.
    """

    def __init__(self, lm: MaskedLM, prompts: Sequence[tuple[int, ...]], settings: PoolSettings, kept: int = 4096):
        self.lm, self.prompts, self.settings, self.kept = lm, prompts, settings, kept
        self.candidates, self.block_length = settings.candidates, settings.block_length
        self.depth = (lm.max_length - max(map(len, prompts))) // settings.block_length
        self.fingerprint = f"{lm.fingerprint} {settings} {len(prompts)}"
        self._vocabulary = dict(token_bytes(lm.tokenizer))
        self._known: OrderedDict[Hashable, tuple[Floats, Ints]] = OrderedDict()

    def start(self, uniform: float) -> tuple[int, ...]:
        """See `Contexts`."""
        return self.prompts[int(uniform * len(self.prompts))]

    def covers(self, contexts: Sequence[Hashable]) -> Floats:
        """See `Contexts`. Contexts of one length that are not remembered are computed together."""
        missing: dict[int, list[tuple[int, ...]]] = {}
        for context in dict.fromkeys(contexts):
            if context not in self._known:
                assert isinstance(context, tuple)
                missing.setdefault(len(context), []).append(context)
        for alike in missing.values():
            pools = make_pools(self.lm, self._vocabulary, np.array(alike, dtype=np.int64), self.settings)
            for context, pool in zip(alike, pools, strict=True):
                padded = np.zeros(self.candidates)
                padded[: len(pool.cover)] = pool.cover
                self._known[context] = padded, pool.tokens
        found = np.stack([self._known[context][0] for context in contexts])
        for context in contexts:
            self._known.move_to_end(context)
        while len(self._known) > max(self.kept, len(contexts)):
            self._known.popitem(last=False)
        return found

    def follow(self, context: Hashable, candidate: int) -> tuple[int, ...]:
        """See `Contexts`; only for a context whose cover was asked for last."""
        assert isinstance(context, tuple)
        return (*context, *self._known[context][1][candidate].tolist())

    def bound(self, blocks: int, labels: int, epsilon: float, gamma: float) -> RateBound:
        """sum_b gamma^b log2 min(M, Q): nothing more is known before the contexts are."""
        return rate_of_labels(np.inf, blocks, min(labels, self.candidates), gamma, exact=False)
