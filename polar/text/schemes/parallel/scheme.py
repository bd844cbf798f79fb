"""The scheme `parallel`: steps of n tokens that the model fills in at once, and a receiver that needs no model.

The sender's canvas is the context and n masks; one forward pass gives n marginals, and
`polar.text.schemes.parallel.step` draws the tokens so that their labels carry bits. The text so far is the next step's
context. The bits are the frame in its outer code (`polar.text.schemes.parallel.outer_code`), padded with key bits; the
last step is filled up with more of them.

The receiver needs the text, the tokenizer, the key and the settings: positions n, hash bits b, the design (effective
tokens, bit error) and parity. It tokenises the text, hashes the tokens, transforms every n labels, and reads the
message positions. It does not know how long the message is, nor where it was written with what entropy.

How long a text is depends on the length of the message alone, so nothing else shows in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from polar.code.index_sets import Bools
from polar.text.channel import Channel
from polar.text.framing import BitString, Message, make_frame, overhead_bits
from polar.text.keys import KeyStream, MessageKeys
from polar.text.progress import Report, silence
from polar.text.schemes.parallel.design import message_positions
from polar.text.schemes.parallel.outer_code import LONGEST_CODEWORD, decode_frames, encode_frame, open_bytes
from polar.text.schemes.parallel.step import (
    Accept,
    Step,
    Uniform,
    draw_labels,
    draw_tokens,
    label_masses,
    place_points,
    read_bits,
    token_label,
    vocabulary_labels,
)
from polar.text.schemes.stream import Tokens
from polar.text.settings import Settings
from wm_env.common.arrays import Floats, Ints
from wm_env.common.intervals import block_interval
from wm_env.lm.models.marginals import marginals

PLAIN_DRAWS = 63
"""Plain draws of a step by which the probability that it does not re-tokenise is estimated."""


@dataclass(frozen=True)
class Written:
    """A text and how it came about.

    Attributes:
        tokens: its token ids, whole steps.
        frame_bits: bits of header, message and check value.
        coded_bits: bits at message positions.
        lost_bits: those that differ from what the message wanted there.
        steps: number of steps.
        unfit_draws: how many of `PLAIN_DRAWS` plain draws of every step did not re-tokenise.
    """

    tokens: Tokens
    frame_bits: int
    coded_bits: int
    lost_bits: int
    steps: int
    unfit_draws: int

    @property
    def variation_bound(self) -> float:
        """Sum over the steps of the probability p that plain sampling does not re-tokenise, at most 1.

        The upper end of the Clopper-Pearson 95 % interval of the mean p. p differs from step to step, which makes the
        number of unfit draws vary less than a binomial one in its tails (Hoeffding 1956), so the interval holds.
        """
        return min(1.0, self.steps * block_interval(self.unfit_draws, self.steps * PLAIN_DRAWS)[1])


def message_mask(settings: Settings) -> Bools:
    """The message positions of a step, shape (b, n).

    Raises:
        ValueError: the design leaves none.
    """
    return message_positions(settings.positions, settings.hash_bits, settings.effective_tokens, settings.bit_error)


def write(channel: Channel, message: Message, keys: MessageKeys, most_tokens: int, report: Report = silence) -> Written:
    """Write a text that carries `message`, unless more bits get lost than the outer code corrects: decode to see.

    Raises:
        ValueError: the message is too long for the code, or for `most_tokens`.
    """
    settings, lm = channel.settings, channel.source.lm
    positions = message_mask(settings)
    frame = make_frame(message, keys.check)
    bits = coded_bits(encode_frame(frame, settings.parity), keys, int(positions.sum()))
    needed = len(bits) * settings.positions
    if needed > most_tokens:
        fits = most_bytes(settings, most_tokens)
        raise ValueError(
            f"the message does not fit: it takes {needed} tokens, {most_tokens} are allowed; "
            + ("allow more blocks" if fits is None else f"a message of {fits} bytes fits, or allow more blocks")
        )
    labels = vocabulary_labels(channel.token_bytes, len(lm.banned), keys.derive("labels"), settings.hash_bits)
    uniform = uniforms(keys.stream("choices"))
    plain = np.random.default_rng(int.from_bytes(keys.derive("plain draws")))
    tokens: Tokens = ()
    unfit = lost = 0
    for number, wanted in enumerate(bits):
        report(bits[:number].size, bits.size, "bits")
        laws = step_marginals(channel, tokens)
        unfit += unfit_draws(laws, tokens, channel, plain)
        step = encode_step(channel, laws, labels, wanted, positions, tokens, uniform)
        tokens += step.tokens
        lost += int((read_bits(labels[list(step.tokens)][None], positions)[0] != wanted).sum())
    return Written(tokens, frame.length, bits.size, lost, len(bits), unfit)


def most_bytes(settings: Settings, most_tokens: int) -> int | None:
    """Bytes of the longest message that so many tokens carry; None if they carry no message at all."""
    bits = most_tokens // settings.positions * int(message_mask(settings).sum())
    room = 8 * (min(bits // 8, LONGEST_CODEWORD) - settings.parity)
    return max(
        (size for size in range(LONGEST_CODEWORD) if 8 * size + overhead_bits(bytes(size)) <= room), default=None
    )


def step_marginals(channel: Channel, tokens: Tokens) -> Floats:
    """The marginals of the step after `tokens`, shape (n, V); of a long text the model sees the end."""
    settings, lm = channel.settings, channel.source.lm
    context = (channel.source.prompt + tokens)[-(lm.max_length - settings.positions) :]
    laws: Floats = marginals(lm, context, settings.positions, settings.temperature).numpy()
    return laws


def encode_step(
    channel: Channel, laws: Floats, labels: Ints, bits: Ints, positions: Bools, tokens: Tokens, uniform: Uniform
) -> Step:
    """The tokens that follow `tokens`: `bits` at the message positions, as far as the marginals allow."""
    masses = label_masses(laws, labels, channel.settings.hash_bits)
    word = draw_labels(masses, place_points(bits, positions, uniform))
    return draw_tokens(laws, labels, word, lambda added: retokenises(channel, tokens + added), uniform)


def retokenises(channel: Channel, tokens: Tokens) -> Accept:
    """Whether the text of `tokens` and one more token tokenises to just these."""
    start = channel.source.vocabulary.text(tokens)

    def accept(token: int) -> bool:
        try:
            text = (start + channel.token_bytes[token]).decode("utf-8")
        except UnicodeDecodeError:
            return False
        return tokenise(channel.source.lm.tokenizer, text) == [*tokens, token]

    return accept


def unfit_draws(laws: Floats, tokens: Tokens, channel: Channel, rng: np.random.Generator) -> int:
    """How many of `PLAIN_DRAWS` plain draws of a step, shape (n, V), give a text that does not re-tokenise."""
    chance = rng.random((PLAIN_DRAWS, len(laws)))
    sums = laws.cumsum(1)
    drawn = np.stack(
        [np.searchsorted(row, points * row[-1], side="right") for row, points in zip(sums, chance.T, strict=True)], 1
    )
    return sum(not retokenises(channel, tokens + tuple(row[:-1]))(row[-1]) for row in drawn.tolist())


def tokenise(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The token ids of a text as a receiver gets them."""
    ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def uniforms(stream: KeyStream) -> Uniform:
    """Uniform draws from (0, 1), odd multiples of 2^-53."""
    return lambda: (stream.below(1 << 52) + 0.5) * 2.0**-52


