"""The training loop of `wm_env.lm.pretrain`: schedule, steps, validation, reports."""

import hashlib
import math
import sys
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from wm_env.common.command import is_terminal
from wm_env.common.files import write_json
from wm_env.lm.models.llada import llada_logits
from wm_env.lm.models.masked_lm import MaskedLM, banned_ids
from wm_env.lm.models.network import REQUIRED_VALUES, LLaDAConfig, build_network
from wm_env.lm.pretrain.checkpoint import Progress, load_checkpoint, save_checkpoint, save_lm
from wm_env.lm.pretrain.cluster import Cluster
from wm_env.lm.pretrain.corpus import MASK, TokenStream, draw_windows
from wm_env.lm.pretrain.muon import Muon
from wm_env.lm.pretrain.objective import BLOCK, ResponsePlan, mask_batch, masked_loss, plan_responses
from wm_env.lm.pretrain.recipe import CONTEXT, Options, Shape
from wm_env.lm.quality import cut_windows, measure_quality

# Reading the loss makes the host wait for the GPU; a CPU has nothing to run ahead of.
_STEPS_BETWEEN_SYNCS = {"cuda": 50, "cpu": 1}


def network_config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LLaDAConfig:
    """The network's `config.json`: the shape, and the special ids of the tokenizer.

    Raises:
        ValueError: the tokenizer has no mask, or more entries than the network.
    """
    mask = tokenizer.get_vocab().get(MASK)
    if mask is None:
        raise ValueError(f"the tokenizer has no {MASK}; train one with this program")
    if len(tokenizer) > shape.vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} entries, vocab_size is only {shape.vocab_size}")
    values = {
        **asdict(shape),
        "n_kv_heads": shape.n_heads,
        "embedding_size": shape.vocab_size,
        "mask_token_id": mask,
        "eos_token_id": tokenizer.eos_token_id,
        "rms_norm_eps": 1e-5,
        "weight_tying": True,
    }
    return LLaDAConfig.from_json({**REQUIRED_VALUES, **values})


def learning_rate_factor(step: int, total: float, warmup: int, decay: float) -> float:
    """Part of the peak learning rate at `step` of `total`: a linear rise, a plateau, a linear fall to zero.

    `total` may be infinite while it is not known.
    """
    rise = (step + 1) / warmup
    fall = (total - step) / (decay * total) if math.isfinite(total) else 1.0
    return max(0.0, min(1.0, rise, fall))


class _Clock:
    """Seconds spent, over all resumed parts, and from them how many steps the run will have."""

    def __init__(self, options: Options, seconds: float) -> None:
        self._options = options
        self._start = time.monotonic() - seconds
        self._anchor: tuple[int, float] | None = None

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def total(self, step: int) -> float:
        """Steps of the whole run: as asked for, or as many as fit the budget; infinite before the pace is known."""
        if self._options.steps is not None:
            return self._options.steps
        seconds = self.seconds()
        left = 60 * (self._options.minutes or 0) - seconds
        if left <= 0:
            return step
        if self._anchor is None or step <= self._anchor[0]:
            self._anchor = (step, seconds) if step else None  # the first steps contain compilation
            return math.inf
        pace = (seconds - self._anchor[1]) / (step - self._anchor[0])
        return step + int(left / pace)


