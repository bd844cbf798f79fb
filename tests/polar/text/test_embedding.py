import contextlib
import dataclasses
import stat

import numpy as np
import pytest
import torch
from ascii_lm import write_ascii_lm
from scipy.stats import chisquare
from tiny_lm import write_lm

from polar.text.arithmetic import ArithmeticReceiver, ArithmeticSender, MessageTooLongError, NoEntropyError
from polar.text.channel import open_channel
from polar.text.decoding import decode, decode_with_record, text_forms
from polar.text.embedding import embed, embed_with_retries
from polar.text.framing import parse_bits
from polar.text.keys.derivation import message_keys, text_hash
from polar.text.keys.key import Key
from polar.text.records import RECORD_FORMAT, compress, expand, load_record, save_record
from polar.text.scheme import NoMessageError, UnfitTextError
from polar.text.schemes.block import Block
from polar.text.schemes.stream.walk import walk_tokens
from polar.text.settings import LawSettings, Limits, Settings
from polar.text.tail import ends_sentence, write_tail
from wm_env.common.tensors import FileFormat, read_tensors, write_tensors
from wm_env.lm.models.load import load_lm

KEY = Key(bytes(range(32)))
LAW = LawSettings(block_length=4, temperature=1.0)
STREAM = Settings(law=LAW)
ANY = Settings(law=dataclasses.replace(LAW, form="any"))
BLOCK = Settings(Block(candidates=16), LAW)
MESSAGES = [b"", b"user 4711", "naïve 🙂 水印\r\n".encode(), b"\xff\xfe\x00", parse_bits("00101"), bytes(40)]


def with_law(**changes):
    return Settings(law=dataclasses.replace(LAW, **changes))


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load_lm(write_ascii_lm(tmp_path_factory.mktemp("lm")))


@pytest.fixture(scope="module")
def channels(lm):
    return {settings.scheme.name: open_channel(lm, "the year", settings) for settings in (STREAM, BLOCK)}


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_stream_round_trip(channels, number):
    sent = embed(channels["stream"], MESSAGES[number], KEY, number)
    found = decode(channels["stream"], sent.text.encode(), KEY, range(8))
    assert (found.message, found.nonce) == (MESSAGES[number], number)
    assert type(found.message) is type(MESSAGES[number])
    assert found.p_value < 1e-7
    assert sent.cost.reference == "the model's law"
    assert 0 <= sent.cost.variation < 1
    assert decode_with_record(sent.text.encode(), KEY, sent.record).message == MESSAGES[number]


def test_block_round_trip(channels):
    sent = embed(channels["block"], b"hi", KEY, 1)
    found = decode(channels["block"], sent.text.encode(), KEY, range(3))
    assert (found.message, found.nonce) == (b"hi", 1)
    assert found.p_value < 1e-8
    assert decode_with_record(sent.text.encode(), KEY, sent.record).message == b"hi"
    assert sent.cost.given == "texts in canonical form (blocks of whole characters)"
    assert 0 < sent.cost.variation < 1
    cut = decode(channels["block"], sent.text.encode()[: len(sent.text) // 2], KEY, [1])
    assert cut.message is None
    assert cut.p_value < 1e-6, "of a cut text the draws still tell"


def test_a_top_pool_says_what_it_costs(lm):
    channel = open_channel(lm, "the year", dataclasses.replace(BLOCK, scheme=Block("top", 16, 0.1)))
    sent = embed(channel, b"", KEY, 0)
    assert decode(channel, sent.text.encode(), KEY, [0]).message == b""
    assert sent.cost.reference == "the model's law"
    assert sent.cost.variation > 0.5, "16 of a million blocks do not hold half of the mass"


def test_the_text_is_the_model_s_own_sample(lm):
    """Up to the stop it has surprised the model by the frame's bits; one token before it, hardly by more."""
    channel = open_channel(lm, "the year", ANY)
    source = channel.source
    sent = embed(channel, b"abc", KEY, 3, Limits(ending="none"))
    surprises = []
    for place in range(sent.coded_tokens):
        canvas, position = source.canvas(sent.tokens[:place])
        surprises.append(-float(source.lm.log2_probs(torch.tensor([canvas]), position, 1.0)[0, sent.tokens[place]]))
    assert sum(surprises) > sent.sent_bits - 1e-6
    assert sum(surprises[:-1]) < 1.3 * sent.sent_bits


@pytest.mark.parametrize("prompt", ["", "a\r\nb", "the" * 50, "t" * 38])
def test_prompts(lm, prompt):
    """Empty, with CRLF, longer than the model reads, and right at the limit."""
    channel = open_channel(lm, prompt, STREAM)
    sent = embed_with_retries(channel, b"ok", KEY, range(3))
    assert decode(channel, sent.text.encode(), KEY, range(3)).message == b"ok"
    assert len(sent.tokens) + len(channel.source.prompt) > (lm.max_length if len(prompt) > 30 else 0)
    other = open_channel(lm, prompt + "!", STREAM)
    assert decode(other, sent.text.encode(), KEY, [0]).message is None


def test_canvases(lm):
    source = open_channel(lm, "abc", STREAM).source
    mask = lm.mask_id
    assert source.canvas(()) == ((*source.prompt, *[mask] * 4), 3)
    assert source.canvas((5, 6)) == ((*source.prompt, 5, 6, mask, mask), 5)
    assert source.canvas((5, 6, 7, 8)) == ((*source.prompt, 5, 6, 7, 8, *[mask] * 4), 7)
    long = tuple(range(20)) * 3 + (9,)
    canvas, position = source.canvas(long)
    assert len(canvas) == lm.max_length == 40
    assert canvas == (*((*source.prompt, *long[:60])[-36:]), 9, mask, mask, mask)
    assert position == 37


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        (b"", [b""]),
        (b" a", [b" a"]),
        (b"\na", [b"\na"]),
        (b"a", [b"a", b" a"]),
        (b"the b", [b" b", b"the b", b" the b"]),
        (b"theb", [b"b", b"theb", b" b", b" theb"]),
        (b"a\r\n", [b"a\r\n", b"a\n", b" a\r\n", b" a\n"]),
    ],
)
def test_forms_that_are_tried_where_every_byte_counts(text, forms):
    assert text_forms(text, "the", ANY) == forms


