"""Arithmetic coding of an encrypted message, shared by both ends: who sends follows a point, who receives a text.

The sender's point Z in [0, 1) is the frame, padded with key bits (xor), and then more key bits without end. For a
uniform key Z is uniform whatever the frame is. Every choice divides an interval of [0, 1) in proportion to integer
weights, and the sender takes the part that holds Z: that is sampling by the inverse distribution function, so the
choices have exactly the law of the weights, for every message. Boundaries are rounded to whole multiples of
2^-precision, and the interval always holds at least 2^`GUARD` of them for every unit of weight: a choice deviates from
its law by less than 2^-`GUARD` in total variation.

The receiver makes the same choices from the text and gets the same interval [low, low + width). It knows every bit of
Z behind the frame, so only frames on a lattice of step 2^-l are left (l: length of the frame), and once the width is
at most 2^-l there is one. That is also the stop rule. It depends on the choices and l only, not on the key: a text is
the model's own sample, stopped as soon as it has surprised the model by l bits.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from polar.text.framing import (
    LONGEST_HEADER,
    SHORT_HEADER,
    BitString,
    Message,
    frame_length,
    header_end,
    is_frame_start,
    make_frame,
    open_frame,
)
from polar.text.keys.derivation import KeyStream, MessageKeys
from polar.text.scheme import Attempt, NoMessageError
from wm_env.common.command import WorkFailedError

GUARD = 128

ReadOption = Callable[[bytes, int], int | None]
"""(text, position) -> the index of the option that the text shows there, None if it shows none."""


@dataclass(frozen=True)
class Interval:
    """[low, low + width) in units of 2^-precision, inside [0, 1)."""

    low: int = 0
    width: int = 1
    precision: int = 0

    def refined(self, total: int) -> "Interval":
        """The same interval in units so small that it can be divided into `total` parts."""
        shift = max(0, GUARD + total.bit_length() - self.width.bit_length())
        return Interval(self.low << shift, self.width << shift, self.precision + shift)

    def part(self, start: int, end: int, total: int) -> "Interval":
        """The parts `start` to `end` of `total` equal ones, rounded down; call on a refined interval."""
        first, last = (self.width * place // total for place in (start, end))
        return Interval(self.low + first, last - first, self.precision)

    def find(self, point: int, total: int) -> int:
        """The number of the one of `total` equal parts that holds `point`, as `part` rounds them."""
        return ((point - self.low + 1) * total - 1) // self.width

    def is_within(self, bits: int) -> bool:
        """Whether the width is at most 2^-bits."""
        return bits <= self.precision and self.width <= 1 << (self.precision - bits)

    def information(self) -> int:
        """The whole bits -log2(width), rounded down."""
        return self.precision - (self.width - 1).bit_length()


class Side(Protocol):
    """One end of the channel, as the schemes see it."""

    @property
    def done(self) -> bool:
        """Whether the whole frame is embedded, or read."""

    def choose(self, weights: Sequence[int], read: ReadOption) -> int:
        """Choose one of the options, narrow the interval to it and return its index.

        The receiver calls `read` to see what the sender chose.
        """

    def put(self, text: bytes) -> None:
        """Add the text of what was chosen: written by the sender, passed by the receiver."""

    def note_tokens(self, count: int) -> None:
        """Tell how many tokens are behind."""


class ArithmeticSender:
    """Follows the point Z of a message.

    Attributes:
        frame: the frame that is sent.
        interval: where Z is known to be from the choices so far.
    """

    def __init__(self, message: Message, keys: MessageKeys, most_tokens: int, patience: int) -> None:
        """Send `message` in at most `most_tokens` tokens, of which any `patience` in a row must carry a bit."""
        self.frame = make_frame(message, keys)
        self.interval = Interval()
        self._check_bits = keys.check_bits
        self._pad = keys.stream("pad")
        self._most_tokens = most_tokens
        self._patience = patience
        self._last_gain = (0, 0)

    @property
    def done(self) -> bool:
        """As in `Side`."""
        return self.interval.is_within(self.frame.length)

    def progress(self) -> tuple[int, int, str]:
        """(bits of the frame that are in the text, bits of the frame, what they are)."""
        return min(self.interval.information(), self.frame.length), self.frame.length, "bits"

    def choose(self, weights: Sequence[int], read: ReadOption) -> int:
        """As in `Side`."""
        sums = list(accumulate(weights))
        interval = self.interval.refined(sums[-1])
        place = interval.find(_padded(self.frame, self._pad, interval.precision), sums[-1])
        index = bisect_right(sums, place)
        self.interval = interval.part(sums[index] - weights[index], sums[index], sums[-1])
        return index

    def put(self, text: bytes) -> None:
        """Nothing to do: the tokens are the text."""

    def note_tokens(self, count: int) -> None:
        """Give up where the message does not fit.

        Raises:
            MessageTooLongError: `most_tokens` are used.
            NoEntropyError: the model left no choice for `patience` tokens.
        """
        bits = self.interval.information()
        if bits > self._last_gain[1]:
            self._last_gain = (count, bits)
        if self.done:
            return
        if count - self._last_gain[0] >= self._patience:
            raise NoEntropyError(
                f"the model leaves no choice: {self._patience} tokens carried less than a bit; "
                "use another prompt or a higher temperature"
            )
        if count >= self._most_tokens:
            raise MessageTooLongError(count, bits, self.frame.length, self._check_bits + SHORT_HEADER)


class MessageTooLongError(ValueError):
    """The text may not be as long as the message needs."""

    def __init__(self, tokens: int, bits: int, needed: int, overhead: int) -> None:
        fits = max(0, bits - overhead) // 8
        super().__init__(
            f"the message does not fit: its frame has {needed} bits, {tokens} tokens carried {bits}; "
            f"after this prompt a message of about {fits} bytes fits, or allow more blocks"
        )


class NoEntropyError(WorkFailedError):
    """The model is certain of what it says for too long."""


class ArithmeticReceiver:
    """Follows a text, and looks for the frame.

    Attributes:
        interval: where Z must be, from the choices that the text shows.
        message: the message, once it is found.
        attempts: number of check values compared so far.
        log2_evidence: log2 of the largest product of evidence so far, at least 0. A key independent of the text gets to
            e or more with probability at most 1/e: the product is a supermartingale (Ville's inequality).
        text: the received bytes.
        position: how many of them were read.
    """

    def __init__(self, text: bytes, keys: MessageKeys) -> None:
        self.interval = Interval()
        self.message: Message | None = None
        self.attempts = 0
        self.log2_evidence = 0.0
        self.text = text
        self.position = 0
        self._keys = keys
        self._pad = keys.stream("pad")
        self._refuted: set[BitString] = set()
        self._log2_product = 0.0

    @property
    def done(self) -> bool:
        """As in `Side`."""
        return self.message is not None

    def choose(self, weights: Sequence[int], read: ReadOption) -> int:
        """As in `Side`.

        Raises:
            NoMessageError: the text ends here, shows none of the options, or cannot hold a frame.
        """
        index = read(self.text, self.position)
        if index is None or not weights[index]:
            ends = self.position >= len(self.text)
            raise NoMessageError("the text ends before a message does" if ends else "no choice of the key fits")
        start = sum(weights[:index])
        total = start + sum(weights[index:])
        self.interval = self.interval.refined(total).part(start, start + weights[index], total)
        self._look_for_frame()
        return index

    def put(self, text: bytes) -> None:
        """Pass `text`.

        Raises:
            NoMessageError: it is not what the received text continues with.
        """
        if not self.text.startswith(text, self.position):
            raise NoMessageError("no choice of the key fits")
        self.position += len(text)

    def note_tokens(self, count: int) -> None:
        """Nothing to do: the text has an end."""

    def note_evidence(self, log2_evidence: float) -> None:
        """Multiply by evidence for the key: log2 of a number whose mean over keys independent of the text is at most 1,
        whatever was read before, counting 0 where the text does not fit the key.
        """
        self._log2_product += log2_evidence
        self.log2_evidence = max(self.log2_evidence, self._log2_product)

    def follow(self, walk: Callable[[], object]) -> Attempt:
        """What the text says once `walk` has gone through it with this receiver as its side."""
        reason = ""
        try:
            walk()
        except NoMessageError as error:
            reason = str(error)
        return Attempt(self.message, self.attempts, self.log2_evidence, reason)

    def _look_for_frame(self) -> None:
        """Open the frames that may be complete; see whether any may still become so."""
        check_bits = self._keys.check_bits
        if not self.interval.is_within(check_bits + SHORT_HEADER):
            return
        possible = False
        for start in self._possible_starts():
            if not is_frame_start(start, self._keys):
                continue
            if not self.interval.is_within(header_end(start, self._keys)):
                possible = True
                continue
            length = frame_length(start, self._keys)
            if length is not None and not self.interval.is_within(length):
                possible = True
            elif length is not None and self._open(length):
                return
        if not possible:
            raise NoMessageError("what was read is no frame of this key")

    def _possible_starts(self) -> list[BitString]:
        """The frame's leading bits if Z is at either end of the interval: of all that are no longer than the interval
        is narrow, Z has the one or the other.
        """
        precision = self.interval.precision
        ends = {self.interval.low, self.interval.low + self.interval.width - 1}
        plain = (BitString(end ^ self._pad.leading(precision), precision) for end in sorted(ends))
        return [bits.first(min(precision, self._keys.check_bits + LONGEST_HEADER)) for bits in plain]

    def _open(self, length: int) -> bool:
        """Decrypt the only frame of this length in the interval, if there is one, and check it."""
        step = self.interval.precision - length
        pad = self._pad.leading(self.interval.precision)
        behind = pad & ((1 << step) - 1)
        word = -((behind - self.interval.low) >> step)
        if (word << step) + behind >= self.interval.low + self.interval.width:
            return False
        frame = BitString(word ^ pad >> step, length)
        if frame not in self._refuted:
            self.attempts += 1
            self._refuted.add(frame)
            self.message = open_frame(frame, self._keys)
        return self.message is not None


def _padded(frame: BitString, pad: KeyStream, precision: int) -> int:
    """The first `precision` bits of the point Z."""
    shift = precision - frame.length
    return pad.leading(precision) ^ (frame.value << shift if shift >= 0 else frame.value >> -shift)
