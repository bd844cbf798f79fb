"""A live evaluation on a tiny model: scores, laws and decoders against brute force, files, and what is refused."""

import dataclasses
import json
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from ascii_lm import write_ascii_lm
from scipy.stats import chisquare
from small_laws import random_law
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_lm import brute_force, write_lm

from agents.planner.adaptive import plan_adaptive
from polar import evaluate as command
from polar.code.codec import code_channel
from polar.evaluation.edits import edited_error_rates
from polar.evaluation.live.measures import exact_auc, measure_rounds
from polar.evaluation.live.reading import (
    decoding_tables,
    edited_tables,
    log2_law,
    read_edited_text,
    read_run_text,
    tree_readings,
)
from polar.evaluation.live.report import marked_sample, save_transmissions
from polar.evaluation.live.rounds import play_rounds
from polar.evaluation.live.run import evaluate_live, play_until_interrupted
from polar.evaluation.live.session import Session, open_session
from polar.evaluation.live.texts import Continuation, KeyedPools, TreeTextWriter, cover_paths, keyed_text, run_paths
from polar.evaluation.settings import EvaluationSettings
from wm_env.common.files import write_json
from wm_env.common.intervals import mean_interval
from wm_env.law import save_law
from wm_env.lm.build.states import grow_tree
from wm_env.lm.models.load import load_lm
from wm_env.lm.pools.settings import PoolSettings
from wm_env.lm.text import token_bytes
from wm_env.runs import load_run
from wm_env.tree import load_tree, save_tree