class Trainer:
    """A network in training with its optimizers. A step is a function of its state, the seed, the step and the rank."""

    def __init__(
        self, options: Options, cluster: Cluster, tokenizer: PreTrainedTokenizerFast, stream: TokenStream
    ) -> None:
        self.options = options
        self.cluster = cluster
        self.config = network_config(options.shape, tokenizer)
        self.stream = stream.to(cluster.device)
        self.text_weights = torch.tensor(list(options.text_weights().values()), dtype=torch.float64)
        self.text_weights = self.text_weights.to(cluster.device)
        torch.manual_seed(options.seed)  # transformers draws initial weights from the global generator
        self.network = build_network(self.config).to(cluster.device)
        self.optimizers = _optimizers(self.network, options)
        self._plans: dict[int, ResponsePlan] = {}
        self._loss = masked_loss
        if cluster.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            for layer in self.network.model.layers:
                layer.compile(dynamic=True)
            self._loss = torch.compile(masked_loss, dynamic=True)

    def autocast(self) -> torch.autocast:
        """bf16 where there is a GPU."""
        return torch.autocast(self.cluster.device.type, torch.bfloat16, enabled=self.cluster.device.type == "cuda")

    def step(self, step: int, factor: float) -> Tensor:
        """One optimizer step at `factor` times the peak learning rates; returns the loss in nats per token."""
        options, device = self.options, self.cluster.device
        length = _window_length(options, step)
        if length not in self._plans:
            rows = options.tokens_per_step // (self.cluster.size * length)
            plan = plan_responses(rows, length, options.plain_share, options.block_share, device)
            self._plans[length] = plan
        plan = self._plans[length]
        generator = torch.Generator(device).manual_seed(_seed(options.seed, step, 1 + self.cluster.rank))
        windows = draw_windows(self.stream, self.text_weights, len(plan.responses), length, generator)
        batch = mask_batch(windows, plan, self.config.mask_token_id, generator)
        with self.autocast():
            states = self.network.model(batch.canvas, use_cache=False).last_hidden_state
            loss: Tensor = self._loss(states, self.network.lm_head, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        parameters = list(self.network.parameters())
        self.cluster.average(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * group["peak"]
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()


def _optimizers(network: LlamaForCausalLM, options: Options) -> tuple[torch.optim.Optimizer, ...]:
    matrices = [p for p in network.model.layers.parameters() if p.ndim == 2]
    norms = [p for p in network.parameters() if p.ndim == 1]
    embeddings = list(network.model.embed_tokens.parameters())
    muon = Muon(matrices, lr=options.lr, weight_decay=options.weight_decay)
    adam = torch.optim.AdamW(
        [
            {"params": embeddings, "weight_decay": options.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ],
        lr=options.embedding_lr,
        betas=(0.9, 0.95),
    )
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return muon, adam


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _window_length(options: Options, step: int) -> int:
    """A multiple of one block, log-uniform between the shortest and the longest window, the same in every process."""
    low, high = math.log(options.shortest), math.log(options.shape.max_sequence_length)
    position = _seed(options.seed, step, 0) / 2**63
    return max(BLOCK, BLOCK * round(math.exp(low + position * (high - low)) / BLOCK))


class Validation:
    """Held-out figures of a network in training, on windows that never change."""

    def __init__(self, trainer: Trainer, tokenizer: PreTrainedTokenizerFast) -> None:
        options = trainer.options
        self._trainer = trainer
        self._blocks = cut_windows(tokenizer, options.valid, CONTEXT + BLOCK, options.windows, options.seed)
        length = min(128, options.shape.max_sequence_length)
        device = trainer.cluster.device
        self._plain = cut_windows(tokenizer, options.valid, length, 512, options.seed).to(device)
        self._plan = plan_responses(512, length, 1.0, 0.0, device)
        self._lm = MaskedLM(
            network=trainer.network,
            tokenizer=tokenizer,
            name="the model in training",
            mask_id=trainer.config.mask_token_id,
            banned=banned_ids(trainer.config.mask_token_id, trainer.config.embedding_size, tokenizer).to(device),
            max_length=trainer.config.max_sequence_length,
            fingerprint="",
            tokenizer_fingerprint="",
            logits_at=llada_logits,
        )

    @torch.no_grad()
    def figures(self) -> dict[str, float]:
        """Bits per token of the masked-diffusion bound (any order), and exact chain-rule bits of blocks of 8 tokens."""
        trainer = self._trainer
        generator = torch.Generator(self._plain.device).manual_seed(0)
        batch = mask_batch(self._plain, self._plan, trainer.config.mask_token_id, generator)
        with trainer.autocast():
            states = trainer.network.model(batch.canvas, use_cache=False).last_hidden_state
            bound = float(masked_loss(states, trainer.network.lm_head, batch)) / math.log(2)
            quality = measure_quality(self._lm, self._blocks, CONTEXT)
        return {"any_order_bits_per_token": bound, **asdict(quality)}


def run(options: Options, cluster: Cluster, tokenizer: PreTrainedTokenizerFast, stream: TokenStream) -> Progress:
    """Train from the start or from a checkpoint to the end of the budget; returns where the run stands.

    The first process writes `checkpoint.safetensors`, `history.json` and, whenever the chain-rule bits per token on the
    held-out text improve, `model/`.
    """
    trainer = Trainer(options, cluster, tokenizer, stream)
    validation = Validation(trainer, tokenizer) if cluster.first else None
    checkpoint = options.out / "checkpoint.safetensors"
    content = hashlib.sha256(stream.tokens.numpy().data).hexdigest()
    settings = {**options.settings(cluster.size), "tokens": content}
    progress = Progress()
    if options.resume:
        progress = load_checkpoint(checkpoint, trainer.network, trainer.optimizers, settings)
    clock = _Clock(options, progress.seconds)
    step, total = progress.step, cluster.agree(clock.total(progress.step))
    sync_every = _STEPS_BETWEEN_SYNCS[cluster.device.type]
    with _Report(trainer, step) as report:
        while step < total:
            report.add(trainer.step(step, learning_rate_factor(step, total, options.warmup, options.decay)))
            step += 1
            if step % sync_every == 0 or step >= total:
                report.show(step, total, clock.seconds())
                total = cluster.agree(clock.total(step))
            done = step >= total
            if validation and (done or step % options.validate_every == 0):
                progress = replace(progress, step=step, seconds=clock.seconds())
                progress = _record(validation.figures(), progress, trainer, tokenizer, report)
            if validation and (done or step % options.save_every == 0):
                progress = replace(progress, step=step, seconds=clock.seconds())
                save_checkpoint(checkpoint, trainer.network, trainer.optimizers, progress, settings)
    cluster.wait()
    return progress


def _record(
    figures: dict[str, float],
    progress: Progress,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerFast,
    report: "_Report",
) -> Progress:
    """Note a validation, and store the model if it is the best so far."""
    out = trainer.options.out
    report.say(
        f"step {progress.step}: {figures['bits_per_token']:.4f} bits per token, {figures['bits_per_byte']:.4f} "
        f"per byte (chain rule); any-order bound {figures['any_order_bits_per_token']:.4f} bits per token"
    )
    best = min(progress.best, figures["bits_per_token"])
    if best < progress.best:
        save_lm(out / "model", trainer.network, trainer.config, tokenizer)
    history = (*progress.history, {"step": progress.step, "seconds": progress.seconds, **figures})
    write_json(out / "history.json", list(history))
    return replace(progress, best=best, history=history)


class _Report:
    """What the first process says: the cost before the start, then a bar on a terminal or a line every 10 seconds."""

    def __init__(self, trainer: Trainer, step: int) -> None:
        self._silent = not trainer.cluster.first
        self._tokens_per_step = trainer.options.tokens_per_step
        self._losses: list[Tensor] = []
        self._last = (step, time.monotonic())
        self._bar: tqdm[Any] | None = None
        if self._silent:
            return
        options = trainer.options
        parameters = sum(p.numel() for p in trainer.network.parameters())
        length = f"{options.steps} steps" if options.steps is not None else f"{options.minutes:g} minutes"
        print(
            f"{parameters / 1e6:.2f} M parameters ({2 * parameters / 1e6:.1f} MB in half precision), "
            f"{len(trainer.stream.tokens) / 1e6:.2f} M tokens of text, {length} of "
            f"{options.tokens_per_step / 1e3:.1f} k tokens on {trainer.cluster.size} x {trainer.cluster.device.type}, "
            f"{6 * parameters * options.tokens_per_step / 1e12:.2f} TFLOP a step",
            flush=True,
        )
        if is_terminal(sys.stderr):
            self._bar = tqdm(total=options.steps, initial=step, unit="step")

    def __enter__(self) -> "_Report":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, loss: Tensor) -> None:
        """Remember the loss of one step, without waiting for the device."""
        self._losses.append(loss)

    def show(self, step: int, total: float, seconds: float) -> None:
        """Wait for the device, then say where the run stands."""
        loss = float(torch.stack(self._losses).mean()) / math.log(2)
        now = time.monotonic()
        steps, elapsed = step - self._last[0], now - self._last[1]
        if self._silent:
            self._losses.clear()
        elif self._bar is not None:
            self._bar.total = int(total) if math.isfinite(total) else None
            self._bar.set_postfix(loss=f"{loss:.4f} bits", refresh=False)
            self._bar.update(steps)
            self._last = (step, now)
            self._losses.clear()
        elif elapsed >= 10 or step >= total:
            left = f"{(total - step) * elapsed / steps:.0f} s left" if math.isfinite(total) else "pace not known yet"
            pace = steps * self._tokens_per_step / elapsed / 1e6
            self.say(
                f"step {step} of {total:.0f}, {seconds:.0f} s, {left}, {pace:.2f} M tokens/s, loss {loss:.4f} bits"
            )
            self._last = (step, now)
            self._losses.clear()

    def say(self, line: str) -> None:
        """Print a line without breaking the bar."""
        if self._bar is not None:
            self._bar.write(line)
        elif not self._silent:
            print(line, flush=True)
