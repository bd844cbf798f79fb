import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from tiny_lm import brute_force, write_lm
from torch.distributed import HashStore
from torch.utils.flop_counter import FlopCounterMode

from wm_env.files import locked_folder
from wm_env.lm.build import main
from wm_env.lm.build_options import BuildOptions
from wm_env.lm.builder import build, prepare, with_rows
from wm_env.lm.cost import canvas_flops, estimate, rows_that_fit
from wm_env.lm.crew import Crew
from wm_env.lm.load import load_lm
from wm_env.lm.partial import parts_folder
from wm_env.lm.pool_settings import PoolSettings
from wm_env.lm.prompts import read_prompts
from wm_env.lm.states import batches, encode_prompts, grow_tree, pool_law
from wm_env.lm.text import token_bytes
from wm_env.tree import check_tree, load_tree, shipped_tree, state_reach

LETTERS = (b"a", b"b", b"c", b"d", b"e", b"f")
PROMPTS = ("ab", "cab", "fade", "face", "a", "ab")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_lm(tmp_path_factory.mktemp("lm") / "letters", tokens=LETTERS, merges=()))


@pytest.fixture(scope="module")
def lm(model):
    return load_lm(model)


@pytest.fixture
def prompt_file(tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    return str(tmp_path / "prompts.txt")


def settings(pool="top", **changes):
    base = PoolSettings(pool, block_length=2, candidates=4, temperature=1.5, beam_width=12, rows=8, key=b"key")
    return dataclasses.replace(base, **changes)


def grow(lm, pool="top", prompts=PROMPTS, batch_size=4, **options):
    return grow_tree(lm, prompts, settings(pool), blocks=2, batch_size=batch_size, **options)


def test_every_state_has_the_law_of_its_context(lm):
    tree = grow(lm).tree
    contexts = [[LETTERS.index(letter.encode()) for letter in prompt] for prompt in PROMPTS]
    for number, block in enumerate(tree.blocks):
        assert len(contexts) == len(block.cover)
        following = {}
        for state, context in enumerate(contexts):
            law = brute_force(lm, len(LETTERS), context, 2, 1.5)
            best = sorted(law, key=law.get, reverse=True)[:4]
            assert sorted(map(tuple, block.tokens[state].tolist())) == sorted(best)
            for candidate, tokens in enumerate(map(tuple, block.tokens[state].tolist())):
                assert block.log2_prob[state, candidate] == pytest.approx(law[tokens], abs=1e-4)
                assert block.text[state][candidate] == b"".join(LETTERS[token] for token in tokens)
                following[block.child[state, candidate]] = [*context, *tokens]
            assert block.retained[state] == pytest.approx(sum(2 ** law[tokens] for tokens in best), abs=1e-4)
        contexts = [following[child] for child in sorted(following)] if number == 0 else []
    check_tree(tree)
    assert tree.prior.tolist() == [1 / 6] * 6
    assert tree.prompts == PROMPTS
    assert tree.meta.context_length == len("fade") + 2


def test_equal_texts_have_equal_symbols_in_all_states(lm):
    for block in grow(lm).tree.blocks:
        names = {}
        for row, symbols in zip(block.text, block.symbol.tolist(), strict=True):
            for text, symbol in zip(row, symbols, strict=True):
                assert names.setdefault(text, symbol) == symbol
        assert sorted(names.values()) == list(range(len(names)))


def test_short_pools_are_padded_and_lead_nowhere(lm):
    tree = grow(lm, "sampled").tree
    first = tree.blocks[0]
    padded = first.tokens[:, :, 0] < 0
    assert padded.any()
    assert (first.cover[padded] == 0).all()
    assert (first.child[padded] == -1).all()
    assert (first.symbol[padded] == -1).all()
    assert (first.log2_prob[padded] == -np.inf).all()
    assert (first.child[~padded] >= 0).all()
    assert [reach.sum() for reach in state_reach(tree)] == pytest.approx([1, 1])


@pytest.mark.parametrize("pool", ["top", "sampled"])
def test_the_tree_does_not_depend_on_the_batch_size(lm, pool):
    fingerprints = {grow(lm, pool, batch_size=size).tree.fingerprint for size in (1, 2, 3, 7, 100)}
    assert len(fingerprints) == 1


def test_the_tree_depends_on_what_it_should(lm):
    base = grow(lm).tree.fingerprint
    assert base != grow(lm, prompts=PROMPTS[:-1]).tree.fingerprint
    for change in ({"temperature": 2.0}, {"candidates": 3}, {"beam_width": 13}):
        other = grow_tree(lm, PROMPTS, settings(**change), blocks=2, batch_size=4)
        assert other.tree.fingerprint != base


class InterruptionError(Exception):
    pass


@pytest.mark.parametrize("pool", ["top", "sampled"])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_an_interrupted_build_goes_on_to_the_same_tree(lm, tmp_path, pool, stop):
    finished = []

    def interrupt(states, flops):
        finished.append(states)
        if len(finished) > stop:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        grow(lm, pool, parts=tmp_path / "parts", batch_size=3, report=interrupt)
    resumed = []
    tree = grow(lm, pool, parts=tmp_path / "parts", report=lambda states, flops: resumed.append(states)).tree
    assert tree.fingerprint == grow(lm, pool).tree.fingerprint
    assert resumed[0] > 0


def test_finished_batches_of_another_law_are_made_again(lm, tmp_path):
    parts = tmp_path / "parts"
    grow(lm, parts=parts)
    before = set(parts.iterdir())
    other = grow_tree(lm, PROMPTS, settings(temperature=2.5), blocks=2, batch_size=4, parts=parts).tree
    assert (
        other.fingerprint == grow_tree(lm, PROMPTS, settings(temperature=2.5), blocks=2, batch_size=9).tree.fingerprint
    )
    for path in parts.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert grow(lm, parts=parts).tree.fingerprint == grow(lm).tree.fingerprint
    assert set(parts.iterdir()) == before


def test_batches_are_of_equal_length_without_repetition():
    contexts = [(1, 2), (3,), (1, 2), (4, 5), (6, 7), (8,)]
    assert list(batches(contexts, 2)) == [[(3,), (8,)], [(1, 2), (4, 5)], [(6, 7)]]


def test_flops_are_those_that_torch_counts(lm):
    canvas = torch.zeros((3, 11), dtype=torch.int64)
    # torch's counter leaves the fused attention of the CPU out; write it out in matrix products.
    lm.network.set_attn_implementation("eager")
    try:
        with FlopCounterMode(display=False) as counter:
            lm.log2_probs(canvas, 5, 1.0)
    finally:
        lm.network.set_attn_implementation("llada_sdpa")
    rotary = counter.get_total_flops() - 3 * canvas_flops(lm, 11)
    assert abs(rotary) <= 0.01 * counter.get_total_flops()


def test_cost_counts_the_canvases_that_are_run(lm, monkeypatch):
    rows = []
    forward = type(lm).log2_probs
    monkeypatch.setattr(
        type(lm), "log2_probs", lambda self, canvas, *rest: rows.append(len(canvas)) or forward(self, canvas, *rest)
    )
    different = PROMPTS[:-1]
    cost = estimate(lm, encode_prompts(lm, different, 4), settings(), blocks=2, batch_size=4)
    grow(lm, prompts=different)
    assert (cost.states, cost.canvases) == (5 + 20, sum(rows))
    assert set(rows) == {8}


def run(*arguments):
    return main([str(argument) for argument in arguments])


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
        (["--device", "cuda:99"], "device 'cuda:99'"),
        (["--device", "nonsense"], "device 'nonsense'"),
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
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"] * (processes > 1)
    return [
        sys.executable,
        *["-m"] * (processes > 1),
        *launcher,
        *["-m"] * (processes == 1),
        "wm_env.lm.build",
        *arguments,
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_command_goes_on(many, tmp_path, processes):
    out, whole = tmp_path / "tree", tmp_path / "whole"
    process = subprocess.Popen(
        command(processes, *many, "--out", str(out)), stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(parts_folder(out).glob("*.safetensors"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    left = len(list(parts_folder(out).glob("*.safetensors")))
    assert 3 <= left < 120
    assert subprocess.run(command(processes, *many, "--out", str(out)), check=False).returncode == 0
    assert main([*many[:-2], "--temperature", "1.5", "--out", str(whole), "--batch-size", "9"]) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not parts_folder(out).exists()


def test_two_builds_do_not_write_one_tree(many, tmp_path, capsys):
    out = tmp_path / "tree"
    parts_folder(out).mkdir()
    with locked_folder(parts_folder(out), "wait"):
        assert main([*many, "--out", str(out)]) == 1
    assert capsys.readouterr().err.endswith(
        f"error: {parts_folder(out)} is in use by another process: wait for that build, or choose another --out\n"
    )
    assert main([*many, "--out", str(out)]) == 0
    assert not parts_folder(out).exists()


def test_an_error_in_one_of_two_processes_is_told_once_and_ends_both(many, tmp_path):
    arguments = command(2, *many, "--out", str(tmp_path / "tree"), "--beam-width", "1")
    process = subprocess.run(arguments, capture_output=True, text=True, check=False)
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


def test_rows_are_halved_when_memory_runs_out_and_kept_when_a_build_goes_on(lm, prompt_file, tmp_path, model, capsys):
    options = BuildOptions(
        tmp_path / "tree", model, prompt_file, block_length=2, candidates=4, temperature=1.5, beam_width=12
    )
    plan = prepare(options)
    grown = build(dataclasses.replace(plan, lm=short_of_memory(lm, 3)), Crew())
    assert grown.tree.meta.rows == 2
    told = capsys.readouterr()
    assert "out of memory with passes of 8 canvases: all states are made again in passes of 4" in told.err
    assert told.err.count("out of memory") == 2
    with pytest.raises(torch.OutOfMemoryError):
        build(dataclasses.replace(plan, lm=short_of_memory(lm, 0)), Crew())
    given = prepare(dataclasses.replace(options, rows=8))
    with pytest.raises(torch.OutOfMemoryError):
        build(dataclasses.replace(given, lm=short_of_memory(lm, 3)), Crew())

    parts = parts_folder(options.out)
    grow_tree(lm, PROMPTS[:2], dataclasses.replace(plan.settings, rows=5), blocks=1, batch_size=4, parts=parts)
    assert with_rows(plan, Crew()).settings.rows == 5
    assert with_rows(given, Crew()).settings.rows == 8
    other = prepare(dataclasses.replace(options, temperature=2.0))
    assert with_rows(other, Crew()).settings.rows == 8


def test_processes_that_compute_differently_do_not_build_one_tree(lm, tmp_path):
    store = HashStore()
    Crew(0, 2, store).agree("law", json.dumps(pool_law(lm, settings(temperature=2.5))))
    with pytest.raises(ValueError, match=r"process 1 has temperature 1\.5, process 0 has 2\.5"):
        grow(lm, parts=tmp_path / "parts", crew=Crew(1, 2, store))
    with pytest.raises(ValueError, match="need a folder"):
        grow(lm, crew=Crew(1, 2, store))


def test_a_part_that_another_machine_cannot_see_is_named(lm, tmp_path):
    store = HashStore()
    other = Crew(1, 2, store)
    # The other process takes all the work and says that it is done.
    other.add("block 0", 100)
    for when in ("start", "block 0"):
        other.add(f"{when}: all written", 1)
        other.add(f"{when}: all read", 1)
    with pytest.raises(ValueError, match="folder that all machines share"):
        grow(lm, parts=tmp_path / "parts", crew=Crew(0, 2, store))


def test_passes_are_filled_by_the_states_that_follow_a_state(lm):
    plain = settings()
    assert [plain.rows_at(step) for step in (0, 1)] == [8, 8]
    wide = dataclasses.replace(plain, candidates=20, beam_width=24, rows=480, block_length=8)
    assert [wide.rows_at(step) for step in (0, 1, 7)] == [24, 480, 480]
    assert (wide.at_block(0).rows, wide.at_block(1).rows) == (24, 480)
    assert rows_that_fit(lm, wide, 72) == 8


def test_importing_the_package_does_not_import_language_models():
    code = "import sys, wm_env; sys.exit(any(name.startswith(('transformers', 'wm_env.lm')) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_shipped_tree_belongs_to_the_shipped_model():
    tree, lm = shipped_tree(), load_lm("mini")
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
    tree, lm = shipped_tree(), load_lm("mini")
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


def test_interrupted_command_ends_with_one_line(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("wm_env.lm.builder.prepare", interrupt)
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
