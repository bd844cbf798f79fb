from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tables import TableLaw

from polar.text.arithmetic import ArithmeticReceiver, ArithmeticSender, MessageTooLongError, NoEntropyError
from polar.text.keys.derivation import MessageKeys
from polar.text.keys.key import Key
from polar.text.scheme import NoMessageError
from polar.text.schemes.stream.walk import RARE, finish_token, walk_tokens
from polar.text.vocabulary import Vocabulary

TOKENS = dict(enumerate([b"a", b"ab", b"abc", b"b", b"bc", b"c", b" a", b" "]))


class BranchError(Exception):
    """A decision that the script does not make yet, with the probabilities of its outcomes."""


class Script:
    """Makes given decisions and multiplies their probabilities."""

    def __init__(self, decisions):
        self.decisions = list(decisions)
        self.probability = Fraction(1)

    def decide(self, weights):
        if not self.decisions:
            raise BranchError([index for index, weight in enumerate(weights) if weight])
        index = self.decisions.pop(0)
        self.probability *= Fraction(weights[index], sum(weights))
        return index


class Draw:
    """A uniform draw below `bound`, of which only comparisons are made."""

    def __init__(self, script, bound):
        self.script, self.bound = script, bound

    def __lt__(self, limit):
        return self.script.decide([self.bound - limit, limit]) == 1


def states_after(vocabulary, law_of, letters):
    """The exact law of (tokens, bytes of the token under way) after a number of bytes, by trying all decisions."""
    found = {}
    scripts = [[]]
    while scripts:
        decisions = scripts.pop()
        script = Script(decisions)
        written = []
        side = SimpleNamespace(done=False, note_tokens=lambda count: None)

        def put(text, side=side, written=written):
            written.append(text)
            side.done = len(written) == letters

        side.put = put
        side.choose = lambda weights, read, script=script: script.decide(weights)
        keys = SimpleNamespace(stream=lambda label, s=script: SimpleNamespace(below=lambda bound: Draw(s, bound)))
        try:
            tokens, node = walk_tokens(vocabulary, keys, side, law_of)
        except BranchError as branch:
            scripts += [[*decisions, index] for index in branch.args[0]]
            continue
        state = tokens, b"".join(written)[-node.depth :]
        found[state] = found.get(state, 0) + script.probability
    return found


def chain_rule(vocabulary, law_of, letters):
    """The same from the definition: products of token probabilities, and of the mass that begins with a prefix."""
    expected = {}
    open_texts = [((), Fraction(1), 0)]
    while open_texts:
        tokens, probability, length = open_texts.pop()
        law = law_of(tokens)
        for token, string in zip(vocabulary.ids.tolist(), vocabulary.strings, strict=True):
            share = Fraction(*law.probability(vocabulary, token))
            if length + len(string) >= letters:
                state = tokens, string[: letters - length]
                expected[state] = expected.get(state, 0) + probability * share
            elif share:
                open_texts.append(((*tokens, token), probability * share, length + len(string)))
    return {state: probability for state, probability in expected.items() if probability}


@pytest.mark.parametrize(("most", "seed"), [(8, b"0"), (3000, b"2")])
@pytest.mark.parametrize("more", [{}, {8: b"a", 9: b"ab"}], ids=["distinct", "equal strings"])
def test_tokens_have_exactly_the_law_of_the_model(most, seed, more):
    vocabulary = Vocabulary(TOKENS | more)
    tables = {}

    def law_of(tokens):
        return tables.setdefault(tokens, TableLaw(vocabulary, seed, tokens, most))

    found = states_after(vocabulary, law_of, letters=4)
    assert found == chain_rule(vocabulary, law_of, letters=4)
    assert sum(found.values()) == 1
    assert len(found) > 20


def test_rare_branches_occur_in_the_enumeration():
    vocabulary = Vocabulary(TOKENS)
    rare = []
    for tokens in ((), (0,), (3,), (5,), (7,)):
        masses = dict(zip(vocabulary.strings, TableLaw(vocabulary, b"2", tokens, 3000).masses, strict=True))
        own, longer = masses[b"a"], masses[b"ab"] + masses[b"abc"]
        rare.append(own < RARE * (own + longer))
    assert True in rare
    assert False in rare


class WordLaw:
    """Equally likely words, and nothing else."""

    def __init__(self, vocabulary, words):
        self._cumulative = np.cumsum([0, *(1 << 40 if string in words else 0 for string in vocabulary.strings)])

    def at(self, ranks):
        return self._cumulative[ranks].tolist()


def test_where_the_text_tells_in_the_end_no_shared_randomness_is_needed():
    """After "xy" the tokens may be x, y.. or xy; the third letter tells."""
    vocabulary = Vocabulary(dict(enumerate([b"x", b"xy", b"yz", b"w"])))
    follows = {(): (b"x", b"xy"), 0: (b"yz",), 1: (b"w",), 2: (b"x", b"xy"), 3: (b"x", b"xy")}
    keys = MessageKeys(Key(bytes(range(32))), 0, b"stream")
    asked = []

    def law_of(tokens):
        asked.append(tokens)
        return WordLaw(vocabulary, follows[tokens[-1] if tokens else ()])

    def below(bound):
        raise AssertionError("shared randomness was used")

    silent = SimpleNamespace(stream=lambda label: SimpleNamespace(below=below))
    sender = ArithmeticSender(b"", keys, most_tokens=2000, patience=200)
    tokens, node = walk_tokens(vocabulary, silent, sender, law_of)
    assert sender.done
    assert len(tokens) in (79, 80)
    assert node.depth > 0
    assert len(set(asked)) == len(asked)


