import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_texts import letters, mini_tokenizer, word_tokens, write_words

from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.settings import MOST_CHARACTERS, RobustSettings
from polar.text.schemes.robust.tape import NONCES

KEY = Key(bytes(range(32)))
PAYLOAD = [0, 1, 1, 0, 1, 0, 0, 1] * 4


def receiver(key=KEY, robust=None, nonces=range(8)):
    return Receiver(key, mini_tokenizer(), robust, nonces)


def plain_text(length, seed=1):
    rng = np.random.default_rng(seed)
    return "".join(letters()[token] for token in rng.choice(word_tokens(), length))


@pytest.fixture(scope="module")
def text():
    return write_words(KEY, PAYLOAD, 5, 240)


def edited(text, seed, replaced=0.0, deleted=0.0, added=0.0):
    rng = np.random.default_rng(seed)
    words = []
    for word in text.split():
        others = plain_text(2, int(rng.integers(1 << 30))).split()
        chance = rng.random()
        words += others[:1] if rng.random() < added else []
        if chance >= deleted:
            words.append(others[1] if chance < deleted + replaced else word)
    return " " + " ".join(words)


@given(st.integers(0, 7), st.binary(min_size=4, max_size=4))
@settings(max_examples=5, deadline=None)
def test_any_payload_comes_back_with_its_nonce(nonce, data):
    payload = [byte >> place & 1 for byte in data for place in range(8)]
    found = receiver().decode(write_words(KEY, payload, nonce, 100))
    assert found.payload == tuple(payload)
    assert found.nonce == nonce
    assert found.p_value < 2.0**-30
    assert found.marked.mean() > 0.9


@pytest.mark.parametrize(
    "edit", [{"replaced": 0.3}, {"deleted": 0.07, "added": 0.07}, {"deleted": 0.1}, {"added": 0.1}], ids=str
)
def test_edited_texts_are_read(text, edit):
    assert receiver().decode(edited(text, 3, **edit)).payload == tuple(PAYLOAD)


def test_a_cut_beginning_and_end_do_no_harm(text):
    words = text.split()
    assert receiver().decode(" ".join(words[50:200])).payload == tuple(PAYLOAD)


def test_a_text_inside_another_is_found_and_marked_out(text):
    before, behind = plain_text(200), plain_text(150, 2)
    found = receiver().decode(before + text + behind)
    assert found.payload == tuple(PAYLOAD)
    ((start, end),) = found.parts()
    assert abs(start - len(before)) < 120
    assert abs(end - len(before) - len(text)) < 120
    (part,) = receiver().detect(before + text + behind).parts()
    assert abs(part[0] - start) < 300
    assert abs(part[1] - end) < 300


@pytest.mark.parametrize("payload_bits", [1, 8, 64, 100])
def test_payloads_of_other_lengths(payload_bits):
    robust = RobustSettings(payload_bits=payload_bits, check_bits=64)
    payload = np.random.default_rng(payload_bits).integers(0, 2, payload_bits).tolist()
    found = receiver(robust=robust).decode(write_words(KEY, payload, 2, 200, robust))
    assert found.payload == tuple(payload)
    assert found.check_log2 >= 64


def test_places_filled_in_any_order():
    robust = RobustSettings(clock="tokens")
    text = write_words(KEY, PAYLOAD, 1, 120, robust)
    assert receiver(robust=robust).decode(text).payload == tuple(PAYLOAD)
    assert receiver(robust=robust).decode(edited(text, 0, replaced=0.1)).payload == tuple(PAYLOAD)


def test_a_text_of_more_than_one_nonce(text):
    long = write_words(KEY, PAYLOAD, 3, 700)
    found = receiver().decode(long)
    assert found.payload == tuple(PAYLOAD)
    assert found.marked[600:].mean() > 0.9
    assert receiver().decode(" ".join(long.split()[560:])).payload == tuple(PAYLOAD)


def test_nonces_that_are_not_looked_for_are_not_found(text):
    assert receiver(nonces=range(6, 8)).decode(text).payload is None
    assert receiver(nonces=range(5, 6)).decode(text).payload == tuple(PAYLOAD)


@pytest.mark.parametrize(
    "other",
    [
        receiver(Key(bytes(32))),
        receiver(robust=RobustSettings(use="bob")),
        receiver(robust=RobustSettings(payload_bits=33)),
        receiver(robust=RobustSettings(clock="tokens")),
    ],
    ids=["key", "use", "payload_bits", "clock"],
)
def test_other_keys_and_settings_see_nothing(text, other):
    found = other.decode(text)
    assert found.payload is None
    assert found.nonce is None
    assert found.p_value > 1e-4


@pytest.mark.parametrize("text", ["", " ", "\n", "x", "dog", "a b", "\ufffd", "ÿ世界" * 20, "0" * 500, "no " * 300])
def test_texts_without_a_mark_are_no_trouble(text):
    found = receiver().decode(text)
    assert found.payload is None
    assert found.p_value > 1e-3
    assert len(found.marked) == len(found.spans)


def test_long_texts_are_refused_in_a_line():
    with pytest.raises(ValueError, match="at most 200000 are read"):
        receiver().decode("a" * (MOST_CHARACTERS + 1))
    with pytest.raises(ValueError, match="nonces=range"):
        receiver(nonces=range(0))
    with pytest.raises(ValueError, match="nonces=range"):
        receiver(nonces=range(NONCES, NONCES + 1))


def test_p_values_hold_over_keys_for_one_text():
    text = plain_text(60)
    p_values = np.array([receiver(Key(bytes([number]) * 32)).detect(text).p_value for number in range(60)])
    for level in (0.5, 0.2, 0.05):
        # Binomial(60, level) exceeds this with probability below 1e-4.
        assert (p_values <= level).sum() <= 60 * level + 3.9 * np.sqrt(60 * level * (1 - level))


def test_the_receiver_imports_no_torch():
    program = (
        "import sys; from polar.text.schemes.robust.reader import Receiver; from polar.text.keys.key import Key\n"
        "from wm_env.lm.models.folder import EMBEDDED; from wm_env.lm.tokenizer import read_text_tokenizer\n"
        "from polar.text.schemes.robust.batch import RowReader\n"
        "print(Receiver(Key(bytes(32)), read_text_tokenizer(EMBEDDED), nonces=range(2)).decode('a b').payload)\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["None", "[]"]
