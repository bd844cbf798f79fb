"""The options of `python -m wm_env.lm.build`. Free of torch: help and refusals come at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wm_env.common.files import check_seed
from wm_env.common.help import paragraph_help
from wm_env.lm.pools.settings import PoolSettings

PAPER_PROMPTS = 50
"""Prompts of the paper's trees: 1,050 states with 20 candidates in two blocks."""
MOST_STATES = 10**7
"""Most states behind one prompt, some 15 GB of candidates at Q = 20 and L = 8; larger trees can be planned dry only."""
MOST_ROWS = 2**16
"""Most canvases in a forward pass, far beyond what fills a GPU."""


@paragraph_help
@dataclass(frozen=True)
class BuildOptions:
    """Turn a language model and prompts into a state tree."""

    out: Path | None = None
    """File to write (*.safetensors), which must not exist yet; only --dry-run does without."""
    model: str = "mini"
    """"mini" (comes with the package), a folder with a checkpoint of LLaDA, Dream or a masked LM of transformers, or a
    hub id OWNER/NAME."""
    prompts: str = "shipped"
    """"shipped", "c4", or a file: one prompt a line, or *.jsonl with a "text" field; also *.gz and *.xz."""
    prompt_count: int | None = None
    """Draw this many prompts, without replacement; by default 50, as the paper does, of the 250 shipped ones and of C4,
    and all of a file."""
    pool: Literal["top", "sampled"] = "top"
    """"top": the Q most likely blocks. "sampled": Q independent draws; averaged over seeds, the model itself."""
    blocks: int = 2
    """B, blocks per text."""
    block_length: int = 8
    """L, tokens per block; a power of two."""
    candidates: int = 20
    """Q, candidates per state."""
    temperature: float = 4.0
    """tau of p_tau = softmax(logits / tau)."""
    beam_width: int | None = None
    """W >= Q, prefixes that the search for the top blocks keeps; Q + 4 by default, so that a few may merge."""
    seed: int = 0
    """Decides which prompts are drawn, and the draws of a sampled pool."""
    batch_size: int | None = None
    """States computed together; by default as many as fill a pass. Changes the speed, never the tree."""
    rows: int | None = None
    """Canvases in a forward pass; by default 8 on a CPU and what the free memory allows on a GPU, half of it whenever
    memory runs out. In exact arithmetic it changes the speed, never the tree. In floats it is part of the tree, because
    floating-point sums depend on the shape of a pass, and a build that goes on keeps the number that it began with."""
    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0; "cuda" is a GPU for every process of torchrun."""
    arithmetic: Literal["exact", "float"] | None = None
    """exact: the same tree on every machine and any number of GPUs. float: the tree of this kind of machine. By default
    exact for LLaDA and Dream, unless --dtype is given, and float for encoders."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """Number format of float arithmetic; by default float64 with rounded logits for encoders, else float32."""
    compile: bool | None = None
    """In floats: let torch.compile make the layers' kernels, which takes half a minute and on a CPU a C++ compiler; by
    default on a GPU. Part of the tree."""
    dry_run: bool = False
    """Tell the cost and stop."""

    @property
    def prompts_drawn(self) -> int | None:
        """Prompts that are drawn; None for all of a file."""
        if self.prompt_count is None and self.prompts in ("shipped", "c4"):
            return PAPER_PROMPTS
        return self.prompt_count

    def target(self) -> Path:
        """The file to write.

        Raises:
            ValueError: there is none.
        """
        if self.out is None:
            raise ValueError("say where to write the tree, --out FILE, or ask for its cost alone, --dry-run")
        return self.out

    def check(self) -> PoolSettings:
        """The settings of the pools, once everything was checked that needs no prompts and no model.

        Raises:
            ValueError: an option is out of range or missing.
        """
        settings = self.settings()
        if self.blocks < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise ValueError("--blocks and --batch-size must be at least 1")
        if self.rows is not None and self.rows > MOST_ROWS:
            raise ValueError(f"--rows {self.rows}: at most {MOST_ROWS}")
        check_seed(self.seed)
        if not self.dry_run:
            self.target()
            self._check_states()
        return settings

    def _check_states(self) -> None:
        q, blocks = self.candidates, min(self.blocks, MOST_STATES + 1)
        # 1 + Q + ... + Q^(B-1), of which 24 terms are too many unless Q = 1.
        states = blocks if q == 1 else (q ** min(blocks, 24) - 1) // (q - 1)
        if states > MOST_STATES:
            raise ValueError(
                f"--blocks {self.blocks} with --candidates {q} make more than {MOST_STATES} states of one prompt: a "
                "tree holds all states that can be reached, so give fewer of either"
            )

    def settings(self) -> PoolSettings:
        """How candidates are chosen, checked; `rows` is 1 where it is still open."""
        beam_width = self.candidates + 4 if self.beam_width is None else self.beam_width
        return PoolSettings(
            pool=self.pool,
            block_length=self.block_length,
            candidates=self.candidates,
            temperature=self.temperature,
            beam_width=beam_width,
            rows=1 if self.rows is None else self.rows,
            key=str(self.seed).encode(),
        )