def received_bits(strings: Mapping[int, bytes], tokens: list[int], keys: MessageKeys, settings: Settings) -> BitString:
    """What the message positions of all whole steps of a text hold, the pad taken off.

    `strings` is `wm_env.lm.text.token_bytes`; a token that is not among them counts as one of label 0.
    """
    steps = len(tokens) // settings.positions
    key = keys.derive("labels")
    label_of = {
        token: token_label(strings[token], key, settings.hash_bits) if token in strings else 0 for token in set(tokens)
    }
    labels = np.array([label_of[token] for token in tokens[: steps * settings.positions]], dtype=np.int64)
    bits = read_bits(labels.reshape(steps, settings.positions), message_mask(settings)).reshape(-1)
    value = int.from_bytes(np.packbits(bits.astype(np.uint8)).tobytes(), "big") >> -len(bits) % 8
    return BitString(value ^ keys.stream("pad").leading(len(bits)), len(bits))


def read(received: BitString, keys: MessageKeys, parity: int) -> tuple[Message | None, int]:
    """The message in the bits of a text, None if there is none; and the number of check values compared."""
    attempts = 0
    whole = received.first(received.length - received.length % 8)
    for data in decode_frames(whole.to_bytes(), parity):
        message, compared = open_bytes(data, keys.check)
        attempts += compared
        if message is not None:
            return message, attempts
    return None, attempts


def coded_bits(codeword: bytes, keys: MessageKeys, width: int) -> Ints:
    """The codeword with the pad (xor), then key bits to the end of the last step, shape (steps, width)."""
    length = 8 * len(codeword)
    total = -(-length // width) * width
    padded = keys.stream("pad").leading(total) ^ int.from_bytes(codeword, "big") << (total - length)
    digits = np.frombuffer(f"{padded:0{total}b}".encode(), dtype=np.uint8) - ord("0")
    return digits.astype(np.int64).reshape(-1, width)