def test_readings_that_the_text_never_tells_apart_stay_few():
    """The tokens a and aa make every text of a's in ever more ways."""
    vocabulary = Vocabulary(dict(enumerate([b"a", b"aa", b"b"])))
    law = WordLaw(vocabulary, (b"a", b"aa", b"b"))
    keys = MessageKeys(Key(bytes(range(32))), 0, b"stream")
    asked = []
    receiver = ArithmeticReceiver(b"a" * 400, keys)
    with pytest.raises(NoMessageError):
        walk_tokens(vocabulary, keys, receiver, lambda tokens: asked.append(tokens) or law)
    assert receiver.position > 10
    assert len(asked) <= receiver.position + 1


random_strings = st.lists(
    st.lists(st.sampled_from([b"a", b"b", b" "]), min_size=1, max_size=3).map(b"".join), min_size=2, max_size=12
).filter(lambda strings: len({string[:1] for string in strings}) > 1)


def transmit(vocabulary, seed, message, nonce):
    keys = MessageKeys(Key(bytes(range(32))), nonce, b"stream")

    def law_of(tokens):
        return TableLaw(vocabulary, seed, tokens)

    sender = ArithmeticSender(message, keys, most_tokens=2000, patience=200)
    tokens, node = walk_tokens(vocabulary, keys, sender, law_of)
    last = finish_token(vocabulary, law_of(tokens), node, keys.stream("tail"))
    text = vocabulary.text((*tokens, last))
    receiver = ArithmeticReceiver(text, keys)
    read_tokens, read_node = walk_tokens(vocabulary, keys, receiver, law_of)
    assert (read_tokens, read_node) == (tokens, node)
    return receiver.message, (*tokens, last), text


@settings(max_examples=60)
@given(random_strings, st.binary(max_size=3), st.integers(0, 99))
def test_any_vocabulary_decodes_from_text(strings, seed, nonce):
    """Equal strings, prefixes of prefixes, tokens that never end a text: the receiver has the text only."""
    vocabulary = Vocabulary(dict(enumerate(strings)))
    message = bytes([nonce] * (nonce % 5))
    try:
        assert transmit(vocabulary, seed, message, nonce)[0] == message
    except (NoEntropyError, MessageTooLongError):
        reject()


class BriefSender(ArithmeticSender):
    """Is done after 7 letters: two tokens have ended then, of at most three each."""

    def __init__(self, keys):
        super().__init__(b"", keys, most_tokens=2000, patience=2000)
        self.letters = 0

    @property
    def done(self):
        return self.letters == 7

    def put(self, text):
        self.letters += len(text)


def test_texts_of_random_keys_have_the_model_s_law():
    """The first two tokens over 3000 nonces, against the product of the probabilities of a Markov model."""
    vocabulary = Vocabulary(TOKENS)
    laws = {last: TableLaw(vocabulary, b"law", last) for last in [(), *((token,) for token in TOKENS)]}
    expected = {
        (token, following): float(
            Fraction(*laws[()].probability(vocabulary, token))
            * Fraction(*laws[token,].probability(vocabulary, following))
        )
        for token in TOKENS
        for following in TOKENS
    }
    counts = dict.fromkeys(expected, 0)
    for nonce in range(3000):
        keys = MessageKeys(Key(bytes(range(32))), nonce, b"stream")
        tokens, _ = walk_tokens(vocabulary, keys, BriefSender(keys), lambda tokens: laws[tokens[-1:]])
        counts[tokens[:2]] += 1
    common = [pair for pair, probability in expected.items() if 3000 * probability >= 5]
    observed = np.array([counts[pair] for pair in common] + [3000 - sum(counts[pair] for pair in common)])
    wanted = np.array([expected[pair] for pair in common])
    assert chisquare(observed, 3000 * np.append(wanted, 1 - wanted.sum())).pvalue > 1e-3


def test_a_changed_letter_gives_no_other_message():
    vocabulary = Vocabulary(TOKENS)
    message, _, text = transmit(vocabulary, b"edit", b"ok", 7)
    keys = MessageKeys(Key(bytes(range(32))), 7, b"stream")
    outcomes = set()
    for position in range(len(text)):
        for letter in b"abc x":
            edited = text[:position] + bytes([letter]) + text[position + 1 :]
            receiver = ArithmeticReceiver(edited, keys)
            try:
                walk_tokens(vocabulary, keys, receiver, lambda tokens: TableLaw(vocabulary, b"edit", tokens))
            except NoMessageError:
                assert receiver.message is None
            outcomes.add(receiver.message)
    assert outcomes == {message, None}