def test_a_text_in_any_form_survives_what_it_did(lm):
    channel = open_channel(lm, "the year", ANY)
    sent = embed_with_retries(channel, b"line", KEY, range(5, 9))
    text = sent.text.encode()
    for form in (b"the year" + text, text + b" and more", text + b"\n", text.replace(b"\n", b"\r\n")):
        assert decode(channel, form, KEY, [sent.nonce]).message == b"line"


def test_the_p_value_counts_every_check_value_that_was_compared(channels):
    channel = channels["stream"]
    sent = embed(channel, b"", KEY, 3)
    forms = text_forms(sent.text.strip().encode(), "the year", STREAM)
    attempts = 0
    for form in forms:
        keys = message_keys(KEY, 3, STREAM, text_hash("the year"))
        receiver = ArithmeticReceiver(form, keys)
        with contextlib.suppress(NoMessageError):
            walk_tokens(channel.source.vocabulary, keys, receiver, channel.source.law)
        attempts += receiver.attempts
        if receiver.message is not None:
            break
    assert receiver.message == b""
    assert decode(channel, sent.text.strip().encode(), KEY, [3]).p_value == attempts * 2.0**-32


def test_wrong_key_nonce_prompt_settings_model_and_unmarked_text(lm, channels, tmp_path):
    sent = embed(channels["stream"], b"secret", KEY, 2)
    text = sent.text.encode()
    for key in (Key(bytes([number]) * 32) for number in range(30)):
        assert decode(channels["stream"], text, key, [2]).message is None
    assert decode(channels["stream"], text, KEY, [0, 1, 3]).message is None
    assert decode(open_channel(lm, "the years", STREAM), text, KEY, [2]).message is None
    warmer = open_channel(lm, "the year", with_law(temperature=1.1))
    assert decode(warmer, text, KEY, [2]).message is None
    other_lm = load_lm(write_ascii_lm(tmp_path / "other", scale=0.51))
    assert decode(open_channel(other_lm, "the year", STREAM), text, KEY, [2]).message is None
    for plain in (b"", b"the the the", text[: len(text) // 3], bytes(range(128)), b"\xff\xfe"):
        found = decode(channels["stream"], plain, KEY, range(3))
        assert found.message is None
        assert found.reason
        assert found.p_value == 1


def test_every_edit_gives_the_message_or_none(channels):
    sent = embed(channels["stream"], b"7", KEY, 9, Limits(ending="none"))
    text = sent.text.encode()
    outcomes = []
    for position in range(0, len(text), 2):
        for edited in (text[:position] + text[position + 1 :], text[:position] + b"e" + text[position:]):
            outcomes.append(decode_with_record(edited, KEY, sent.record).message)
            outcomes.append(decode(channels["stream"], edited, KEY, [9]).message)
    assert set(outcomes) <= {b"7", None}
    assert outcomes.count(None) > len(outcomes) / 2


def test_rows_of_a_pass_do_not_depend_on_each_other(lm):
    canvases = torch.randint(0, 30, (8, 24), generator=torch.Generator().manual_seed(1))
    together = lm.log2_probs(canvases, 20, 1.0)
    mixed = lm.log2_probs(canvases.flip(0), 20, 1.0).flip(0)
    assert torch.equal(together, mixed)


def test_a_message_that_does_not_fit_says_what_would(channels):
    with pytest.raises(MessageTooLongError, match=r"a message of about [1-9][0-9]* bytes fits"):
        embed(channels["stream"], bytes(200), KEY, 0, Limits(max_blocks=12))


def test_a_message_that_no_model_could_fit_is_refused_at_once(channels):
    told = []
    with pytest.raises(ValueError, match="16 tokens carry at most 768 under any model"):
        embed(channels["stream"], bytes(100), KEY, 1, Limits(max_blocks=4), lambda *now: told.append(now))
    assert not told


def test_all_nonces_that_were_tried_are_told(lm):
    nothing = open_channel(lm, "the year", with_law(temperature=1e-3))
    with pytest.raises(NoEntropyError, match="; 3 nonces were tried"):
        embed_with_retries(nothing, bytes(8), KEY, [4, 7, 9])


def test_a_model_without_choice_is_a_clear_error(lm):
    channel = open_channel(lm, "the", with_law(temperature=1e-6))
    tried = []

    def nonces():
        for nonce in range(3):
            tried.append(nonce)
            yield nonce

    with pytest.raises(NoEntropyError, match="higher temperature"):
        embed_with_retries(channel, b"x", KEY, nonces(), Limits(patience=20))
    assert tried == [0, 1, 2]


def test_texts_that_are_no_utf8_are_counted(tmp_path):
    """A model that says half characters: some nonces give no text, and the result tells how many."""
    channel = open_channel(load_lm(write_lm(tmp_path / "lm", scale=2.0)), "ab", ANY)
    limits = Limits(ending="none")
    unfit = 0
    for first_fit in range(30):
        try:
            embed(channel, parse_bits(""), KEY, first_fit, limits)
            if unfit:
                break
        except (UnfitTextError, NoEntropyError):
            unfit += 1
    sent = embed_with_retries(channel, parse_bits(""), KEY, range(first_fit - unfit, 30), limits)
    assert (sent.nonce, sent.rejected) == (first_fit, unfit)
    with pytest.raises(UnfitTextError, match="no nonce"):
        embed_with_retries(channel, b"", KEY, [])


def test_only_texts_that_are_no_utf8_are_discarded(tmp_path):
    """Beside the walk and the tail of every nonce. Only texts with a half character are among them."""
    channel = open_channel(load_lm(write_lm(tmp_path / "lm", scale=1.0)), "ab", ANY)
    vocabulary, limits = channel.source.vocabulary, Limits(ending="none")
    halves = {token for token, string in channel.strings.items() if max(string) > 127}
    discarded, count = 0, 10
    for nonce in range(count):
        keys = message_keys(KEY, nonce, ANY, text_hash("ab"))
        sender = ArithmeticSender(b"", keys, most_tokens=2048, patience=256)
        tokens, node = walk_tokens(vocabulary, keys, sender, channel.source.law)
        draws = keys.stream("tail", sender.frame.first(32).to_bytes())
        tokens = write_tail(vocabulary, tokens, node, draws, "none", channel.source.law)
        try:
            text = b"".join(channel.strings[token] for token in tokens).decode()
        except UnicodeDecodeError:
            discarded += 1
            assert halves & set(tokens)
            with pytest.raises(UnfitTextError, match=f"nonce {nonce} .* no UTF-8"):
                embed(channel, b"", KEY, nonce, limits)
        else:
            assert embed(channel, b"", KEY, nonce, limits).text == text
    assert 0 < discarded < count


@pytest.mark.parametrize("ending", ["sentence", "none"])
def test_where_the_text_ends(channels, ending):
    sent = embed(channels["stream"], b"a", KEY, 4, Limits(ending=ending))
    coded = b"".join(channels["stream"].strings[token] for token in sent.tokens[: sent.coded_tokens])
    assert (len(sent.tokens) > sent.coded_tokens) == (ending == "sentence" and not ends_sentence(coded))
    assert ending == "none" or ends_sentence(sent.text.encode()) or len(sent.tokens) == sent.coded_tokens + 64


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("a.", 1),
        ('a."', 1),
        ("a.\n", 1),
        ("a", 0),
        ("", 0),
        ("a. b", 0),
        ("a,", 0),
        ("why?", 1),
        ("to P.", 0),
        ("U.S.", 0),
        ("(P.)", 0),
        ("WHO.", 1),
        ("éA.", 1),
    ],
)
def test_ends_of_sentences(text, ends):
    assert ends_sentence(text.encode()) == bool(ends)


