"""The sender of the scheme `parallel`: steps of n tokens that the model fills in at once.

The sender's canvas is the context and n masks; one forward pass gives n marginals, and
`polar.text.schemes.parallel.step` draws the tokens so that their labels carry bits. The text so far is the next step's
context. The bits are the frame in its outer code (`polar.text.schemes.parallel.outer_code`), padded with key bits; the
last step is filled up with more of them.

Then the text goes on by plain steps for a number of tokens that the sender draws below n, and to the end of a sentence.
So the number of tokens says nothing about n. The sender's draws depend on the message:
no receiver needs them.
"""

from typing import TYPE_CHECKING

import numpy as np

from polar.text.canonical import is_start
from polar.text.framing import frame_bits, make_frame
from polar.text.keys.derivation import KeyStream
from polar.text.scheme import Tokens, UnfitTextError, VariationBound, Writing, Written
from polar.text.schemes.parallel.labels import read_bits, vocabulary_labels
from polar.text.schemes.parallel.outer_code import LONGEST_CODEWORD, encode_frame
from polar.text.schemes.parallel.reading import message_mask, tokenizer_readers
from polar.text.schemes.parallel.step import Accept, Uniform, draw_labels, draw_tokens, label_masses, place_points
from polar.text.sources import MASS_BITS, most_likely_mass
from polar.text.tail import LONGEST_TAIL, ends_sentence
from wm_env.common.arrays import Floats, Ints
from wm_env.common.intervals import block_interval
from wm_env.lm.models.marginals import marginals
from wm_env.lm.text import spell
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polar.text.schemes.parallel import Parallel

PLAIN_DRAWS = 63
"""Plain draws of a step by which the probability that something is drawn again is estimated."""


def write_parallel_text(scheme: "Parallel", writing: Writing) -> Written:
    """As in `Scheme`; the text ends by the rule of this module."""
    frame = make_frame(writing.message, writing.keys)
    bits = coded_bits(encode_frame(frame, scheme.parity), writing, scheme)
    pen = Pen(scheme, writing, frame.first(writing.keys.check_bits).to_bytes())
    for number, wanted in enumerate(bits):
        writing.report(bits[:number].size, bits.size, "bits")
        pen.add(wanted)
    coded = len(pen.tokens)
    tokenizer = writing.channel.source.lm.text_tokenizer
    return Written(
        tokens=pen.end(writing.limits.ending == "sentence"),
        coded_tokens=coded,
        cost=pen.cost(),
        read=tokenizer_readers(scheme, TextTokenizer(tokenizer.content))[0],
    )