PROMPTS = ("the tide", "another day", "here")
SETTINGS = EvaluationSettings((2,), decoder=("sc", "map"), texts=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_ascii_lm(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A run folder: 3 prompts, 2 blocks of 2 tokens, 6 candidates, a random law of 4 labels."""
    place = tmp_path_factory.mktemp("run")
    settings = PoolSettings("top", 2, 6, 1.5, 8, 8)
    tree = grow_tree(load_lm(folder), PROMPTS, settings, blocks=2, batch_size=4).tree
    save_tree(tree, place / "tree.safetensors")
    save_law(random_law(tree, 4, 0), place / "law.safetensors")
    return place


@pytest.fixture(scope="module")
def session(folder, run) -> Session:
    return open_session(load_run(run), dataclasses.replace(SETTINGS, model=str(folder)))


def plain_bits(lm, context, tokens, length, temperature):
    """-log2 of the chain rule: a whole forward pass in floats and an own softmax for every token."""
    network = load_lm(lm.name, arithmetic="float").network
    total = 0.0
    for place, token in enumerate(tokens):
        begun = place - place % length
        canvas = [*context, *tokens[:place], *[lm.mask_id] * (begun + length - place)]
        logits = network(torch.tensor([canvas]), use_cache=False).logits[0, len(context) + place].double()
        weights = np.exp(logits.masked_fill(lm.banned, -math.inf).numpy() / temperature)
        total -= math.log2(weights[token] / weights.sum())
    return total


def test_texts_of_the_tree_are_scored_by_the_chain_rule(session):
    rng = np.random.default_rng(0)
    paths = cover_paths(session.tree, np.array([0, 2]), rng)
    text = session.writer.along_path(session.tree, "cover", paths, 1, session.contexts[2])
    tokens = [t for n in range(2) for t in session.tree.blocks[n].tokens[paths.state[1, n], paths.candidate[1, n]]]
    for bits, temperature in ((text.bits, 1.5), (text.natural_bits, 1.0)):
        expected = plain_bits(session.writer.lm, session.contexts[2], [int(t) for t in tokens], 2, temperature)
        assert bits == pytest.approx(expected, abs=1e-4)
    assert text.text == session.tree.blocks[0].text[2][paths.candidate[1, 0]] + text.blocks[1]


@pytest.mark.parametrize("kind", ["model", "keyed"])
def test_plain_and_keyed_texts_have_the_law_of_the_model(tmp_path, kind):
    lm = load_lm(write_lm(tmp_path, scale=1.0))
    writer = TreeTextWriter(lm, token_bytes(lm.tokenizer), 2, 1, 2.0)
    context = (0, 1)
    law = Counter()
    for tokens, score in brute_force(lm, 6, list(context), 2, 2.0).items():
        string = b"".join(writer.vocabulary[token] for token in tokens)
        try:
            string.decode()
        except UnicodeDecodeError:
            continue  # half a character: nobody can send it
        law[string] += 2.0**score
    total = sum(law.values())
    assert total < 1
    rng = np.random.default_rng(1)
    draws = 400
    if kind == "model":
        texts = [writer.plain(0, context, rng).text for _ in range(draws)]
    else:
        keys = [f"{number}".encode() for number in range(draws)]
        texts = [keyed_text(writer, KeyedPools(writer, 8, key), 0, context, rng).text for key in keys]
    seen = Counter(texts)
    assert set(seen) <= set(law)
    expected = np.array([draws * law[name] / total for name in sorted(law)])
    counts = np.array([seen[name] for name in sorted(law)])
    rare = expected < 5
    result = chisquare(np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum()))
    assert result.pvalue > 1e-3


def test_readers_of_run_texts_decide_as_a_sum_over_everything_that_fits(session):
    """MAP along the path, for texts with one reading: the word with most mass over all states that spell the same."""
    tree, rng = session.tree, np.random.default_rng(3)
    paths = run_paths(tree, session.law, session.codes, rng.integers(3, size=60), rng)
    tables = decoding_tables(session)
    channels = [
        code_channel(b, c.codes[-1]).numpy()[:, :, 0] for b, c in zip(session.law.blocks, session.codes, strict=True)
    ]
    z = [block.state_probs.numpy() for block in session.law.blocks]
    checked = 0
    for row in range(60):
        strings = [tree.blocks[n].text[paths.state[row, n]][paths.candidate[row, n]] for n in range(2)]
        received = read_run_text(session, b"".join(strings), paths.key[row], tables)
        assert received.matched == 2
        assert received.readings >= 1
        if received.readings > 1:
            continue
        checked += 1
        first, second = np.zeros(4), np.zeros(4)
        for prompt in range(3):
            for x, string in enumerate(tree.blocks[0].text[prompt]):
                if string != strings[0]:
                    continue
                first += z[0][prompt] * channels[0][prompt, :, x]
                state = tree.blocks[0].child[prompt, x]
                for y, following in enumerate(tree.blocks[1].text[state]):
                    if following == strings[1]:
                        second += z[1][state] * channels[1][state, :, y]
        words = [int(mass.argmax()) ^ int(key) for mass, key in zip((first, second), paths.key[row], strict=True)]
        assert received.messages["map", "path"] == tuple(words)
    assert checked > 20


def test_a_text_that_is_not_of_the_tree_is_not_matched(session):
    tables = decoding_tables(session)
    received = read_run_text(session, b"\xff no such text", np.zeros(2, dtype=np.int64), tables)
    assert (received.matched, received.readings) == (0, 0)
    assert log2_law(session.tree, session.coded, 0, b"\xff no such text") == -math.inf
    first = session.tree.blocks[0].text[0][0]
    assert tree_readings(session.tree, first + b"\xff", range(3)) == ([], 1)


def test_the_laws_of_texts_sum_to_one_and_give_the_exact_area(session):
    tree = session.tree
    covers = [block.cover for block in tree.blocks]
    for prompt in range(3):
        texts = {
            first + second
            for x, first in enumerate(tree.blocks[0].text[prompt])
            for second in tree.blocks[1].text[tree.blocks[0].child[prompt, x]]
        }
        assert sum(2.0 ** log2_law(tree, session.coded, prompt, text) for text in texts) == pytest.approx(1)
        assert sum(2.0 ** log2_law(tree, covers, prompt, text) for text in texts) == pytest.approx(1)
    marked, plain = [], []
    for prompt in range(3):
        for x in range(6):
            state = tree.blocks[0].child[prompt, x]
            for y in range(6):
                marked.append(session.coded[0][prompt, x] * session.coded[1][state, y] / 3)
                plain.append(covers[0][prompt, x] * covers[1][state, y] / 3)
    ratio = np.array(marked) / np.array(plain)
    wins = (ratio[:, None] > ratio + 1e-9) + 0.5 * (abs(ratio[:, None] - ratio) <= 1e-9)
    area = np.array(marked) @ wins @ np.array(plain)
    assert exact_auc(tree, session.coded) == pytest.approx(area, abs=1e-6)


def test_measures_of_rounds_are_counts_over_their_texts(session):
    rounds = list(play_rounds(session))
    live = measure_rounds(session, rounds)
    assert len(rounds) == 6
    keyed = next(row for row in live.errors if row.texts == "keyed")
    assert (keyed.ber, keyed.unmatched) == (0.0, 0)
    for row in (row for row in live.errors if row.texts == "run"):
        wrong = 0
        for played in rounds:
            read = played.run_received.messages[row.decoder, row.state_knowledge]
            wrong += sum(bin(a ^ b).count("1") for a, b in zip(played.run.message, read, strict=True))
        assert row.ber == pytest.approx(wrong / (6 * 2 * 2))
        assert row.ber_ci95[0] <= row.ber <= row.ber_ci95[1]
    for measured in live.likelihoods:
        texts = [getattr(played, measured.texts) for played in rounds]
        bits = [(text.bits if measured.temperature == 1.5 else text.natural_bits) / 4 for text in texts]
        assert measured.bits_per_token == pytest.approx(np.mean(bits))
        assert measured.perplexity == pytest.approx(2 ** np.mean(bits))
        assert measured.bits_per_token_ci95 == pytest.approx(mean_interval(bits)[1])
    assert len(live.likelihoods) == 8
    against_model = live.detections[0]
    scores = {
        kind: [getattr(played, kind).bits + played.log2_marked[kind] for played in rounds] for kind in ("run", "model")
    }
    wins = [(a > b) + 0.5 * (a == b) for a in scores["run"] for b in scores["model"]]
    assert (against_model.score, against_model.auc) == ("likelihood ratio", pytest.approx(np.mean(wins)))
    for detection in live.detections:
        if detection.auc_exact is not None:
            assert detection.auc_exact <= detection.auc_bound + 1e-9


def test_of_a_sampled_tree_the_observer_knows_no_pools(session):
    tree = dataclasses.replace(session.tree, meta=dataclasses.replace(session.tree.meta, pool="sampled"))
    sampled = dataclasses.replace(session, tree=tree)
    rounds = list(play_rounds(sampled))
    rows = measure_rounds(sampled, rounds).detections
    assert ("run", "model", "likelihood ratio") not in {(row.marked, row.plain, row.score) for row in rows}
    # Averaged over keys the tree is the model, so what the code costs on the tree is all there is to see.
    distances = {row.plain: row.tv for row in rows if row.marked == "run"}
    assert distances["model"] == distances["cover"] < 1


def test_the_command_writes_figures_texts_and_samples(folder, run, tmp_path, capsys):
    arguments = [str(run), "--live", "--texts", "3", "--model", str(folder), "--out", str(tmp_path / "out")]
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "canvases" in printed.splitlines()[0]
    legend = printed.partition("What the columns mean")[2].partition("A text of each kind")[0]
    for heading in ("Messages read", "Observers"):
        titles = printed.partition(heading)[2].splitlines()[1].strip()
        for column in {title.partition(",")[0] for title in re.split("  +", titles)} - {
            "texts",
            "watermarked",
            "plain",
        }:
            assert re.search(rf"(^|[,;] ){re.escape(column)}([ ,:;]|$)", legend, re.MULTILINE), column
    assert "Likelihood" in printed
    assert "over its budget" not in printed
    found = json.loads((tmp_path / "out" / "live.json").read_text())
    assert found["texts"] == 3
    lines = [json.loads(line) for line in (run / "transmissions.jsonl").read_text().splitlines()]
    assert Counter(line["texts"] for line in lines) == {"run": 3, "keyed": 3, "model": 3, "cover": 3}
    sent = next(line for line in lines if line["texts"] == "keyed")
    assert sent["read"]["text path"] == sent["sent"]
    assert len(sent["blocks"]) == 2
    events = EventAccumulator(str(run))
    events.Reload()
    shown = events.Tensors("live/keyed/text_summary")[0].tensor_proto.string_val[0].decode()
    marked = f"⟦{sent['blocks'][0]}⟧{sent['sent'][0]}".replace("\n", "⏎")
    assert marked in shown
    printed_texts = printed.partition("A text of each kind")[2].splitlines()[1:5]
    assert [line.split()[0] for line in printed_texts] == ["run", "keyed", "model", "cover"]
    assert marked in printed_texts[1]
    for line, kind in zip(printed_texts, ("run", "keyed", "model", "cover"), strict=True):
        blocks = next(line for line in lines if line["texts"] == kind)["blocks"]
        assert re.sub(r"⟧[01]*", "", line.partition("⟦")[2]).replace("⏎", "\n") == "⟦".join(blocks)


def test_the_surprise_of_a_text_has_a_name_of_its_own(session, tmp_path):
    """The name "bits" alone could be that of the message."""
    rounds = [next(play_rounds(session))]
    save_transmissions(session, rounds, tmp_path / "texts.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert not {"bits", "bits_at_temperature_1"} & set(lines[0])
    for line in lines:
        text = getattr(rounds[0], line["texts"])
        assert line["surprise_bits"] == text.bits
        assert line["surprise_bits_at_temperature_1"] == text.natural_bits


def test_a_sample_is_one_printable_line(session):
    text = Continuation("model", 0, (b"a\nb", b"\x1b[2J\tc"), 1.0, 1.0, (0, 0), (0, 0))
    assert marked_sample(session, text).endswith(r"⟦a⏎b⟧⟦\x1b[2J\tc⟧")


def test_the_exact_evaluation_and_the_live_one_meet_in_results_json(folder, run, tmp_path):
    exact = [str(run), "--out", str(tmp_path), "--transmissions", "0", "--keys", "4", "--message-bits", "2"]
    live = [str(run), "--out", str(tmp_path), "--live", "--texts", "2", "--model", str(folder)]
    assert command.main(exact) == 0
    assert json.loads((tmp_path / "results.json").read_text())["live"] is None
    assert command.main(live) == 0
    found = json.loads((tmp_path / "live.json").read_text())
    assert json.loads((tmp_path / "results.json").read_text())["live"] == found
    assert command.main(exact) == 0
    assert json.loads((tmp_path / "results.json").read_text())["live"] == found


@pytest.mark.parametrize(("epsilon", "dither_bits"), [(0.05, 0), (0.05, 3)])
def test_lengths_that_follow_the_state_are_read_from_text(folder, run, tmp_path, capsys, epsilon, dither_bits):
    """A law of the planner: every block is read with the length of its state, without error, from bytes."""
    tree = load_tree(run / "tree.safetensors")
    plan = plan_adaptive(tree, epsilon, dither_bits=dither_bits)
    assert len({int(bits) for lengths in plan.lengths for bits in lengths}) > 1
    save_tree(tree, tmp_path / "tree.safetensors")
    save_law(plan.law, tmp_path / "law.safetensors")
    write_json(tmp_path / "config.json", {"settings": {"message_bits": "auto", "dither_bits": dither_bits}})
    arguments = [str(tmp_path), "--live", "--texts", "12", "--model", str(folder), "--out", str(tmp_path / "out")]
    assert command.main(arguments) == 0
    assert f"{plan.bits / 2:.3g} bits per block" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "live.json").read_text())
    assert found["message_bits"] == "auto"
    errors = {row["texts"]: row for row in found["errors"]}
    assert (errors["run"]["decoder"], errors["run"]["ber"], errors["run"]["unmatched"]) == ("auto", 0.0, 0)
    lines = [json.loads(line) for line in (tmp_path / "transmissions.jsonl").read_text().splitlines()]
    marked = [line for line in lines if line["texts"] == "run"]
    strings = [
        {(tree.blocks[0].text[row][x]): int(plan.lengths[1][tree.blocks[0].child[row, x]]) for x in range(6)}
        for row in range(3)
    ]
    for line in marked:
        row = tree.prompts.index(line["prompt"])
        lengths = int(plan.lengths[0][row]), strings[row][line["blocks"][0].encode()]
        assert [len(word) for word in line["sent"]] == list(lengths)
        assert line["read"]["auto path"] == line["sent"]
    assert len({len(word) for line in marked for word in line["sent"]}) > 1


def test_another_length_counts_as_a_wrong_block(session):
    """Two blocks of two bits: right, one of one bit or none, and one wrong bit."""
    played = next(play_rounds(session))
    who = ("auto", "path")
    run = dataclasses.replace(played.run, message=(1, 2), message_bits=(2, 2))
    for read, bits, wrong in (
        ((1, 2), (2, 2), 0.0),
        ((1, 0), (2, 1), 0.5),
        ((1, 2), (2, 0), 0.5),
        ((3, 2), (2, 2), 0.25),
    ):
        received = dataclasses.replace(played.run_received, messages={who: read}, message_bits={who: bits})
        rounds = [dataclasses.replace(played, run=run, run_received=received)] * 2
        row = next(row for row in measure_rounds(session, rounds).errors if row.texts == "run")
        assert (row.decoder, row.ber) == ("auto", wrong)


def test_another_model_than_the_trees_is_named_with_it(run, tmp_path, capsys):
    other = write_ascii_lm(tmp_path / "other", scale=0.6)
    assert command.main([str(run), "--live", "--model", str(other)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for name in (str(run), str(other), load_lm(other).fingerprint[:12]):
        assert name in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts", "1"], "2 to 1000000 are possible"),
        (["--texts", "99999999999"], "2 to 1000000 are possible"),
        (["--message-bits", "3"], "1 to 2"),
        (["--message-bits", "1", "2"], "one number"),
        (["--decoder", "guess"], "decoder='guess': choose one of"),
        (["--message-bits", "auto"], "no state"),
        (["--message-bits", "auto", "--auto-tv", "nan"], "probabilities"),
        (["--keys", "4"], "--keys only counts without --live"),
        (["--transmissions", "0"], "--transmissions only counts without --live"),
    ],
)
def test_requests_that_cannot_be_met(folder, run, capsys, arguments, message):
    assert command.main([str(run), "--live", "--model", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float33", "Tensor", "exact-0 w24", ["float32"]])
def test_a_tree_of_an_unknown_number_format_is_refused(folder, run, dtype):
    found = load_run(run)
    tree = dataclasses.replace(found.tree, meta=dataclasses.replace(found.tree.meta, dtype=dtype))
    with pytest.raises(ValueError, match=re.escape(f"{run} says that its model computed in {dtype!r}")):
        open_session(dataclasses.replace(found, tree=tree), dataclasses.replace(SETTINGS, model=str(folder)))


def test_results_that_cannot_take_the_live_figures_are_told_before_the_texts(folder, run, tmp_path, capsys):
    (tmp_path / "results.json").write_text("{")
    arguments = [str(run), "--live", "--texts", "2", "--model", str(folder), "--out", str(tmp_path)]
    assert command.main(arguments) == 2
    printed = capsys.readouterr()
    assert str(tmp_path / "results.json") in printed.err
    assert "canvases" not in printed.out
    assert not (tmp_path / "live.json").exists()


def test_what_was_finished_before_an_interrupt_counts(session, run, tmp_path, capsys):
    lm, calls = session.writer.lm, 0

    def interrupted(network, canvas, position):
        nonlocal calls
        calls += 1
        if calls > 70:
            raise KeyboardInterrupt
        return lm.logits_at(network, canvas, position)

    writer = dataclasses.replace(session.writer, lm=dataclasses.replace(lm, logits_at=interrupted))
    rounds = play_until_interrupted(dataclasses.replace(session, writer=writer))
    assert 2 <= len(rounds) < 6
    assert f"{len(rounds)} of 6" in capsys.readouterr().out
    calls = 60
    with pytest.raises(KeyboardInterrupt):
        play_until_interrupted(dataclasses.replace(session, writer=writer))


def test_a_damaged_run_is_refused_before_the_model_is_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such run"):
        evaluate_live(tmp_path / "nowhere", tmp_path, dataclasses.replace(SETTINGS, model="no-model"))


def test_edited_texts_are_read_as_often_wrongly_as_the_exact_figures_say(folder, run):
    """Texts enough for an interval: the rates after edits against the enumeration."""
    settings = dataclasses.replace(SETTINGS, model=str(folder), channel="erasure", noise=0.3)
    session = open_session(load_run(run), settings)
    rng = np.random.default_rng(0)
    count = 4000
    paths = run_paths(session.tree, session.law, session.codes, rng.choice(3, count, p=session.tree.prior), rng)
    tables = edited_tables(session)
    read = [read_edited_text(session, paths, row, tables, rng) for row in range(count)]
    for decoder in ("sc", "map"):
        found = np.array([text[f"{decoder}, edited", "marginal"] for text in read])
        wrong = (found != paths.message).mean()
        codes = [code.codes[-1] for code in session.codes]
        exact = edited_error_rates(session.law, codes, session.channels, decoder)[1]
        assert abs(wrong - exact) < 4 * math.sqrt(exact * (1 - exact) / count)
    played = next(play_rounds(session))
    assert set(played.run_received.messages) >= {("map, edited", "marginal"), ("map", "path")}