def test_chi_square_of_embedded_texts(lm):
    """First tokens of 200 texts of one message under as many nonces, against the model's law of them."""
    channel = open_channel(lm, "the", ANY)
    first = channel.source.law(())

    def first_token(nonce):
        # What follows is of no concern, so one law does for all tokens.
        keys = message_keys(KEY, nonce, ANY, text_hash("the"))
        return walk_tokens(
            channel.source.vocabulary, keys, ArithmeticSender(b"", keys, 4096, 256), lambda tokens: first
        )[0][0]

    canvas, position = channel.source.canvas(())
    law = np.exp2(lm.log2_probs(torch.tensor([canvas]), position, 1.0)[0].numpy())
    counts = np.bincount([first_token(nonce) for nonce in range(200)], minlength=len(law))
    common = law * 200 >= 5
    expected = np.append(law[common], law[~common].sum()) * 200
    observed = np.append(counts[common], counts[~common].sum())
    assert chisquare(observed, expected).pvalue > 1e-3


def test_a_law_file_is_its_owner_s(channels, tmp_path):
    sent = embed(channels["stream"], b"x", KEY, 2)
    save_record(sent.record, tmp_path / "law")
    assert stat.S_IMODE((tmp_path / "law").stat().st_mode) == 0o600


@pytest.mark.parametrize("scheme", ["stream", "block"])
def test_a_law_file_stands_for_the_model(channels, scheme, tmp_path):
    sent = embed(channels[scheme], b"x", KEY, 6)
    path = tmp_path / "law.safetensors"
    save_record(sent.record, path)
    law = load_record(path)
    assert law.fingerprint == sent.record.fingerprint
    for name, array in sent.record.answers.arrays().items():
        assert np.array_equal(law.answers.arrays()[name], array), name
    assert decode_with_record(sent.text.encode(), KEY, law).message == b"x"
    assert decode_with_record(b"the year" + sent.text.encode(), KEY, law, "the year").message == b"x"
    assert decode_with_record(sent.text.encode(), Key(bytes(32)), law).message is None
    assert decode_with_record(b"the end", KEY, law).message is None
    other = embed(channels[scheme], b"x", KEY, 7)
    assert other.record.fingerprint != law.fingerprint
    assert decode_with_record(other.text.encode(), KEY, law).message is None


