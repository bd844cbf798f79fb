"""The options of a pre-training and their defaults, which made the embedded model."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from wm_env.common.checks import check_choices
from wm_env.common.files import check_seed
from wm_env.lm.models.llada_config import LARGEST_SIZE
from wm_env.lm.pretrain.objective import BLOCK

CONTEXT = 48
"""Clean tokens before the block that the validation scores."""

LARGEST = 10**9
"""Largest number of steps, tokens, windows or minutes, and largest learning rate: beyond it arithmetic overflows."""

_BOUNDED = (
    *("steps", "minutes", "pause", "tokens_per_step", "windows", "warmup", "decay", "validate_every", "save_every"),
    *("lr", "embedding_lr"),
)


@dataclass(frozen=True)
class Shape:
    """The network."""

    d_model: int = 384
    """Width."""
    n_layers: int = 9
    """Blocks."""
    n_heads: int = 6
    """Attention heads."""
    mlp_hidden_size: int = 1024
    """Width inside the gated MLP."""
    vocab_size: int = 8192
    """Entries of the tokenizer, special tokens included."""
    max_sequence_length: int = 512
    """Tokens of the longest window trained on, and the most the model will read."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""


@dataclass(frozen=True)
class Options:
    """Pre-train a LLaDA from scratch on text files."""

    texts: tuple[Path, ...]
    """Training text: plain, .gz or .xz; blank lines between documents, a line a paragraph."""
    valid: Path
    """Held-out text of the same form."""
    out: Path
    """Folder for the tokens, the checkpoint, the history and, under model/, the best model so far."""
    weights: tuple[float, ...] = ()
    """How often to read each text, relative to its size; default 1 for all."""
    tokenizer: Path | None = None
    """Folder with a tokenizer.json to reuse; by default one is trained on the texts."""
    start: Path | None = None
    """Model folder whose weights the run starts from, of the same shape and tokenizer; by default random ones."""
    shape: Shape = field(default_factory=Shape)
    steps: int | None = None
    """Optimizer steps. Give this or --minutes; only a run by steps repeats exactly."""
    minutes: float | None = None
    """Wall-clock budget; the learning-rate schedule is stretched to end with it."""
    pause: float | None = None
    """Minutes after which this part of the run stops; --resume continues it. For machines that are lent for a while."""
    tokens_per_step: int = 262_144
    """Tokens in one step, over all GPUs."""
    shortest: int = 32
    """Tokens of the shortest window; lengths go up to max_sequence_length, the shorter the more often."""
    causal_share: float = 0.6
    """Part of the steps at the start that predict every next token, with attention to the left only."""
    causal_fall: float = 0.3
    """Part of the run from which such steps become fewer."""
    causal_end: float = 0.65
    """Part of the run at which the last such step is made."""
    plain_share: float = 0.1
    """Part of the windows masked from end to end (pre-training proper)."""
    block_share: float = 0.6
    """Part of the windows in which only the last 8 tokens are masked; the rest have longer responses."""
    ordered_share: float = 0.75
    """Part of the windows with a prompt whose masks are the last tokens, as in texts written from left to right."""
    lr: float = 2e-3
    """Peak learning rate of the matrices (Muon)."""
    embedding_lr: float = 3e-3
    """Peak learning rate of embeddings and norms (AdamW)."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices and embeddings."""
    warmup: int = 200
    """Steps over which the learning rate rises."""
    decay: float = 0.5
    """Last part of the run over which it falls to zero."""
    validate_every: int = 1000
    """Steps between validations; each may store a better model."""
    windows: int = 2048
    """Windows of the chain-rule validation."""
    save_every: int = 1000
    """Steps between checkpoints."""
    seed: int = 0
    """Fixes initial weights and all batches."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    resume: bool = False
    """Continue the run in --out."""

    def check(self, processes: int) -> None:
        """Raise ValueError for values that contradict each other or cannot work with that many processes."""
        check_choices(self)
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes")
        if self.weights and len(self.weights) != len(self.texts):
            raise ValueError(f"{len(self.texts)} texts but {len(self.weights)} weights; give one a text, or none")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise ValueError("weights must be positive numbers")
        longest = self.shape.max_sequence_length
        if longest < CONTEXT + BLOCK:
            raise ValueError(f"max_sequence_length must be at least {CONTEXT + BLOCK}, got {longest}")
        if not BLOCK <= self.shortest <= longest:
            raise ValueError(f"shortest must lie between {BLOCK} and max_sequence_length {longest}")
        if self.tokens_per_step < longest * processes:
            raise ValueError(f"tokens_per_step must be at least {longest * processes}, a window for each process")
        if self.windows < 2:
            raise ValueError(f"windows must be at least 2, got {self.windows}")
        if min(self.plain_share, self.block_share) < 0 or self.plain_share + self.block_share > 1:
            raise ValueError("plain_share and block_share must be parts of 1, and at most 1 together")
        for name in _BOUNDED:
            value = getattr(self, name)
            if value is not None and not 0 < value <= LARGEST:
                raise ValueError(f"{name} must be positive and at most {LARGEST}, got {value}")
        if self.shape.vocab_size > LARGEST_SIZE:
            raise ValueError(f"vocab_size must be at most {LARGEST_SIZE}, got {self.shape.vocab_size}")
        if not 0 <= self.ordered_share <= 1:
            raise ValueError(f"ordered_share is a part of the windows, from 0 to 1, got {self.ordered_share}")
        if not 0 <= self.causal_share <= 1:
            raise ValueError(f"causal_share is a part of the steps, from 0 to 1, got {self.causal_share}")
        if not 0 <= self.causal_fall < self.causal_end <= 1:
            raise ValueError("causal_fall and causal_end must be parts of the run, the first the smaller one")
        if self.decay > 1:
            raise ValueError(f"decay is a part of the run, at most 1, got {self.decay}")
        if not 0 <= self.weight_decay <= 1:
            raise ValueError(f"weight_decay must lie between 0 and 1, got {self.weight_decay}")
        check_seed(self.seed)

    def text_weights(self) -> dict[Path, float]:
        """Text -> weight."""
        return dict(zip(self.texts, self.weights or [1.0] * len(self.texts), strict=True))

    def settings(self, processes: int) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        free = ("texts", "valid", "out", "tokenizer", "start", "minutes", "pause", "device", "resume", "save_every")
        values = {name: value for name, value in asdict(self).items() if name not in free}
        return {**values, "processes": processes}