def coded_bits(codeword: bytes, writing: Writing, scheme: "Parallel") -> Ints:
    """The codeword with the pad (xor), then key bits to the end of the last step, shape (steps, width).

    Raises:
        ValueError: it takes more tokens than are allowed.
    """
    width, length = int(message_mask(scheme).sum()), 8 * len(codeword)
    most_tokens = writing.limits.max_blocks * writing.channel.settings.law.block_length
    steps = -(-length // width)
    if steps * scheme.positions > most_tokens:
        fits = most_bytes(scheme, most_tokens, writing.keys.check_bits)
        raise ValueError(
            f"the message does not fit: it takes {steps * scheme.positions} tokens, {most_tokens} are allowed; "
            + ("allow more blocks" if fits is None else f"a message of {fits} bytes fits, or allow more blocks")
        )
    total = steps * width
    padded = writing.keys.stream("pad").leading(total) ^ int.from_bytes(codeword, "big") << (total - length)
    digits = np.frombuffer(f"{padded:0{total}b}".encode(), dtype=np.uint8) - ord("0")
    return digits.astype(np.int64).reshape(-1, width)


def most_bytes(scheme: "Parallel", most_tokens: int, check_bits: int) -> int | None:
    """Bytes of the longest message that so many tokens carry; None if they carry no message at all."""
    bits = most_tokens // scheme.positions * int(message_mask(scheme).sum())
    room = 8 * (min(bits // 8, LONGEST_CODEWORD) - scheme.parity)
    return max((size for size in range(LONGEST_CODEWORD) if frame_bits(bytes(size), check_bits) <= room), default=None)


class Pen:
    """Writes step after step.

    Attributes:
        tokens: the text so far.
        steps: number of steps.
        unfit: how many of `PLAIN_DRAWS` plain draws of each step would have been drawn again somewhere.
        lost: bits that differ from what the message wanted there.
    """

    def __init__(self, scheme: "Parallel", writing: Writing, check: bytes) -> None:
        """`check` is the check value of the message: the sender's draws depend on it."""
        keys = writing.keys
        self.tokens: Tokens = ()
        self.steps = self.unfit = self.lost = 0
        self._scheme, self._writing = scheme, writing
        self._mask = message_mask(scheme)
        size = len(writing.channel.source.lm.banned)
        self._labels = vocabulary_labels(writing.channel.strings, size, keys.derive("labels"), scheme.hash_bits)
        self._choices = keys.stream("choices", check)
        self._plain = np.random.default_rng(int.from_bytes(keys.derive("plain draws", check)))

    def add(self, wanted: Ints | None) -> None:
        """One step more, with these bits at the message positions; None: with random ones."""
        laws, fits = step_marginals(self._writing, self._scheme, self.tokens), Fitness(self._writing, self.tokens)
        self.unfit += unfit_draws(laws, fits, self._plain)
        self.steps += 1
        uniform = uniforms(self._choices)
        bits = np.array([self._choices.below(2) for _ in range(self._mask.sum())]) if wanted is None else wanted
        masses = label_masses(laws, self._labels, self._scheme.hash_bits)
        word = draw_labels(masses, place_points(bits, self._mask, uniform))
        try:
            tokens = draw_tokens(laws, self._labels, word, fits.after, uniform)
        except ValueError as error:
            raise UnfitTextError(f"with nonce {self._writing.keys.nonce} the text cannot go on: {error}") from None
        self.tokens += tokens
        if wanted is not None:
            self.lost += int((read_bits(self._labels[list(tokens)][None], self._mask)[0] != wanted).sum())

    def end(self, sentence: bool) -> Tokens:
        """Go on by plain steps for a number of tokens that is drawn, uniform below n.

        If that is asked for, go on to the end of a sentence, or for up to `LONGEST_TAIL` tokens more where none ends.

        So the number of tokens modulo n is uniform whatever sentences do.
        """
        strings, start = self._writing.channel.strings, len(self.tokens)
        least = self._choices.below(self._scheme.positions)
        most = least + (self._choices.below(LONGEST_TAIL) if sentence else 0)
        place = start
        while True:
            text = spell(strings, self.tokens[:place])
            ends = place - start >= most or (sentence and place - start >= least and ends_sentence(text))
            if ends and not text[-1:].isspace():
                return self.tokens[:place]
            if place == len(self.tokens):
                self.add(None)
            place += 1

    def cost(self) -> VariationBound:
        """Sum over the steps of the probability p that plain sampling draws something again, at most 1.

        The upper end of the Clopper-Pearson 95 % interval of the mean p. p differs from step to step, which makes the
        number of unfit draws vary less than a binomial one in its tails (Hoeffding 1956), so the interval holds.
        """
        bound = self.steps * block_interval(self.unfit, self.steps * PLAIN_DRAWS)[1]
        return VariationBound(min(1.0, bound), "the law of plain parallel sampling", estimated=True)


def step_marginals(writing: Writing, scheme: "Parallel", tokens: Tokens) -> Floats:
    """The marginals of the step after `tokens`, shape (n, V); of a long text the model sees the end."""
    source, law = writing.channel.source, writing.channel.settings.law
    context = (source.prompt + tokens)[-(source.lm.max_length - scheme.positions) :]
    laws: Floats = marginals(source.lm, context, scheme.positions, law.temperature).numpy()
    if law.top_p == 1:
        return laws
    ids = np.arange(laws.shape[1])
    masses = np.stack(
        [most_likely_mass(np.rint(row * 2.0**MASS_BITS).astype(np.int64), ids, law.top_p) for row in laws]
    )
    restricted: Floats = masses / masses.sum(1, keepdims=True)
    return restricted


class Fitness:
    """What the text after some tokens may go on with: text that tokenises to the tokens that were drawn, in canonical
    form if the settings say so.
    """

    def __init__(self, writing: Writing, tokens: Tokens) -> None:
        channel = writing.channel
        self._strings, self._tokenizer = channel.strings, channel.source.lm.text_tokenizer
        self._canonical = channel.settings.law.form == "canonical"
        self._tokens, self._text = tokens, spell(channel.strings, tokens)

    def after(self, added: Tokens) -> Accept:
        """What may follow the tokens of this step so far."""
        return lambda token: self.fits((*added, token))

    def fits(self, added: Tokens) -> bool:
        """Whether these tokens of the step may stand in the text."""
        try:
            text = (self._text + spell(self._strings, added)).decode("utf-8")
        except UnicodeDecodeError:
            return False
        if self._canonical and not is_start(text):
            return False
        return self._tokenizer.encode(text) == [*self._tokens, *added]


def unfit_draws(laws: Floats, fits: Fitness, rng: np.random.Generator) -> int:
    """How many of `PLAIN_DRAWS` plain draws of a step, shape (n, V), would be drawn again: at some position what was
    drawn so far does not fit.
    """
    chance = rng.random((PLAIN_DRAWS, len(laws)))
    sums = laws.cumsum(1)
    drawn = np.stack(
        [np.searchsorted(row, points * row[-1], side="right") for row, points in zip(sums, chance.T, strict=True)], 1
    )
    return sum(not all(fits.fits(tuple(row[:end])) for end in range(1, len(row) + 1)) for row in drawn.tolist())


def uniforms(stream: KeyStream) -> Uniform:
    """Uniform draws from (0, 1), odd multiples of 2^-53."""
    return lambda: (stream.below(1 << 52) + 0.5) * 2.0**-52
