"""The marks of `benchmarks/mark_schemes`: each keeps the law it says it keeps, and reads what it wrote."""

import numpy as np
import pytest
import torch
from mark_edits import EDIT_BY_NAME, edited, overlap
from mark_schemes.door import from_symbols, payload_of, to_symbols
from mark_schemes.hashing import uniforms, words_of
from mark_schemes.ours import SETTINGS, key_of
from mark_schemes.pseudorandom_code import Code
from mark_texts import CONTEXT, MarkText, held_out_prompts, marks, text_of, tokenizer, write_batch

from polar.text.schemes.robust.processor import CovertWatermark
from polar.text.schemes.robust.sampling import Sampling, write_forward
from polar.text.schemes.robust.words import as_letters
from polar.text.schemes.robust.writer import Writer
from wm_env.lm.models.load import load_lm
from wm_env.lm.prompts import read_prompts

VOCABULARY = 8192


def word_ids():
    strings = as_letters(tokenizer().strings)
    return np.array(sorted(t for t, s in strings.items() if s[:1] == " " and s[1:].islower() and len(s) > 2))


def some_law(rng, size=300):
    law = np.zeros(VOCABULARY)
    law[rng.choice(word_ids(), size, replace=False)] = rng.exponential(size=size) ** 2
    return law / law.sum()


def write(mark, number, length, key=1):
    rng = np.random.default_rng(number)
    chooser = mark.chooser(key, number, payload_of(number), length)
    return [chooser.choose(some_law(rng)) for _ in range(length)]


@pytest.mark.parametrize("name", [name for name in marks() if name != "plain"])
def test_a_mark_reads_what_it_wrote(name):
    mark = marks()[name]
    right = []
    for number in range(2):
        found = mark.read(1, number, text_of(write(mark, number, 200)), 200)
        right.append((found.bits == payload_of(number)).mean())
    # Marks that vote bit by bit lose some; none is near guessing, which is 1/2.
    assert np.mean(right) > (0.85 if name in ("MPAC", "StealthInk-type") else 0.99)


@pytest.mark.parametrize("name", [name for name, mark in marks().items() if mark.unbiased and name != "plain"])
def test_unbiased_marks_keep_the_law_over_the_key(name):
    mark = marks()[name]
    tokens = word_ids()[:6]
    law = np.zeros(VOCABULARY)
    law[tokens] = [0.4, 0.25, 0.15, 0.1, 0.07, 0.03]
    rng = np.random.default_rng(5)
    counts = np.zeros(VOCABULARY)
    rounds = 400
    for key in range(1, rounds + 1):
        chooser = mark.chooser(key % 256, key, payload_of(3), 40)
        # The first tokens may have no context and be plain draws: the third one is the mark's.
        for _ in range(2):
            chooser.choose(some_law(rng))
        counts[chooser.choose(law)] += 1
    assert counts.sum() == counts[tokens].sum()
    excess = counts[tokens] - rounds * law[tokens]
    # Chi-square of 5 degrees of freedom exceeds 25.7 with probability 1e-4.
    assert (excess**2 / (rounds * law[tokens])).sum() < 25.7


def test_the_writer_of_the_comparison_is_the_product():
    lm = load_lm("mini", arithmetic="float")
    numbers, prompts = [0, 1, 2], held_out_prompts()
    written = write_batch(lm, marks()["robust"], 0.7, 6, numbers, prompts)
    letters = as_letters(lm.text_tokenizer.strings)
    contexts = np.array([lm.encode(prompts[number])[:CONTEXT] for number in numbers])
    writers = [Writer(key_of(1), payload_of(number), number, SETTINGS, letters) for number in numbers]
    with torch.no_grad():
        tokens = write_forward(lm, contexts, writers, 6, Sampling(0.7))
    assert [text.tokens for text in written] == tokens.tolist()
    # The processor for transformers chooses the same first token from the same logits.
    canvas = torch.tensor([[*contexts[0].tolist(), *[lm.mask_id] * 8]])
    scores = (lm.log2_probs(canvas, CONTEXT, 1.0) * np.log(2)).float()
    mark = CovertWatermark(key_of(1), payload_of(0), 0, lm.text_tokenizer, SETTINGS, temperature=0.7)
    assert int(mark(canvas[:, :CONTEXT], scores).argmax()) == tokens[0, 0]
    mass = 2.0 ** np.array([text.log2_mass for text in written])
    assert ((mass > 0) & (mass <= 1)).all()


def test_no_prompt_of_the_comparison_is_shipped_or_short():
    prompts = held_out_prompts()
    assert len(set(prompts)) == 200
    assert not set(prompts) & set(read_prompts("shipped"))
    assert min(len(tokenizer().encode(prompt)) for prompt in prompts) >= CONTEXT


def test_symbols_of_a_payload_come_back():
    payload = payload_of(7)
    for sizes in ([2] * 16, [11, 11, 10], [8] * 4):
        assert from_symbols(to_symbols(payload, sizes), sizes).tolist() == payload


def test_codewords_satisfy_their_checks_and_survive_flips():
    code = Code(1, 200)
    word = code.codeword(payload_of(0))
    assert code.agreement(1.0 - 2 * word) == pytest.approx(np.sqrt(168))
    flipped = word ^ (np.random.default_rng(0).random(200) < 0.05)
    assert code.decode((1.0 - 2 * flipped) * 2).tolist() == payload_of(0)


def test_keyed_numbers_are_uniform():
    numbers = np.sort(uniforms(words_of(12345, np.arange(4000))))
    # Kolmogorov-Smirnov: sqrt(n) D exceeds 2.2 with probability 1e-4.
    assert np.abs(numbers - (np.arange(4000) + 0.5) / 4000).max() < 2.2 / np.sqrt(4000)


def test_edits_do_what_they_say():
    tokens = tokenizer().encode(" The mayor of the town said on Monday that it would rain. Nobody believed him." * 12)
    text = MarkText("plain", 1.0, len(tokens), 0, tokens, [], [], 0.0, [])
    plain = text_of(tokens).split()
    changed = {name: edited(text, edit, "one two three four " * 200)[0] for name, edit in EDIT_BY_NAME.items()}
    assert changed["none"].split() == plain
    replaced = changed["20 % replaced"].split()
    assert 0.08 < np.mean([a != b for a, b in zip(replaced, plain, strict=True)]) < 0.32
    assert sorted(changed["sentences moved"].split()) == sorted(plain)
    assert len(changed["half cut off"].split()) == pytest.approx(len(plain) / 2, abs=2)
    mixed, span = edited(text, EDIT_BY_NAME["inside 2000 tokens"], "one two three four " * 200)
    assert mixed[span.start : span.stop] == text_of(tokens).strip()
    assert overlap([(span.start, span.stop)], span) == 1
