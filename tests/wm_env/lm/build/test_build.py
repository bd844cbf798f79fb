import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from letters_lm import PROMPTS, write_letters
from torch.distributed import TCPStore

from wm_env.common.files import locked_folder
from wm_env.lm.build.__main__ import main
from wm_env.lm.build.builder import build, prepare, with_rows
from wm_env.lm.build.crew import Crew
from wm_env.lm.build.options import BuildOptions
from wm_env.lm.build.partial import parts_folder
from wm_env.lm.build.states import grow_tree
from wm_env.lm.models.load import load_lm
from wm_env.lm.prompts import read_prompts
from wm_env.lm.text import token_bytes
from wm_env.tree import load_tree, shipped_tree


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_letters(tmp_path_factory.mktemp("lm")))


@pytest.fixture(scope="module")
def lm(model):
    return load_lm(model)


@pytest.fixture
def prompt_file(tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    return str(tmp_path / "prompts.txt")


def run(*arguments):
    return main([str(argument) for argument in arguments])


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""The environment of commands whose results are compared with those of this process."""

OPTIONS = ("--block-length", "2", "--candidates", "4", "--temperature", "1.5")


def test_command_builds_and_reports(model, prompt_file, tmp_path, capsys):
    out = tmp_path / "new" / "tree.safetensors"
    assert run("--model", model, "--prompts", prompt_file, "--out", out, *OPTIONS) == 0
    tree = load_tree(out)
    printed = capsys.readouterr().out
    assert tree.fingerprint in printed
    assert f"{out.stat().st_size} bytes" in printed
    assert "at most 30 states" in printed
    assert tree.meta.model == "letters"
    assert (tree.meta.pool, tree.meta.candidates, tree.meta.temperature, tree.meta.block_length) == ("top", 4, 1.5, 2)
    assert list(out.parent.iterdir()) == [out]
    bits = [-(row * np.log2(row)).sum() for row in tree.blocks[0].cover]
    assert f"H(X|S) {np.mean(bits):.3f} bits (min {np.min(bits):.3f})" in printed
    least = [-np.log2(max(row)) for row in tree.blocks[0].cover]
    assert f"H_min {np.mean(least):.3f} (min {np.min(least):.3f})" in printed


def test_dry_run_tells_the_cost_and_writes_nothing(model, prompt_file, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert run("--model", model, "--prompts", prompt_file, "--out", tmp_path / "x" / "t", "--dry-run", *OPTIONS) == 0
    assert "TFLOP" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "temperature=0.0"),
        (["--temperature", "-2"], "temperature=-2.0"),
        (["--temperature", "nan"], "temperature=nan"),
        (["--block-length", "3"], "power of two"),
        (["--candidates", "37", "--beam-width", "40"], "6 tokens make only 36 blocks"),
        (["--beam-width", "3"], "at least candidates=4"),
        (["--blocks", "0"], "--blocks"),
        (["--batch-size", "0"], "--batch-size"),
        (["--rows", "-1"], "rows"),
        (["--rows", "1" + "0" * 400], "at most 65536"),
        (["--prompt-count", "7"], "holds 6"),
        (["--blocks", "20", "--candidates", "2"], "no room"),
        (["--blocks", "20"], "--blocks 20 with --candidates 4 make more than 10000000 states"),
        (["--blocks", "1000000000", "--candidates", "1"], "more than 10000000 states"),
        (["--prompts", "LONG"], "may have at most 36"),
        (["--prompts", "EMPTY"], "line 1: an empty prompt"),
        (["--prompts", "OTHER"], "changed by the tokenizer"),
        (["--prompts", "missing.txt"], "missing.txt: no such file"),
        (["--model", "no such model"], "unknown model"),
        (["--model", "EMPTY_FOLDER"], "config.json"),
        (["--out", "EMPTY_FOLDER"], "EMPTY_FOLDER is no file that can be written: choose another --out"),
        (["--out", "DEVICE"], "DEVICE is no file that can be written: choose another --out"),
        (["--out", "LONG/tree"], "cannot be written: choose another --out"),
        (["--out", "TAKEN"], "TAKEN.parts cannot be written: choose another --out"),
        (["--device", "cuda:99"], "device='cuda:99' cannot be used here"),
        (["--device", "nonsense"], "device='nonsense': cpu, cuda or cuda:N is needed"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(model, prompt_file, tmp_path, capsys, arguments, message):
    (tmp_path / "LONG").write_text("a" * 37)
    (tmp_path / "EMPTY").write_text("\n")
    (tmp_path / "OTHER").write_text("axb")
    (tmp_path / "EMPTY_FOLDER").mkdir()
    (tmp_path / "DEVICE").symlink_to("/dev/null")
    (tmp_path / "TAKEN.parts").touch()
    before = sorted(tmp_path.rglob("*"))
    names = ("LONG", "EMPTY", "OTHER", "EMPTY_FOLDER", "DEVICE", "LONG/tree", "TAKEN")
    given = [str(tmp_path / argument) if argument in names else argument for argument in arguments]
    defaults = ["--model", model, "--prompts", prompt_file, "--out", tmp_path / "tree", *OPTIONS]
    assert run(*defaults, *given) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert message in printed
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def many(model, tmp_path):
    """Options of a tree of 120 states with a batch for each."""
    prompts = tmp_path / "many.txt"
    prompts.write_text("\n".join("abcdef"[n % 6] * (n // 6 + 1) for n in range(24)))
    return ("--model", model, "--prompts", str(prompts), "--batch-size", "1", *OPTIONS)


def command(processes, *arguments):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(torchrun if processes > 1 else []), "-m", "wm_env.lm.build", *arguments]


def kill_between_two_blocks(arguments):
    """Run a build as one of two processes of which the other, this one, takes no work, and kill it where it waits.

    That is when the first block is finished and the second not begun, however fast or slow the machine is.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    process = subprocess.Popen(
        command(1, *arguments), env={**ONE_THREAD, **place, "WORLD_SIZE": "2", "RANK": "0"}, stderr=subprocess.PIPE
    )
    other = Crew(1, 2, store).within("rows 8")
    for meeting in ("start: all written", "start: all read"):
        other.add(meeting, 1)
    while process.poll() is None and not other.add("block 0: all written", 0):
        time.sleep(0.01)
    process.kill()
    told = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, told


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_command_goes_on(many, tmp_path, processes):
    out, whole = tmp_path / "tree", tmp_path / "whole"
    kill_between_two_blocks([*many, "--out", str(out)])
    assert not out.exists()
    assert len(list(parts_folder(out).glob("*.safetensors"))) == 24
    done = subprocess.run(
        command(processes, *many, "--out", str(out)), env=ONE_THREAD, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert main([*many[:-2], "--temperature", "1.5", "--out", str(whole), "--batch-size", "9"]) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not parts_folder(out).exists()


def test_a_tree_is_not_written_over_another(model, prompt_file, tmp_path, capsys):
    out = tmp_path / "tree"
    given = ["--model", model, "--prompts", prompt_file, *OPTIONS, "--out", out]
    assert run(*given) == 0
    written = out.read_bytes()
    assert run(*given, "--temperature", "3") == 2
    assert f"{out} exists already" in capsys.readouterr().err
    assert out.read_bytes() == written
    assert run(*given, "--dry-run") == 0


def test_two_builds_do_not_write_one_tree(many, tmp_path, capsys):
    out = tmp_path / "tree"
    parts_folder(out).mkdir()
    with locked_folder(parts_folder(out), "wait"):
        assert main([*many, "--out", str(out)]) == 2
    assert capsys.readouterr().err.endswith(
        f"error: {parts_folder(out)} is in use by another process: wait for that build, or choose another --out\n"
    )
    assert main([*many, "--out", str(out)]) == 0
    assert not parts_folder(out).exists()


def test_an_error_in_one_of_two_processes_is_told_once_and_ends_both(many, tmp_path):
    arguments = command(2, *many, "--out", str(tmp_path / "tree"), "--beam-width", "1")
    process = subprocess.run(arguments, env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert process.returncode != 0
    assert process.stderr.count("error: beam_width=1: at least candidates=4 is needed\n") == 1
    assert process.stdout == ""


def short_of_memory(lm, most):
    """The same model on a machine that has memory for passes of at most `most` canvases."""

    def logits_at(network, canvas, position):
        if len(canvas) > most:
            raise torch.OutOfMemoryError
        return lm.logits_at(network, canvas, position)

    return dataclasses.replace(lm, logits_at=logits_at)


def test_rows_are_halved_when_memory_runs_out_and_kept_when_a_build_goes_on(prompt_file, tmp_path, model, capsys):
    options = BuildOptions(
        tmp_path / "tree",
        model,
        prompt_file,
        block_length=2,
        candidates=4,
        temperature=1.5,
        beam_width=12,
        dtype="float32",
    )
    lm = load_lm(model, dtype=torch.float32)
    plan = prepare(options)
    grown = build(dataclasses.replace(plan, lm=short_of_memory(lm, 3)), Crew())
    assert grown.tree.meta.rows == 2
    told = capsys.readouterr()
    assert "out of memory with passes of 8 canvases: all states are made again in passes of 4" in told.err
    assert told.err.count("out of memory") == 2
    with pytest.raises(torch.OutOfMemoryError):
        build(dataclasses.replace(plan, lm=short_of_memory(lm, 0)), Crew())
    options.out.unlink()
    given = prepare(dataclasses.replace(options, rows=8))
    with pytest.raises(torch.OutOfMemoryError):
        build(dataclasses.replace(given, lm=short_of_memory(lm, 3)), Crew())

    parts = parts_folder(options.out)
    grow_tree(lm, PROMPTS[:2], dataclasses.replace(plan.settings, rows=5), blocks=1, batch_size=4, parts=parts)
    assert with_rows(plan, Crew()).settings.rows == 5
    assert with_rows(given, Crew()).settings.rows == 8
    other = prepare(dataclasses.replace(options, temperature=2.0))
    assert with_rows(other, Crew()).settings.rows == 8


def test_rows_are_no_part_of_an_exact_tree(lm, prompt_file, tmp_path, model):
    options = BuildOptions(
        tmp_path / "tree", model, prompt_file, block_length=2, candidates=4, temperature=1.5, beam_width=12
    )
    plan = prepare(options)
    halved = build(dataclasses.replace(plan, lm=short_of_memory(lm, 3)), Crew()).tree
    written = options.out.read_bytes()
    options.out.unlink()
    whole = build(prepare(dataclasses.replace(options, rows=5, batch_size=2)), Crew()).tree
    assert whole.fingerprint == halved.fingerprint
    assert options.out.read_bytes() == written
    assert (whole.meta.dtype, whole.meta.rows) == ("exact-1 w24", 0)


def test_importing_the_package_does_not_import_language_models():
    code = "import sys, wm_env; sys.exit(any(name.startswith(('transformers', 'wm_env.lm')) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_shipped_tree_belongs_to_the_shipped_model():
    tree, lm = shipped_tree(), load_lm("mini", arithmetic="float")
    assert tree.meta.model_fingerprint == lm.fingerprint
    assert tree.meta.tokenizer_fingerprint == lm.tokenizer_fingerprint
    assert set(tree.prompts) <= set(read_prompts("shipped"))
    assert (len(tree.prompts), len(tree.blocks), tree.meta.candidates, tree.meta.block_length) == (50, 2, 20, 8)
    vocabulary = token_bytes(lm.tokenizer)
    for block in tree.blocks:
        for state in range(0, len(block.cover), 50):
            for tokens, text in zip(block.tokens[state].tolist(), block.text[state], strict=True):
                assert lm.tokenizer.decode(tokens) == text.decode() == b"".join(map(vocabulary.get, tokens)).decode()
    bits = [-(block.cover * np.log2(block.cover)).sum(1).mean() for block in tree.blocks]
    assert np.mean(bits) == pytest.approx(4, abs=0.25)


def test_the_shipped_candidates_have_the_probability_that_the_tree_says():
    tree, lm = shipped_tree(), load_lm("mini", arithmetic="float")
    context = lm.encode(tree.prompts[0])
    for block in (0, 7, 19):
        tokens = tree.blocks[0].tokens[0, block].tolist()
        score = 0.0
        for step, token in enumerate(tokens):
            canvas = torch.tensor([[*context, *tokens[:step], *[lm.mask_id] * (8 - step)]])
            with torch.no_grad():
                logits = lm.network(canvas, use_cache=False).logits[0, len(context) + step].double() / 4
            logits[lm.banned] = -torch.inf
            score += float(logits[token] - logits.logsumexp(0)) / np.log(2)
        assert tree.blocks[0].log2_prob[0, block] == pytest.approx(score, abs=1e-3)
        assert len(tree.blocks[0].text[0][block]) > 0


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (lambda *arguments: torch.empty(2**50), "out of memory on cpu: give a smaller --rows"),
        (lambda *arguments: os.write(os.open("/dev/full", os.O_WRONLY), b"x"), "No space left on device"),
    ],
    ids=["memory", "disk"],
)
def test_failures_of_the_machine_are_one_line_and_exit_code_1(
    model, prompt_file, tmp_path, monkeypatch, capsys, dry, failure, told
):
    monkeypatch.setattr("wm_env.lm.build.builder.tell_cost", failure)
    assert run("--model", model, "--prompts", prompt_file, "--out", tmp_path / "tree", *OPTIONS, *dry) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {told}")
    assert printed.count("\n") == 1


def test_interrupted_command_ends_with_one_line(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("wm_env.lm.build.builder.prepare", interrupt)
    assert run("--out", tmp_path / "tree.safetensors") == 130
    assert capsys.readouterr().err == "interrupted: give the same command again to go on\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--help"], 0, ""),
        (["--unknown"], 2, ""),
        ([], 2, "error: say where to write the tree, --out FILE, or ask for its cost alone, --dry-run"),
        (["--out", "tree", "--block-length", "3"], 2, "error: block_length=3: a power of two is needed, such as 8"),
    ],
)
def test_help_and_refusals_do_without_torch(arguments, code, says):
    heavy = "[name for name in ('torch', 'transformers', 'scipy') if name in sys.modules]"
    program = (
        "import atexit, runpy, sys; "
        f"atexit.register(lambda: print('imported:', {heavy}, file=sys.stderr)); "
        f"sys.argv = ['x', *{arguments!r}]; runpy.run_module('wm_env.lm.build', run_name='__main__')"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == code
    assert finished.stderr.splitlines()[-1] == "imported: []"
    assert says in finished.stderr
    if arguments == ["--help"]:
        assert "usage: python -m wm_env.lm.build [" in finished.stdout


def test_a_dry_run_needs_no_file(model, prompt_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run("--model", model, "--prompts", prompt_file, "--dry-run", *OPTIONS) == 0
    assert "at most 30 states" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_by_default_the_prompts_are_as_many_as_the_papers_or_all_of_a_file(prompt_file):
    drawn = {source: BuildOptions(prompts=source).prompts_drawn for source in ("shipped", "c4", prompt_file)}
    assert drawn == {"shipped": 50, "c4": 50, prompt_file: None}
    assert BuildOptions(prompt_count=250).prompts_drawn == 250
    assert len(read_prompts("shipped")) == 250