def test_the_numbers_of_a_record_are_kept_in_few_bytes(lm):
    """Rising masses, as of the laws of a large vocabulary: less than half of the bytes, and each number as it was."""
    rng = np.random.default_rng(5)
    marks = np.cumsum(2.0 ** rng.uniform(0, 40, (20, 300)), axis=1).astype(np.int64).ravel()
    arrays = {
        "marks": marks,
        "ranks": np.tile(np.arange(300, dtype=np.int32), 20),
        "cover": rng.random(7),
        "text": np.frombuffer(b"abc", dtype=np.uint8),
        "none": np.empty(0, dtype=np.int64),
        "ends": np.array([-(2**63), 2**63 - 1, -1], dtype=np.int64),
    }
    small, shapes = compress(arrays)
    for name, array in expand(small, shapes).items():
        assert array.dtype == arrays[name].dtype
        assert np.array_equal(array, arrays[name])
    assert sum(part.nbytes for part in small.values()) < 0.45 * sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize(("version", "writer"), [(1, "a version before 0.1"), (3, "version 0.1"), (4, "0.2")])
def test_records_of_earlier_versions_are_refused_by_name(tmp_path, version, writer):
    path = tmp_path / "law"
    write_tensors(path, FileFormat(RECORD_FORMAT.kind, version), {"marks": np.arange(3)}, {})
    with pytest.raises(ValueError, match=f"format version {version} of .*{writer}, this program reads 5"):
        load_record(path)


