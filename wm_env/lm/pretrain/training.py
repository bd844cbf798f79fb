"""The training loop of `wm_env.lm.pretrain`: schedule, steps, validation, reports."""

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from wm_env.common.files import write_json
from wm_env.common.progress import ProgressBar
from wm_env.lm.models.llada import llada_logits
from wm_env.lm.models.llada_config import REQUIRED_VALUES, LLaDAConfig
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM, banned_ids
from wm_env.lm.models.network import build_network
from wm_env.lm.pretrain.checkpoint import TrainingProgress, load_progress, save_integers, save_progress
from wm_env.lm.pretrain.cluster import Cluster
from wm_env.lm.pretrain.corpus import MASK, TokenStream, draw_windows
from wm_env.lm.pretrain.fused import FusedPass
from wm_env.lm.pretrain.muon import Muon
from wm_env.lm.pretrain.objective import BLOCK, ResponsePlan, mask_batch, masked_loss, plan_responses
from wm_env.lm.pretrain.recipe import CONTEXT, Options, Shape
from wm_env.lm.pretrain.rounding import rounded_state
from wm_env.lm.quality import cut_windows, measure_quality
from wm_env.lm.text import text_tokenizer, tokenizer_fingerprint

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


def load_start(
    network: LlamaForCausalLM, config: LLaDAConfig, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Put the weights of the model in `folder` into `network`; integers become the numbers that they stand for.

    Raises:
        ValueError: the model is no LLaDA, or its shape or its tokenizer is another.
        OSError: a file is missing.
    """
    lm = load_lm(folder, arithmetic="float")
    if lm.tokenizer_fingerprint != tokenizer_fingerprint(tokenizer):
        raise ValueError(f"{folder} has another tokenizer: train with that of the model")
    if not isinstance(lm.network, LlamaForCausalLM):
        raise ValueError(f"{folder} holds no LLaDA: name a model that this program made")
    start = lm.network.state_dict()
    other = next((name for name, value in network.state_dict().items() if value.shape != _shape(start, name)), None)
    if other is not None:
        raise ValueError(f"{folder}: tensor {other!r} has shape {_shape(start, other)}; give the shape of that model")
    network.load_state_dict(start)


def _shape(state: Mapping[str, Tensor], name: str) -> torch.Size | None:
    return state[name].shape if name in state else None


@dataclass(frozen=True)
class StepPlan:
    """What is left of a run, as known at some step.

    total: steps of the whole run, infinite before the pace is known. share: the part of the run that is one step.
    spent: the part that counts as done while the pace is not known.
    """

    total: float
    share: float
    spent: float = 0.0

    def done(self, step: int) -> float:
        """The part of the run that lies before `step`, 0 to 1."""
        return max(0.0, 1 - (self.total - step) * self.share) if math.isfinite(self.total) else self.spent


def learning_rate_factor(step: int, done: float, warmup: int, decay: float) -> float:
    """Part of the peak learning rate behind a part `done` of the run: a linear rise, a plateau, a linear fall to 0."""
    return max(0.0, min(1.0, (step + 1) / warmup, (1 - done) / decay))


def causal_share(done: float, share: float, fall: float, end: float) -> float:
    """Part of the steps that predict next tokens where a part `done` of the run lies behind.

    It is `share` up to `fall`, and falls to zero at `end`.
    """
    return share * max(0.0, min(1.0, (end - done) / (end - fall)))


def is_causal(options: Options, step: int, done: float) -> bool:
    """Whether this step predicts next tokens; the same in every process."""
    share = causal_share(done, options.causal_share, options.causal_fall, options.causal_end)
    return _seed(options.seed, step, 0, 1) / 2**63 < share


class _Clock:
    """Seconds spent, over all resumed parts, and from them how far the run is."""

    def __init__(self, options: Options, seconds: float) -> None:
        self._options = options
        self._start = time.monotonic() - seconds
        self._last: tuple[int, float] | None = None

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def plan(self, step: int) -> StepPlan:
        """By steps as asked for; by minutes from the time that is left, at the pace since the last call."""
        if self._options.steps is not None:
            return StepPlan(self._options.steps, 1 / self._options.steps)
        seconds, budget = self.seconds(), 60 * (self._options.minutes or 0)
        last, self._last = self._last, (step, seconds) if step else None  # the first steps contain compilation
        if seconds >= budget:
            return StepPlan(step, 0.0)
        if last is None or step <= last[0]:
            return StepPlan(math.inf, 0.0, seconds / budget)
        pace = (seconds - last[1]) / (step - last[0])
        left = math.ceil((budget - seconds) / pace)
        return StepPlan(step + left, (1 - seconds / budget) / left)


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
        if options.start is not None and not options.resume:
            load_start(self.network, self.config, tokenizer, options.start)
        self.optimizers = _optimizers(self.network, options)
        self._plans: dict[int, ResponsePlan] = {}
        self._pass = FusedPass(self.network, self.config, cluster.device)
        if cluster.device.type == "cuda":
            torch.set_float32_matmul_precision("high")

    def step(self, step: int, factor: float, causal: bool = False) -> Tensor:
        """One optimizer step at `factor` times the peak learning rates; returns the loss in nats per token."""
        generator = torch.Generator(self.cluster.device)
        generator.manual_seed(_seed(self.options.seed, step, 1 + self.cluster.rank))
        loss = self._next_token_loss(generator) if causal else self._masked_loss(step, generator)
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

    def _masked_loss(self, step: int, generator: torch.Generator) -> Tensor:
        options = self.options
        length = _window_length(options, step)
        if length not in self._plans:
            shares = options.plain_share, options.block_share, options.ordered_share
            self._plans[length] = plan_responses(self._rows(length), length, *shares, self.cluster.device)
        plan = self._plans[length]
        windows = draw_windows(self.stream, self.text_weights, len(plan.responses), length, generator)
        return self._pass.masked_loss(mask_batch(windows, plan, self.config.mask_token_id, generator))

    def _next_token_loss(self, generator: torch.Generator) -> Tensor:
        length = max(BLOCK, self.config.max_sequence_length // 2)
        windows = draw_windows(self.stream, self.text_weights, self._rows(length), length, generator)
        return self._pass.next_token_loss(windows)

    def _rows(self, length: int) -> int:
        """Windows of this length in one step of one process."""
        return self.options.tokens_per_step // (self.cluster.size * length)


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
    """A multiple of one block between the shortest and the longest window, the same in every process.

    The logarithm goes with the square of a uniform number: of windows from 32 to 512 half are below 64, an eighth
    above 256.
    """
    low, high = math.log(options.shortest), math.log(options.shape.max_sequence_length)
    position = (_seed(options.seed, step, 0) / 2**63) ** 2
    return max(BLOCK, BLOCK * round(math.exp(low + position * (high - low)) / BLOCK))


class Validation:
    """Held-out figures of a network in training as it would be published, on windows that never change.

    network: the rounded one, which `figures` brings up to date.
    """

    def __init__(self, trainer: Trainer, tokenizer: PreTrainedTokenizerFast) -> None:
        options = trainer.options
        self._trainer = trainer
        self._blocks = cut_windows(tokenizer, options.valid, CONTEXT + BLOCK, options.windows, options.seed)
        length = min(128, options.shape.max_sequence_length)
        device = trainer.cluster.device
        self._plain = cut_windows(tokenizer, options.valid, length, 512, options.seed).to(device)
        self._plan = plan_responses(512, length, 1.0, 0.0, 0.0, device)
        self.network = build_network(trainer.config).to(device).requires_grad_(False).eval()
        plain = text_tokenizer(tokenizer)
        self._lm = MaskedLM(
            network=self.network,
            text_tokenizer=plain,
            open_tokenizer=lambda: tokenizer,
            name="the model in training",
            mask_id=trainer.config.mask_token_id,
            banned=banned_ids(trainer.config.mask_token_id, trainer.config.embedding_size, plain).to(device),
            max_length=trainer.config.max_sequence_length,
            fingerprint="",
            tokenizer_fingerprint="",
            logits_at=llada_logits,
        )

    @torch.no_grad()
    def figures(self) -> dict[str, float]:
        """Bits per token of the masked-diffusion bound (any order), and exact chain-rule bits of blocks of 8 tokens."""
        self.network.load_state_dict(rounded_state(self._trainer.network, self._trainer.config), strict=False)
        generator = torch.Generator(self._plain.device).manual_seed(0)
        batch = mask_batch(self._plain, self._plan, self._trainer.config.mask_token_id, generator)
        states = self.network.model(batch.canvas, use_cache=False).last_hidden_state
        bound = float(masked_loss(states, self.network.lm_head.weight, batch)) / math.log(2)
        return {"any_order_bits_per_token": bound, **asdict(measure_quality(self._lm, self._blocks, CONTEXT))}


def run_pretraining(
    options: Options, cluster: Cluster, tokenizer: PreTrainedTokenizerFast, stream: TokenStream
) -> TrainingProgress:
    """Train from the start or from a checkpoint to the end of the budget or a pause; returns where the run stands.

    The first process writes `checkpoint.safetensors`, `history.json` and, whenever the chain-rule bits per token on the
    held-out text improve, `model/`.
    """
    trainer = Trainer(options, cluster, tokenizer, stream)
    validation = Validation(trainer, tokenizer) if cluster.first else None
    checkpoint = options.out / "checkpoint.safetensors"
    content = hashlib.sha256(stream.tokens.numpy().data).hexdigest()
    settings = {**options.settings(cluster.size), "tokens": content}
    progress = TrainingProgress()
    if options.resume:
        progress = load_progress(checkpoint, trainer.network, trainer.optimizers, settings)
    clock = _Clock(options, progress.seconds)
    step = progress.step
    plan = _agreed(clock.plan(step), cluster)
    sync_every = _STEPS_BETWEEN_SYNCS[cluster.device.type]
    pause = math.inf if options.pause is None else progress.seconds + 60 * options.pause
    paused = False
    with _Report(trainer, step) as report:
        while step < plan.total and not paused:
            causal = is_causal(options, step, plan.done(step))
            factor = learning_rate_factor(step, plan.done(step), options.warmup, options.decay)
            report.add(trainer.step(step, factor, causal), causal)
            step += 1
            if step % sync_every == 0 or step >= plan.total:
                report.show(step, plan.total)
                plan = _agreed(clock.plan(step), cluster)
                paused = bool(cluster.agree(clock.seconds() >= pause))
            done = step >= plan.total
            if validation and (done or step % options.validate_every == 0):
                progress = replace(progress, step=step, seconds=clock.seconds())
                progress = _record(validation, progress, trainer, tokenizer, report)
            if validation and (done or paused or step % options.save_every == 0):
                progress = replace(progress, step=step, seconds=clock.seconds())
                save_progress(checkpoint, trainer.network, trainer.optimizers, progress, settings)
    cluster.wait()
    return progress


def _agreed(plan: StepPlan, cluster: Cluster) -> StepPlan:
    """The first process's plan."""
    return StepPlan(cluster.agree(plan.total), cluster.agree(plan.share), cluster.agree(plan.spent))


def _record(
    validation: Validation,
    progress: TrainingProgress,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerFast,
    report: "_Report",
) -> TrainingProgress:
    """Validate, note the figures, and store the rounded model if it is the best so far."""
    out = trainer.options.out
    figures = validation.figures()
    report.say(
        f"step {progress.step}: {figures['bits_per_token']:.4f} bits per token, {figures['bits_per_byte']:.4f} "
        f"per byte (chain rule); any-order bound {figures['any_order_bits_per_token']:.4f} bits per token"
    )
    best = min(progress.best, figures["bits_per_token"])
    if best < progress.best:
        save_integers(out / "model", validation.network, trainer.config, tokenizer)
    history = (*progress.history, {"step": progress.step, "seconds": progress.seconds, **figures})
    write_json(out / "history.json", list(history))
    return replace(progress, best=best, history=history)


class _Report(ProgressBar):
    """What the first process says: the cost before the start, then progress with pace and losses."""

    def __init__(self, trainer: Trainer, step: int) -> None:
        options, first = trainer.options, trainer.cluster.first
        super().__init__(options.steps or math.inf, "step", step, shown=first)
        self._losses: dict[bool, list[Tensor]] = {False: [], True: []}
        parameters = sum(p.numel() for p in trainer.network.parameters())
        length = f"{options.steps} steps" if options.steps is not None else f"{options.minutes:g} minutes"
        self.say(
            f"{parameters / 1e6:.2f} M parameters ({parameters / 1e6:.1f} MB of 8-bit integers), "
            f"{len(trainer.stream.tokens) / 1e6:.2f} M tokens of text, {length} of "
            f"{options.tokens_per_step / 1e3:.1f} k tokens on {trainer.cluster.size} x {trainer.cluster.device.type}, "
            f"{6 * parameters * options.tokens_per_step / 1e12:.2f} TFLOP a step"
        )

    def add(self, loss: Tensor, causal: bool) -> None:
        """Remember the loss of one step, without waiting for the device."""
        self._losses[causal].append(loss)

    def show(self, step: int, total: float) -> None:
        """Wait for the device, then tell where the run stands."""
        losses = ", ".join(
            f"{'next token' if causal else 'masked'} {float(torch.stack(values).mean()) / math.log(2):.4f} bits"
            for causal, values in self._losses.items()
            if values
        )
        self.update(step, total, note=lambda: f"loss {losses}")
        for values in self._losses.values():
            values.clear()
