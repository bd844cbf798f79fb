"""The command line as a user meets it: exit codes, messages, files."""

import csv
import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest
import torch
from repository import ROOT

from agents.common.runs import RunFolder, load_checkpoint
from agents.common.table import preset as preset_of
from agents.planner.adaptive import plan_adaptive
from agents.train import main
from polar.code.adaptive import AdaptiveSettings
from polar.evaluation.adaptive import evaluate_adaptive
from wm_env.law import load_law
from wm_env.runs import read_task
from wm_env.tree import load_tree

SMALL = ["--candidates", "5", "--labels", "8", "--prompts", "3"]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def train(*arguments):
    """train.py in this process: its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
    return Done(code, out.getvalue(), err.getvalue())


def smoke(tree, run, *arguments):
    return train("--preset", "smoke", "--tree", tree, "--run", run, *SMALL, *arguments)


def metrics_of(run):
    with RunFolder(run).metrics.open(newline="") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith("time/")} for row in csv.DictReader(file)
        ]


@pytest.fixture(scope="module")
def whole_run(small_tree_file, tmp_path_factory):
    run = tmp_path_factory.mktemp("train") / "whole"
    done = smoke(small_tree_file, run)
    assert done.code == 0, done.err
    return run, done.out


def test_run_folder_is_complete(whole_run):
    run, output = whole_run
    folder = RunFolder(run)
    tree = load_tree(folder.tree)
    law = load_law(folder.law, tree)
    assert (len(tree.prior), law.blocks[0].labels) == (3, 8)
    settings = json.loads(folder.config.read_text())["settings"]
    assert settings["iterations"] == 60
    assert list(run.glob("events.out.tfevents.*"))
    assert output.splitlines()[0].startswith("iteration 0 of 60: rate ")
    # Sixty iterations do not reach the limit, and beyond it there is no share of the optimum.
    assert output.splitlines()[-1].endswith("of at most 0.1, over the limit: train longer")
    assert "%" not in output


def test_metrics_rise_and_carry_the_agreed_names(whole_run):
    rows = metrics_of(whole_run[0])
    assert [int(row["iteration"]) for row in rows] == list(range(0, 61, 10))
    assert {
        "rollout/ep_rew_mean",
        "rollout/ep_cost_mean",
        "rollout/cost_violation",
        "rollout/rate_bits_per_token",
        "train/lagrange_multiplier",
        "train/gradient_norm",
        "law/i_ux",
        "law/i_us",
        "law/i_ux_given_s",
        "law/cover_entropy",
        "law/label_entropy",
        "law/percent_of_optimum",
        "eval/rate",
        "eval/cost",
        "eval/feasible",
        "eval/best_feasible_rate",
    } <= rows[0].keys()
    assert float(rows[-1]["eval/rate"]) > float(rows[0]["eval/rate"]) + 0.1
    for row in rows:
        assert float(row["eval/rate"]) == pytest.approx(float(row["rollout/ep_rew_mean"]), abs=1e-4)


def test_resumed_run_equals_the_whole_one(whole_run, small_tree_file, tmp_path):
    part = tmp_path / "part"
    assert smoke(small_tree_file, part, "--iterations", 30).code == 0
    done = train("--run", part, "--resume", "--iterations", 60)
    assert done.code == 0, done.err
    assert metrics_of(part) == metrics_of(whole_run[0])
    wanted, about = load_checkpoint(RunFolder(whole_run[0]))
    got, other = load_checkpoint(RunFolder(part))
    # The metrics hold times.
    assert about.best == other.best
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        assert torch.equal(value, got[name]), name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_saves_and_resumes_to_the_same_end(whole_run, small_tree_file, tmp_path, number):
    part = tmp_path / "part"
    command = [sys.executable, ROOT / "train.py", "--preset", "smoke", "--tree", small_tree_file, "--run", part, *SMALL]
    with subprocess.Popen(
        [*map(str, command), "--iterations", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert errors.startswith("stopped after iteration ")
    assert errors.endswith(f"go on with: python train.py --run {part} --resume\n")
    assert RunFolder(part).law.exists()
    stopped = int(load_checkpoint(RunFolder(part))[0]["iteration"])
    done = train("--run", part, "--resume", "--iterations", stopped + 1)
    assert done.code == 0, done.err
    assert int(load_checkpoint(RunFolder(part))[0]["iteration"]) == stopped + 1


def test_planner_writes_the_same_folder_with_the_optimum(small_tree_file, tmp_path):
    run = tmp_path / "planner"
    done = smoke(small_tree_file, run, "--agent", "planner")
    assert done.code == 0, done.err
    assert "100.00 % of the optimum" in done.out
    folder = RunFolder(run)
    load_law(folder.law, load_tree(folder.tree))
    assert float(metrics_of(run)[0]["law/percent_of_optimum"]) == pytest.approx(100)
    again = train("--run", run, "--resume")
    assert (again.code, again.err) == (
        2,
        f"error: {run} was made by the planner, which has nothing to resume: start a new run\n",
    )


def test_coded_objective_saves_its_message_set(small_tree_file, tmp_path):
    run = tmp_path / "coded"
    done = smoke(small_tree_file, run, "--objective", "coded", "--message-bits", 2, "--iterations", 2)
    assert done.code == 0, done.err
    law = load_law(RunFolder(run).law, load_tree(RunFolder(run).tree))
    assert law.message_sets == ((1, 2), (1, 2))


@pytest.mark.parametrize(
    ("arguments", "preset"),
    [
        (["--objective", "coded"], "coded"),
        (["--objective", "coded", "--agent", "planner"], "default"),
        (["--objective", "coded", "--preset", "smoke"], "smoke"),
        ([], "default"),
    ],
)
def test_objective_chooses_the_preset_of_the_learner(small_tree_file, tmp_path, arguments, preset):
    run = tmp_path / "run"
    steps = [] if "planner" in arguments else ["--iterations", 1]
    done = train("--tree", small_tree_file, "--run", run, *SMALL, *steps, *arguments)
    assert done.code == 0, done.err
    settings = json.loads(RunFolder(run).config.read_text())["settings"]
    if "planner" not in arguments:
        assert settings["learner"] == dataclasses.asdict(preset_of(preset)[1].constants)
    assert settings["labels"] == 8


def test_help_shows_what_the_preset_leaves_to_the_defaults():
    shown = {preset: train("--preset", preset, "--help") for preset in ("ppo", "paper")}
    assert {done.code for done in shown.values()} == {0}
    for preset, done in shown.items():
        text = " ".join(done.out.replace("│", " ").split())
        assert re.search(r"--iterations INT .*?\(default: ([^)]*)\)", text).group(1) == str(
            preset_of(preset)[1].iterations
        )


@pytest.mark.parametrize("arguments", [["--preset"], ["--preset", "other"]])
def test_no_such_preset(arguments):
    done = train(*arguments)
    assert done.code == 2
    assert "--preset" in done.err


def test_a_law_does_not_depend_on_the_number_of_cores(tmp_path):
    """Torch takes as many threads as there are cores; a run takes those of its settings."""
    before, laws = torch.get_num_threads(), []
    try:
        for cores in (1, 3):
            torch.set_num_threads(cores)
            run = tmp_path / f"{cores}"
            assert train("--run", run, "--iterations", 2, "--prompts", 10).code == 0
            assert torch.get_num_threads() == cores
            laws.append(RunFolder(run).law.read_bytes())
    finally:
        torch.set_num_threads(before)
    assert laws[0] == laws[1]


def test_coded_preset_goes_on_from_a_checkpoint(small_tree_file, tmp_path):
    run = tmp_path / "run"
    done = train("--objective", "coded", "--tree", small_tree_file, "--run", run, *SMALL, "--iterations", 2)
    assert done.code == 0, done.err
    done = train("--run", run, "--resume", "--iterations", 4)
    assert done.code == 0, done.err
    assert int(load_checkpoint(RunFolder(run))[0]["iteration"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tree", "missing.safetensors"], "missing.safetensors: no such covert-watermark tree file"),
        (["--prompts", 7], "prompts=7: split 'all' of this tree has 1 to 6"),
        (["--candidates", 6], "candidates=6: this tree has 1 to 5 per state"),
        (["--blocks", 3], "blocks=3: this tree has 1 to 2"),
        (["--labels", 12], "labels=12: a power of two is needed, such as 16"),
        (["--labels", 32], "labels=32: blocks of 4 tokens have at most 16 words"),
        (["--labels", 1], "labels=1: a label needs at least two values to carry anything"),
        (["--epsilon", -0.1], "epsilon=-0.1: a budget of 0 or more is needed"),
        (["--gamma", 0], "gamma=0.0: a discount in (0, 1] is needed"),
        (["--iterations", 0], "iterations=0: a number above 0 is needed"),
        (["--learner.policy.embedding", 0], "embedding=0: a number from 1 to 65536 is needed"),
        (["--objective", "coded", "--message-bits", 4], "message_bits=4: 8 labels carry 1 to 3 message bits"),
        (["--learner.first-multiplier", -1], "first_multiplier=-1.0: a number of 0 or more and at most"),
        (["--learner.policy.embedding", 1_000_000_000], "embedding=1000000000: a number from 1 to 65536 is needed"),
        (["--learner.learning-rate", "inf"], "learning_rate=inf: a number above 0 and at most 1e+30 is needed"),
        (["--learner.dual-step", "nan"], "dual_step=nan: a number above 0 and at most 1e+30 is needed"),
        (["--learner.policy.common", 2], "common=2.0: a number in [0, 1] is needed"),
        (["--learner.policy.common", "nan"], "common=nan: a number in [0, 1] is needed"),
        (["--learner.policy.label-spread", "inf"], "label_spread=inf: a number of 0 or more and at most"),
        (["--learner.policy.trailing-spread", -1], "trailing_spread=-1.0: a number of 0 or more and at most"),
        (["--agent", "ppo", "--ppo.target-kl", "inf"], "target_kl=inf: a number above 0 and at most 1e+30 is needed"),
        (["--agent", "ppo", "--ppo.learning-rate", "1e300"], "learning_rate=1e+300: a number above 0 and at most"),
        (["--agent", "ppo", "--ppo.copies", 99999999999], "copies=99999999999: a number from 1 to 4096 is needed"),
        (["--agent", "ppo", "--ppo.copies", 0], "copies=0: a number from 1 to 4096 is needed"),
        (["--gamma", "1e-300"], "gamma=1e-300: gamma^2 is 0 in float32, in which learners compute: take a larger"),
        (["--epsilon", "inf"], "epsilon=inf: a budget of 0 or more is needed"),
        (["--gamma", "nan"], "gamma=nan: a discount in (0, 1] is needed"),
        (["--seed", -1], "seed=-1: an integer from 0 to 2^32 - 1 is needed"),
        (["--message-bits", 2], "message_bits=2: the gp objective has none; leave them out, or choose objective="),
        (["--objective", "coded", "--message-bits", "auto"], "message_bits=auto: only the planner chooses lengths"),
        (
            ["--agent", "planner", "--objective", "coded", "--message-bits", "auto", "--candidates", "1"],
            "message_bits=auto: one candidate carries no message",
        ),
        (["--agent", "planner", "--dither-bits", "4"], "dither_bits=4: only message_bits=auto plans for dither"),
        (
            ["--agent", "planner", "--objective", "coded", "--message-bits", "auto", "--dither-bits", "9"],
            "dither_bits=9: 0 to 8 are possible",
        ),
        (["--agent", "planner", "--labels", 2], "labels=2"),
        (["--device", "cuda"], "device='cuda' cannot be used here ("),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(small_tree_file, tmp_path, arguments, message):
    run = tmp_path / "run"
    done = smoke(small_tree_file, run, *arguments)
    assert done.code == 2
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("\n") == 1
    assert not run.exists()


def test_planner_chooses_the_length_of_every_state(small_tree_file, tmp_path):
    run = tmp_path / "auto"
    done = smoke(small_tree_file, run, "--agent", "planner", "--objective", "coded", "--message-bits", "auto")
    assert done.code == 0
    law = load_law(run / "law.safetensors", load_tree(run / "tree.safetensors"))
    # Five candidates and eight labels: at most two bits.
    assert law.message_sets == ((1, 2), (1, 2))
    planned = plan_adaptive(load_tree(run / "tree.safetensors"), 0.1, labels=8)
    told = re.search(r"([\d.]+) message bits over 2 blocks of 4 tokens \(([\d.]+) bits per token\)", done.out)
    tree = load_tree(run / "tree.safetensors")
    decoded = evaluate_adaptive(tree, law, AdaptiveSettings())
    assert [float(number) for number in told.groups()] == pytest.approx(
        [2 * decoded.mean_bits, decoded.mean_bits / 4], abs=5e-5
    )
    assert decoded.bler == pytest.approx(0, abs=1e-12)
    for block, expected in zip(law.blocks, planned.law.blocks, strict=True):
        torch.testing.assert_close(block.p_candidate, expected.p_candidate)
        torch.testing.assert_close(block.p_label, expected.p_label)


def test_planner_counts_on_dither_and_the_evaluation_finds_it_in_the_run(small_tree_file, tmp_path):
    run = tmp_path / "auto"
    planner = ("--agent", "planner", "--objective", "coded", "--message-bits", "auto", "--labels", "16")
    done = smoke(small_tree_file, run, *planner, "--dither-bits", "3", "--epsilon", "0")
    assert done.code == 0
    tree = load_tree(run / "tree.safetensors")
    law = load_law(run / "law.safetensors", tree)
    for block, expected in zip(law.blocks, plan_adaptive(tree, 0, labels=16, dither_bits=3).law.blocks, strict=True):
        torch.testing.assert_close(block.p_candidate, expected.p_candidate)
    assert read_task(RunFolder(run)).dither_bits == 3
    bits = [evaluate_adaptive(tree, law, AdaptiveSettings(dither_bits=d)).mean_bits for d in (0, 3)]
    assert bits[0] < bits[1]
    assert f"{2 * bits[1]:.4f} message bits" in done.out


def test_existing_run_other_settings_and_missing_run(whole_run, small_tree_file, tmp_path):
    run, _ = whole_run
    taken = smoke(small_tree_file, run)
    assert (taken.code, taken.err) == (
        2,
        f"error: {run} exists already: choose another --run, or continue that run with --resume\n",
    )
    changed = train("--run", run, "--resume", "--epsilon", 0.2)
    assert (changed.code, changed.err) == (
        2,
        f"error: {run} was started with epsilon=0.1, not 0.2: leave it out to go on\n",
    )
    missing = train("--run", tmp_path / "none", "--resume")
    assert (missing.code, missing.err.split(":")[0]) == (2, "error")
    assert "holds no run" in missing.err


def test_a_run_goes_on_when_nobody_reads_its_lines(small_tree_file, tmp_path):
    run = tmp_path / "run"
    options = ["--preset", "smoke", "--tree", small_tree_file, "--run", run, *SMALL, "--iterations", "20"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", *map(str, options)], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(load_checkpoint(RunFolder(run))[0]["iteration"]) == 20


def test_what_the_system_refuses_later_is_a_failure(small_tree_file, tmp_path):
    with open("/dev/full", "w") as full:
        options = ["--preset", "smoke", "--tree", small_tree_file, "--run", tmp_path / "run", *SMALL]
        done = subprocess.run(
            [sys.executable, ROOT / "train.py", *map(str, options)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device: make room, or name another place\n"
    assert "Traceback" not in done.stderr


def test_damaged_checkpoint_is_refused(small_tree_file, tmp_path):
    run = tmp_path / "run"
    assert smoke(small_tree_file, run, "--iterations", 10).code == 0
    checkpoint = RunFolder(run).checkpoint
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    done = train("--run", run, "--resume", "--iterations", 20)
    assert done.code == 2
    assert "is damaged or cut short" in done.err
    assert done.err.count("\n") == 1


def test_unknown_option_and_help():
    wrong = train("--epsilom", "0.1")
    assert wrong.code == 2
    assert "Traceback" not in wrong.err
    told = train("--help")
    assert told.code == 0
    for option in ("agent", "preset", "objective", "run", "tree", "prompts", "candidates", "labels", "blocks"):
        assert f"--{option} " in told.out
    for option in ("epsilon", "gamma", "iterations", "message-bits", "seed", "device", "resume"):
        assert f"--{option}" in told.out


def test_help_needs_no_torch():
    code = (
        "import contextlib, sys\nfrom agents import train\n"
        "sys.argv = ['train.py', '--help']\n"
        "with contextlib.suppress(SystemExit):\n"
        "    train.main()\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_interrupt_outside_of_the_iterations_ends_with_one_line(monkeypatch, tmp_path):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("agents.training.run.start_run", interrupt)
    done = train("--run", tmp_path / "run")
    assert (done.code, done.out, done.err) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--agent", "planner", "--seed", "3"],
        ["--agent", "planner", "--iterations", "3"],
        ["--agent", "ppo", "--learner.learning-rate", "0.1"],
        ["--agent", "ppo", "--gradient", "autograd"],
        ["--ppo.copies", "2"],
    ],
)
def test_an_option_that_the_agent_does_not_have_is_refused(arguments, tmp_path):
    done = train("--run", tmp_path / "run", *arguments)
    assert done.code == 2
    assert arguments[-2] in done.err
    assert not (tmp_path / "run").exists()


def test_the_planner_keeps_a_budget_of_kl_divergence(small_tree_file, tmp_path):
    run = tmp_path / "run"
    done = smoke(small_tree_file, run, "--agent", "planner", "--cost", "kl")
    assert done.code == 0, done.err
    assert re.search(r"KL divergence 0\.1000 bits of at most 0\.1 \(total variation 0\.\d{4}\), 100\.00 %", done.out)
    coded = smoke(small_tree_file, tmp_path / "coded", "--agent", "planner", "--cost", "kl", "--objective", "coded")
    assert (coded.code, coded.out) == (2, "")
    assert coded.err == "error: cost='kl': plans of the coded objective are for cost='tv' only; choose a learner\n"
    assert not (tmp_path / "coded").exists()


def test_one_candidate_is_worth_nothing_and_not_less(small_tree_file, tmp_path):
    done = smoke(small_tree_file, tmp_path / "run", "--candidates", "1", "--iterations", "10")
    assert done.code == 0, done.err
    assert "-0.0000" not in done.out


def test_a_path_that_the_output_cannot_spell_is_no_failure(small_tree_file, tmp_path):
    run = tmp_path / "läuf水"
    options = ["--preset", "smoke", "--agent", "planner", "--tree", small_tree_file, "--run", run, *SMALL]
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", *map(str, options)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "MPLBACKEND": "module://not.there"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "läuf\\u6c34/law.safetensors".encode("latin-1") in done.stdout
    assert RunFolder(run).law.exists()


@pytest.mark.parametrize("module", ["gymnasium", "tyro", "torch"])
def test_ctrl_c_in_the_middle_of_an_import_shows_no_traceback(module, tmp_path):
    hook = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)
    places = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", "--run", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": places},
    )
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr in ("", "interrupted\n")


def test_a_run_is_found_again_by_what_it_was_asked_for(small_tree_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["--preset", "smoke", "--tree", small_tree_file, *SMALL, "--cost", "kl", "--iterations", "10"]
    assert train(*asked).code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["primal-dual-smoke-kl"]
    done = train("--preset", "smoke", "--cost", "kl", "--resume", "--iterations", "20")
    assert done.code == 0, done.err
    assert int(load_checkpoint(RunFolder(tmp_path / "runs/primal-dual-smoke-kl"))[0]["iteration"]) == 20