CHANGES = {
    "2d": lambda array: array[None],
    "short": lambda array: array[:-1],
    "empty": lambda array: array[:0],
    "float": lambda array: array.astype(float) if array.dtype.kind in "iu" else array.astype(np.float32),
    "negative": lambda array: (array.astype(np.int64) * 0 - 3).astype(array.dtype),
    "zero": lambda array: array * 0,
    "huge": lambda array: np.full_like(array, 2**62 if array.dtype == np.int64 else 255),
    "nan": lambda array: array * np.nan,
}


@pytest.mark.parametrize("scheme", ["stream", "block"])
def test_law_files_of_strangers(channels, scheme, tmp_path):
    """Whatever is in the file, it is refused in one line, or there is no message; here all parts are changed."""
    sent = embed(channels[scheme], b"x", KEY, 6)
    path = tmp_path / "law.safetensors"
    save_record(sent.record, path)
    arrays, meta = read_tensors(path, RECORD_FORMAT)

    def refused(changed, about, stored=True):
        if not stored:
            changed, shapes = compress(changed)
            about = about | {"arrays": shapes}
        write_tensors(path, RECORD_FORMAT, changed, about)
        try:
            return decode_with_record(sent.text.encode(), KEY, load_record(path)).message is None
        except ValueError as error:
            return "\n" not in str(error) and "ask the sender" in str(error)

    assert not refused(arrays, meta)
    for name, array in arrays.items():
        assert refused({other: value for other, value in arrays.items() if other != name}, meta), name
        for change, make in CHANGES.items():
            if name != "log2_prob" or change in ("2d", "short", "empty", "float"):
                assert refused(arrays | {name: make(array)}, meta), (name, change)
    plain = expand(arrays, meta["arrays"])
    assert not refused(plain, meta, stored=False)
    for name, array in plain.items():
        for change in ("short", "empty", "negative", "zero", "huge"):
            assert refused(plain | {name: CHANGES[change](array)}, meta, stored=False), (name, change)
    for shape in (("int32", 1 << 40), ("object", 3), ("uint8", -1), ("int64", 3)):
        assert refused(arrays, meta | {"arrays": {**meta["arrays"], "added": shape}}), shape
    assert refused(arrays, []), "meta"
    assert refused(arrays, meta | {"about": None}), "about"
    about = meta["about"]
    for name, value in about.items():
        assert refused(arrays, meta | {"about": {other: about[other] for other in about if other != name}}), name
        for wrong in (None, 5.5, -1, [value], {}):
            if name != "settings" or wrong != {}:
                assert refused(arrays, meta | {"about": about | {name: wrong}}), (name, wrong)
    for name in about["settings"]:
        for wrong in (None, "x" if name != "sender" else 5, [1], -1, 10**400):
            assert refused(arrays, meta | {"about": about | {"settings": about["settings"] | {name: wrong}}}), (
                name,
                wrong,
            )
    for part in ("law", "scheme"):
        for name in about["settings"][part]:
            for wrong in (None, "x", [1], -1, 10**400):
                changed = about["settings"] | {part: about["settings"][part] | {name: wrong}}
                assert refused(arrays, meta | {"about": about | {"settings": changed}}), (part, name, wrong)
    assert refused(arrays, meta | {"about": about | {"settings": about["settings"] | {"foo": 1}}}), "unknown"


def test_nothing_tried_is_no_evidence(channels):
    for channel in channels.values():
        found = decode(channel, b"the year", KEY, [])
        assert (found.message, found.p_value, found.reason) == (None, 1.0, "there is no nonce to try")


def test_settings_are_checked(lm, channels):
    for wrong, complaint in (
        (Settings(Block(pool="top", tv_budget=1.0)), "tv_budget"),
        (with_law(block_length=3), "block_length"),
        (with_law(temperature=0.0), "temperature"),
        (with_law(top_p=0.0), "top_p"),
        (Settings(Block(candidates=0)), "candidates"),
        (Settings(Block(candidates=1)), "candidates"),
        (Settings(Block(), with_law(top_p=0.5).law), "top_p"),
        (Settings(check_bits=33), "check_bits"),
    ):
        with pytest.raises(ValueError, match=complaint):
            open_channel(lm, "", wrong)
    with pytest.raises(ValueError, match="at least 1"):
        embed(channels["stream"], b"", KEY, 0, Limits(max_blocks=0))
    with pytest.raises(ValueError, match="reads at most 40"):
        open_channel(lm, "", with_law(block_length=64))
