import dataclasses
import itertools
import re
import shutil

import numpy as np
import pytest
from ascii_lm import LETTERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare
from tiny_lm import write_lm

from polar.__main__ import main
from polar.text.channel import open_channel
from polar.text.decoding import decode, decode_with_tokenizer
from polar.text.embedding import embed, embed_with_retries
from polar.text.framing import BitString, frame_bits
from polar.text.keys.derivation import MessageKeys, message_keys
from polar.text.keys.key import Key, save_key
from polar.text.scheme import Writing
from polar.text.schemes.parallel import Parallel, writing
from polar.text.schemes.parallel.reading import message_mask
from polar.text.schemes.parallel.writing import (
    PLAIN_DRAWS,
    Fitness,
    Pen,
    step_marginals,
    unfit_draws,
    uniforms,
)
from polar.text.settings import LawSettings, Limits, Settings
from wm_env.lm.models import load
from wm_env.lm.models.load import load_lm
from wm_env.lm.tokenizer import read_text_tokenizer

KEY = Key(bytes(range(32)))
SCHEME = Parallel(positions=8, hash_bits=2, effective_tokens=8.0, bit_error=0.05)
LAW = LawSettings(temperature=1.0)
PARALLEL = Settings(SCHEME, LAW)
TOKENS = (*LETTERS, b"th", b"he", b"the", b"in", b"\xc3", b"\xa9")
MERGES = ((b"t", b"h"), (b"h", b"e"), (b"th", b"e"), (b"i", b"n"))
MESSAGES = [b"", b"user 4711", b"\xff\xfe\x00", BitString(0b00101, 5), BitString(0xDEADBEEF, 32)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lm(tmp_path_factory.mktemp("lm"), TOKENS, MERGES, scale=0.2)


@pytest.fixture(scope="module")
def channel(folder):
    return open_channel(load_lm(folder), "the year", PARALLEL)


@pytest.fixture(scope="module")
def tokenizer(folder, tmp_path_factory):
    """Read from a folder that holds nothing else."""
    alone = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(folder / "tokenizer.json", alone)
    return read_text_tokenizer(alone)


@pytest.fixture(scope="module")
def sent(channel):
    return embed(channel, b"user 4711", KEY, 1)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_round_trip_with_the_tokenizer_alone(channel, tokenizer, number):
    sent = embed(channel, MESSAGES[number], KEY, number)
    found = decode_with_tokenizer(tokenizer, sent.text.encode(), KEY, range(8), PARALLEL)
    assert (found.message, found.nonce) == (MESSAGES[number], number)
    assert 0 < found.p_value <= 16 * 2.0**-32
    assert decode(channel, b"the year" + sent.text.encode(), KEY, [number]).message == MESSAGES[number]


def test_a_token_at_a_time(tmp_path):
    """With n = 1 nothing polarises: every token carries a bit, which is lost where the key's hash splits its law
    unevenly. Of 95 tokens that are about equally likely few are.
    """
    lm = load_lm(write_lm(tmp_path, [bytes([letter]) for letter in range(32, 127)], (), scale=0.2))
    single = Settings(Parallel(positions=1, hash_bits=1, effective_tokens=64.0, bit_error=0.1, parity=32), LAW)
    sent = embed_with_retries(open_channel(lm, "the year", single), b"ab", KEY, range(3))
    assert sent.coded_tokens == 8 * (2 + 5 + 32)
    tokenizer = read_text_tokenizer(tmp_path)
    assert decode_with_tokenizer(tokenizer, sent.text.encode(), KEY, range(8), single).message == b"ab"


def test_a_design_that_carries_nothing_is_refused_before_the_model_is_read():
    with pytest.raises(ValueError, match=r"^1 positions with 4 hash bits carry no message bit under a design of 32"):
        Settings(Parallel(positions=1), LAW).check()


def test_what_stands_behind_the_longest_frame_is_not_looked_at(tokenizer, sent):
    document = f"{sent.text}{' then the' * 50_000}".encode()
    assert decode_with_tokenizer(tokenizer, document, KEY, [1], PARALLEL).message == b"user 4711"


def test_the_text_tokenises_to_what_was_sent(channel, tokenizer, sent):
    assert tuple(tokenizer.encode(sent.text)) == sent.tokens
    assert 0 < sent.cost.variation <= 1


@pytest.mark.parametrize("ending", ["none", "sentence"])
def test_the_number_of_tokens_does_not_show_the_steps(channel, ending, monkeypatch):
    """Over 48 texts the number of tokens modulo n is uniform, also where a sentence may end at every token."""
    monkeypatch.setattr(writing, "ends_sentence", lambda text: True)
    limits = Limits(ending=ending)
    sent = [embed_with_retries(channel, b"", KEY, (nonce, nonce + 100), limits) for nonce in range(48)]
    rests = [len(text.tokens) % 8 for text in sent]
    assert chisquare(np.bincount(rests, minlength=8)).pvalue > 1e-3


def test_tokens_that_merge_or_are_no_text_are_not_accepted(channel):
    ids = {string: number for number, string in enumerate(TOKENS)}
    after_t = Fitness(writing_of(channel), (ids[b"t"],)).after(())
    assert after_t(ids[b"a"])
    assert not after_t(ids[b"h"])
    assert not after_t(ids[b"\xc3"])
    assert not after_t(ids[b"\n"]), "no canonical form has a line end"
    assert Fitness(writing_of(channel), (ids[b"th"],)).fits((ids[b"i"],))


def writing_of(channel, message=b"u", nonce=1):
    keys = message_keys(KEY, nonce, channel.settings, "")
    return Writing(channel, message, keys, Limits())


def is_fit(channel, before, added):
    """By the words: every beginning is UTF-8 without line ends or double spaces, and tokenises to what was drawn."""
    strings = channel.strings
    for end in range(1, len(added) + 1):
        tokens = [*before, *added[:end]]
        try:
            text = b"".join(strings[token] for token in tokens).decode()
        except UnicodeDecodeError:
            return False
        if "\n" in text or "  " in text or channel.source.lm.text_tokenizer.encode(text) != tokens:
            return False
    return True


def test_unfit_draws_are_as_frequent_as_the_enumeration_says(folder):
    """Steps of two; a draw is unfit if its first token alone is, or both together (the rule that draws again)."""
    channel = open_channel(load_lm(folder), "the year", Settings(Parallel(positions=2), LAW))
    tokens = (TOKENS.index(b"t"),)
    laws = step_marginals(writing_of(channel), channel.settings.scheme, tokens)
    pairs = itertools.product(range(len(TOKENS)), repeat=2)
    share = sum(float(laws[0, one] * laws[1, two]) for one, two in pairs if not is_fit(channel, tokens, (one, two)))
    assert 0.05 < share < 0.95
    rng, fits = np.random.default_rng(5), Fitness(writing_of(channel), tokens)
    unfit = [unfit_draws(laws, fits, rng) for _ in range(40)]
    assert len(set(unfit)) > 1
    assert abs(sum(unfit) / (40 * PLAIN_DRAWS) - share) < 4 * np.sqrt(share * (1 - share) / (40 * PLAIN_DRAWS))


def test_a_first_token_that_is_no_text_counts_although_the_pair_is(folder):
    channel = open_channel(load_lm(folder), "the year", Settings(Parallel(positions=2), LAW))
    halves = TOKENS.index(b"\xc3"), TOKENS.index(b"\xa9")
    laws = np.zeros((2, len(channel.source.lm.banned)))
    laws[0, halves[0]] = laws[1, halves[1]] = 1.0
    fits = Fitness(writing_of(channel), ())
    assert fits.fits(halves)
    assert unfit_draws(laws, fits, np.random.default_rng(0)) == PLAIN_DRAWS


def test_a_text_and_its_estimate_follow_from_key_nonce_and_message(channel):
    first, second, other = (SCHEME.write(writing_of(channel, message)) for message in (b"u", b"u", b"v"))
    assert (first.tokens, first.cost) == (second.tokens, second.cost)
    assert other.tokens != first.tokens


@pytest.mark.parametrize(("steps", "unfit"), [(1, 0), (3, 5), (2, 60), (5, 300)])
def test_the_bound_is_the_largest_sum_that_the_draws_allow(steps, unfit):
    pen = object.__new__(Pen)
    pen.steps, pen.unfit = steps, unfit
    bound = pen.cost().variation
    draws = steps * PLAIN_DRAWS
    if binom.cdf(unfit, draws, 1 / steps) < 0.025:
        assert binom.cdf(unfit, draws, bound / steps) == pytest.approx(0.025)
    else:
        assert bound == 1


def test_the_coded_length_depends_on_the_length_of_the_message_only(channel):
    sent = [embed(channel, message, KEY, nonce) for nonce, message in enumerate((b"abc", b"\0\0\0"))]
    assert len({text.coded_tokens for text in sent}) == 1


def test_other_keys_nonces_and_plain_texts_give_no_message(tokenizer, sent):
    text = sent.text.encode()
    for key, nonce in ((Key(bytes(32)), 1), (KEY, 0), (KEY, 2)):
        found = decode_with_tokenizer(tokenizer, text, key, [nonce], PARALLEL)
        assert (found.message, found.p_value, found.reason) == (None, 1.0, "what was read is no frame of this key")
    for plain in (b"", b"a", b"the year " * 60):
        assert decode_with_tokenizer(tokenizer, plain, KEY, [1], PARALLEL).message is None
    assert decode_with_tokenizer(tokenizer, b"\xff", KEY, [1], PARALLEL).reason == "the text is not UTF-8"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_edited_texts_give_the_message_or_none(tokenizer, sent, data):
    text = list(sent.text)
    for _ in range(data.draw(st.integers(1, 6))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from("abcdeh "))
    found = decode_with_tokenizer(tokenizer, "".join(text).encode(), KEY, [1], PARALLEL)
    assert found.message in (None, b"user 4711")


def test_one_changed_token_is_corrected(channel, tokenizer, sent):
    tokens = list(sent.tokens)
    corrected = 0
    for place in range(8, 16):
        for other in range(len(LETTERS)):
            changed = [*tokens[:place], other, *tokens[place + 1 :]]
            text = channel.source.vocabulary.text(tuple(changed))
            if other != tokens[place] and tokenizer.encode(text.decode()) == changed:
                assert decode_with_tokenizer(tokenizer, text, KEY, [1], PARALLEL).message == b"user 4711"
                corrected += 1
                break
    assert corrected > 4


def test_a_cut_text_has_no_message(channel, tokenizer, sent):
    cut = channel.source.vocabulary.text(sent.tokens[: sent.coded_tokens // 2])
    assert decode_with_tokenizer(tokenizer, cut, KEY, [1], PARALLEL).message is None


def test_too_long_a_message_is_refused(channel):
    with pytest.raises(ValueError, match="with 8 parity bytes at most 247 are possible"):
        embed(channel, bytes(300), KEY, 0)
    with pytest.raises(ValueError, match="tokens, 8 are allowed; allow more blocks"):
        embed(channel, b"user", KEY, 0, limits=Limits(max_blocks=1))


@pytest.mark.parametrize("blocks", [20, 40])
def test_too_long_a_message_is_told_how_long_it_may_be(channel, blocks):
    with pytest.raises(ValueError, match=r"a message of [0-9]+ bytes fits, or allow more blocks") as refused:
        embed(channel, bytes(200), KEY, 0, limits=Limits(max_blocks=blocks))
    fits = int(re.search(r"message of (\d+) bytes", str(refused.value)).group(1))
    per_step = int(message_mask(SCHEME).sum())
    steps = [-(-(8 * SCHEME.parity + frame_bits(bytes(size))) // per_step) for size in (fits, fits + 1)]
    allowed = blocks * LAW.block_length // SCHEME.positions
    assert steps[0] <= allowed < steps[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"positions": 12}, "a power of two is needed"),
        ({"positions": 64}, "reads at most 40 tokens"),
        ({"hash_bits": 0}, "a number from 1 to 8"),
        ({"effective_tokens": 0.5}, "a number of at least 1"),
        ({"bit_error": 0.0}, "a number above 0"),
        ({"parity": 200}, "a number from 0 to 128"),
    ],
)
def test_settings_out_of_range(channel, change, reason):
    with pytest.raises(ValueError, match=reason):
        open_channel(channel.source.lm, "", Settings(dataclasses.replace(SCHEME, **change), LAW))


def test_uniform_draws_stay_inside_the_interval():
    draw = uniforms(MessageKeys(KEY, 0, b"parallel").stream("choices"))
    values = np.array([draw() for _ in range(2000)])
    assert ((values > 0) & (values < 1)).all()
    assert values.mean() == pytest.approx(0.5, abs=0.03)


def test_command_line_decodes_without_a_model(folder, tmp_path, capsysbinary, monkeypatch):
    key, alone, text = tmp_path / "secret.key", tmp_path / "tokenizer", tmp_path / "text.txt"
    save_key(KEY, key)
    flags = ["--scheme", "parallel", "--positions", "8", "--hash-bits", "2", "--effective-tokens", "8"]
    flags += ["--bit-error", "0.05", "--key", str(key), "--temperature", "1"]
    assert main(["embed", *flags, "--model", str(folder), "--prompt", "the year", "--message", "user"]) == 0
    out, err = capsysbinary.readouterr()
    assert b"nonce 0: 32 bits, 72 with the check" in err
    assert b"TV to the law of plain parallel sampling at most " in err
    text.write_bytes(out)
    alone.mkdir()
    shutil.copy(folder / "tokenizer.json", alone)

    def refuse(*arguments, **options):
        raise AssertionError("a language model was loaded")

    monkeypatch.setattr(load, "load_lm", refuse)
    assert main(["decode", *flags, "--model", str(alone), str(text)]) == 0
    assert capsysbinary.readouterr().out == b"user"
    text.write_bytes(b"the year is the year" * 9)
    assert main(["decode", *flags, "--model", str(alone), str(text)]) == 3
    assert main(["embed", *flags, "--prompt", "", "--message", "user", "--record", str(tmp_path / "law")]) == 2
    assert b"needs no model and no record" in capsysbinary.readouterr().err
