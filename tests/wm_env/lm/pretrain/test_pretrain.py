"""Pre-training end to end on a small text: `pretrain`, `recipe`, `training`, `checkpoint` and `cluster`."""

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_pretraining import SHAPE, counting_options, trained

from wm_env.lm.models.checkpoint_tokenizer import read_tokenizer
from wm_env.lm.models.exact.quantise import W8, quantise_matrix
from wm_env.lm.models.load import load_lm
from wm_env.lm.pretrain import mean
from wm_env.lm.pretrain.__main__ import main, pretrain
from wm_env.lm.pretrain.checkpoint import TrainingProgress, load_progress, save_progress
from wm_env.lm.pretrain.cluster import Cluster
from wm_env.lm.pretrain.corpus import tokenize, train_tokenizer
from wm_env.lm.pretrain.recipe import Options
from wm_env.lm.pretrain.training import (
    StepPlan,
    Trainer,
    causal_share,
    is_causal,
    learning_rate_factor,
    network_config,
)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    return counting_options(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def finished(options: Options, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    pretrain(replace(options, out=out))
    return out


@pytest.fixture(scope="module")
def alone() -> Cluster:
    return Cluster(0, 1, torch.device("cpu"))


def test_a_run_leaves_a_model_that_loads_its_history_and_nothing_else(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {"tokenizer", "tokens.safetensors", "checkpoint.safetensors", "history.json", "model"}
    history = json.loads((finished / "history.json").read_text())
    assert [entry["step"] for entry in history] == [3, 6]
    lm = load_lm(finished / "model", arithmetic="float")
    assert lm.max_length == 64
    assert lm.network.lm_head.weight is lm.network.model.embed_tokens.weight
    law = lm.log2_probs(torch.tensor([[5, 6, lm.mask_id]]), 2, 1.0)
    assert float(law.exp2().sum()) == pytest.approx(1.0)


def test_the_kept_model_is_the_one_with_the_best_validation(options: Options, tmp_path: Path) -> None:
    """A learning rate that ruins the network after the first validation."""
    wild = replace(options, out=tmp_path, lr=1.0, embedding_lr=1.0, steps=8, warmup=8, validate_every=1, decay=0.01)
    progress = pretrain(wild)
    figures = [entry["bits_per_token"] for entry in progress.history]
    assert progress.best == min(figures) < figures[-1]
    stored = load_file(tmp_path / "model" / "model.safetensors")
    last = load_file(tmp_path / "checkpoint.safetensors")
    matrix = quantise_matrix(last["network model.embed_tokens.weight"], W8)
    assert not torch.equal(stored["model.transformer.wte.weight"], matrix.q)


def test_training_learns_the_text(options: Options, tmp_path: Path) -> None:
    """From the 8.1 bits of 280 equally likely tokens to at most the 5 bits of the few that occur."""
    progress = pretrain(replace(options, out=tmp_path, steps=80, validate_every=80, save_every=80, lr=0.01))
    assert progress.history[0]["bits_per_token"] < 5.0
    assert progress.history[0]["any_order_bits_per_token"] < 5.0


def test_a_run_may_start_from_a_model(options: Options, finished: Path, alone: Cluster, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(finished / "model")
    from_model = replace(options, start=finished / "model")
    start = Trainer(from_model, alone, tokenizer, tokenize(options.texts, tokenizer)).network.state_dict()
    stored = load_file(finished / "model" / "model.safetensors")
    name, scale = "model.transformer.wte.weight", "model.transformer.wte.scale"
    assert torch.equal(start["model.embed_tokens.weight"], stored[name].float() * stored[scale][:, None])
    progress = pretrain(replace(from_model, out=tmp_path, tokenizer=finished / "tokenizer"))
    first = json.loads((finished / "history.json").read_text())[0]
    assert progress.history[0]["bits_per_token"] < first["bits_per_token"]


def test_a_start_of_another_shape_or_tokenizer_is_refused(options: Options, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        pretrain(replace(options, out=tmp_path / "a", start=Path("wm_env/lm/mini").resolve()))
    other = replace(options, out=tmp_path / "b", start=finished / "model", shape=replace(SHAPE, mlp_hidden_size=32))
    with pytest.raises(ValueError, match="give the shape of that model"):
        pretrain(other)


def test_a_continued_run_is_bit_for_bit_the_uninterrupted_one(options: Options, alone: Cluster, tmp_path: Path) -> None:
    straight = trained(options, alone, 6)
    first = trained(options, alone, 4)
    path = tmp_path / "checkpoint.safetensors"
    save_progress(path, first.network, first.optimizers, TrainingProgress(step=4), {})
    second = trained(options, alone, 0)
    assert load_progress(path, second.network, second.optimizers, {}) == TrainingProgress(step=4)
    for step in (4, 5):
        second.step(step, 1.0)
    for (name, parameter), other in zip(straight.network.named_parameters(), second.network.parameters(), strict=True):
        assert torch.equal(parameter, other), name


KILLED_AT_STEP_THREE = """
import os, signal, sys
from wm_env.lm.pretrain import __main__ as pretrain
from wm_env.lm.pretrain import training

save = training.save_progress

def save_and_die(path, network, optimizers, progress, settings):
    save(path, network, optimizers, progress, settings)
    if progress.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)

training.save_progress = save_and_die
sys.exit(pretrain.main())
"""


def test_a_killed_run_resumes_to_the_same_model(options: Options, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    long = replace(options, steps=8, validate_every=8, save_every=1)
    pretrain(replace(long, out=whole))
    arguments = ["--texts", *map(str, options.texts), "--weights", "2", "1", "--valid", str(options.valid)]
    for name in ("d_model", "n_layers", "n_heads", "mlp_hidden_size", "vocab_size", "max_sequence_length"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(SHAPE, name))]
    for name in ("steps", "tokens_per_step", "warmup", "validate_every", "save_every", "windows"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(long, name))]
    command = [sys.executable, "-c", KILLED_AT_STEP_THREE, *arguments, "--device", "cpu", "--out", str(killed)]
    # The sums of floating-point numbers depend on the number of threads, and this process has one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with safe_open(killed / "checkpoint.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["progress"])["step"] == 3
    pretrain(replace(long, out=killed, resume=True))
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (whole / "model" / file).read_bytes() == (killed / "model" / file).read_bytes()


def test_the_seed_decides_the_run(options: Options, alone: Cluster) -> None:
    first, same, other = (
        next(trained(replace(options, seed=seed), alone, 2).network.parameters()) for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_seed_step_and_rank_each_choose_another_batch(options: Options, alone: Cluster) -> None:
    """Losses of one and the same network, which no two batches share."""
    network = trained(options, alone, 0).network.state_dict()
    losses = []
    for seed, step, rank in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)):
        one_length = replace(options, seed=seed, shortest=SHAPE.max_sequence_length)
        trainer = trained(one_length, replace(alone, rank=rank), 0)
        trainer.network.load_state_dict(network)
        losses.append(float(trainer.step(step, 1.0)))
    assert losses[0] == losses[-1]
    assert len(set(losses)) == 4


def test_a_finished_run_is_not_trained_further(options: Options, finished: Path) -> None:
    before = (finished / "model" / "model.safetensors").read_bytes()
    assert pretrain(replace(options, out=finished, resume=True)).step == 6
    assert (finished / "model" / "model.safetensors").read_bytes() == before


def test_a_wall_clock_budget_ends_the_run_and_its_schedule(options: Options, tmp_path: Path) -> None:
    progress = pretrain(replace(options, out=tmp_path, steps=None, minutes=0.02, validate_every=10**6))
    assert progress.step >= 1
    assert progress.seconds >= 1.0


def test_a_run_is_not_overwritten(options: Options, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="--resume"):
        pretrain(replace(options, out=finished))
    with pytest.raises(OSError, match="nothing to resume"):
        pretrain(replace(options, out=tmp_path, resume=True))


def test_a_checkpoint_of_other_settings_or_a_damaged_one_is_refused(
    options: Options, finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="seed 0, not 1"):
        pretrain(replace(options, out=finished, resume=True, seed=1))
    for name in ("checkpoint.safetensors", "tokens.safetensors"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="damaged or cut short"):
        pretrain(replace(options, out=tmp_path, resume=True))
    path.write_bytes((finished / "model" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="no checkpoint of format"):
        pretrain(replace(options, out=tmp_path, resume=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "either steps or minutes"),
        ({"minutes": 1.0}, "either steps or minutes"),
        ({"weights": (1.0,)}, "2 texts but 1 weights"),
        ({"weights": (1.0, 0.0)}, "weights must be positive"),
        ({"shortest": 100}, "shortest"),
        ({"plain_share": 0.8}, "at most 1 together"),
        ({"block_share": -0.1}, "parts of 1"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"save_every": 0}, "save_every must be positive"),
        ({"steps": 10**400}, "steps must be positive and at most 1000000000"),
        ({"tokens_per_step": 10**400}, "tokens_per_step must be positive and at most"),
        ({"lr": 1e300}, "lr must be positive and at most"),
        ({"lr": float("nan")}, "lr must be positive and at most"),
        ({"shape": replace(SHAPE, vocab_size=10**30)}, "vocab_size must be at most"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"seed": -1}, "seed=-1"),
        ({"decay": 1.5}, "decay"),
        ({"ordered_share": 1.5}, "ordered_share"),
        ({"causal_share": -0.5}, "causal_share"),
        ({"causal_fall": 0.7, "causal_end": 0.7}, "causal_fall"),
        ({"pause": 0.0}, "pause must be positive"),
        ({"tokens_per_step": 32}, "tokens_per_step"),
        ({"windows": 1}, "windows"),
        ({"shape": replace(SHAPE, max_sequence_length=32)}, "max_sequence_length"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: Options, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pretrain(replace(options, out=tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_text_shorter_than_a_window_is_refused(options: Options, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("one two three")
    with pytest.raises(ValueError, match=r"short\.txt.*64"):
        pretrain(replace(options, texts=(options.texts[0], tmp_path / "short.txt"), out=tmp_path / "run"))


def test_a_tokenizer_larger_than_the_network_is_refused() -> None:
    tokenizer = train_tokenizer(["one two three four five six seven"], 280, 64)
    with pytest.raises(ValueError, match="280 entries"):
        network_config(replace(SHAPE, vocab_size=270), tokenizer)
    assert network_config(SHAPE, tokenizer).mask_token_id == 2


def test_the_schedule_rises_stays_and_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, StepPlan(100, 0.01).done(step), 10, 0.4) for step in range(101)]
    assert factors[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert factors[10:61] == pytest.approx([1.0] * 51)
    assert factors[60:] == pytest.approx([(100 - step) / 40 for step in range(60, 101)])
    assert learning_rate_factor(10**6, StepPlan(float("inf"), 0.0).done(10**6), 10, 0.4) == 1.0
    # A run by minutes that goes on knows how much of its time is spent before it knows its pace.
    assert learning_rate_factor(10**6, StepPlan(float("inf"), 0.0, 0.8).done(10**6), 10, 0.4) == pytest.approx(0.5)


def test_steps_that_predict_next_tokens_become_fewer(options: Options) -> None:
    shares = [causal_share(done / 10, 0.8, 0.3, 0.7) for done in range(11)]
    assert shares == pytest.approx([0.8] * 4 + [0.6, 0.4, 0.2] + [0.0] * 4)
    kinds = [is_causal(replace(options, causal_share=0.3), step, 0.0) for step in range(2000)]
    assert sum(kinds) == pytest.approx(600, abs=100)
    assert not any(is_causal(options, step, 1.0) for step in range(100))


def test_a_run_pauses_and_goes_on(options: Options, tmp_path: Path) -> None:
    paused = pretrain(replace(options, out=tmp_path, steps=4, pause=1e-9))
    assert paused.step == 1
    assert pretrain(replace(options, out=tmp_path, steps=4, resume=True)).step == 4


def test_every_process_of_a_cluster_gets_the_mean_gradient(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from wm_env.lm.pretrain.cluster import Cluster\n"
        "with Cluster.join('cpu') as cluster:\n"
        "    parameters = [torch.zeros(2, 3), torch.zeros(4), torch.zeros(1)]\n"
        "    for n, parameter in enumerate(parameters[:2]):\n"
        "        parameter.grad = torch.full_like(parameter, 10.0 * n + cluster.rank)\n"
        "    cluster.average(parameters)\n"
        "    assert cluster.size == 2 and cluster.first == (cluster.rank == 0)\n"
        "    assert [float(p.grad.min()) for p in parameters[:2]] == [0.5, 10.5]\n"
        "    assert [float(p.grad.max()) for p in parameters[:2]] == [0.5, 10.5]\n"
        "    assert parameters[2].grad is None\n"
        "    assert cluster.agree(7.25 + cluster.rank) == 7.25\n"
        "    cluster.wait()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "1"], "give either steps or minutes"),
        (["--texts", "none.txt"], "none.txt: no such file"),
        (["--texts", "text.txt", "none.gz"], "none.gz: no such file"),
        (["--texts", "."], ". is a folder"),
        (["--texts", "empty.txt"], "empty.txt holds no text"),
        (["--texts", "text.txt", "blank.txt"], "blank.txt holds no text"),
        (["--texts", "damaged.gz"], "damaged.gz is no complete .gz file"),
        (["--valid", "none.txt"], "none.txt: no such file"),
        (["--tokenizer", "none"], "none holds no tokenizer.json"),
        (["--out", "text.txt"], "text.txt cannot be written: choose another --out"),
        (["--out", "text.txt/run"], "text.txt cannot be written: choose another --out"),
        (["--out", "taken"], "taken/tokens.safetensors is no file that can be written: choose another --out"),
        (["--out", "history"], "history/history.json is no file that can be written: choose another --out"),
        (["--out", "named"], "named/model cannot be written: choose another --out"),
        (["--out", "link"], "link/tokenizer cannot be written: choose another --out"),
        (["--out", "gone"], "gone is a link to nothing: choose another --out, or remove the link"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one two three four five six seven " * 40)
    Path("empty.txt").touch()
    Path("blank.txt").write_text("\n \n")
    packed = gzip.compress(b"one two three " * 100)
    Path("damaged.gz").write_bytes(packed[:20] + b"\xff" * 8 + packed[28:])
    Path("taken/tokens.safetensors").mkdir(parents=True)
    Path("history/history.json").mkdir(parents=True)
    Path("named").mkdir()
    Path("named/model").touch()
    Path("link").mkdir()
    Path("link/tokenizer").symlink_to("/dev/null")
    Path("gone").symlink_to("nowhere")
    before = sorted(Path().rglob("*"))
    base = ["--texts", "text.txt", "--valid", "text.txt", "--out", "run", "--steps", "1", "--device", "cpu"]
    shape = ["--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--mlp-hidden-size", "24", "--vocab-size", "262"]
    monkeypatch.setattr(sys, "argv", ["pretrain", *base, *shape, *arguments])
    code = main()
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    assert error.startswith("error: ")
    assert message in error
    assert "Errno" not in error
    if "--out" in arguments:
        assert sorted(Path().rglob("*")) == before


def test_the_usage_line_is_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/pretrain.py", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: python -m wm_env.lm.pretrain [")


def test_a_mean_in_the_place_of_a_link_to_nothing_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gone").symlink_to("nowhere")
    monkeypatch.setattr(sys, "argv", ["mean", "--models", "none", "--weights", "1", "--out", "gone"])
    assert mean.main() == 2
    message = "error: gone is a link to nothing: choose another --out, or remove the link\n"
    assert capsys.readouterr().err == message
