"""What the schemes share whose message is one point that the text follows."""

import math
from dataclasses import dataclass, field
from itertools import count

from polar.text.arithmetic import ArithmeticSender
from polar.text.framing import frame_bits
from polar.text.scheme import Tokens, Writing
from polar.text.schemes.stream.walk import LawAfter, TokenLaw
from polar.text.settings import LawSettings
from polar.text.sources import MASS_BITS, ModelSource
from polar.text.tail import LONGEST_TAIL, write_tail
from polar.text.vocabulary import Node

MODEL_LAW = "the model's law"


def given(law: LawSettings) -> str:
    """The condition under which texts have exactly the model's law, as a phrase."""
    return "UTF-8" if law.form == "any" else "texts in canonical form"


def open_sender(writing: Writing) -> ArithmeticSender:
    """The side that follows the point of the message.

    Raises:
        ValueError: no model could fit the message into the allowed blocks.
    """
    limits = writing.limits
    limits.check()
    most_tokens = limits.max_blocks * writing.channel.settings.law.block_length
    needed = frame_bits(writing.message, writing.keys.check_bits)
    if needed > most_tokens * MASS_BITS:
        raise ValueError(
            f"the message does not fit: its frame has {needed} bits, and {most_tokens} tokens carry at most "
            f"{most_tokens * MASS_BITS} under any model, in fact a fraction of that: allow more blocks"
        )
    return ArithmeticSender(writing.message, writing.keys, most_tokens, limits.patience)


@dataclass(frozen=True)
class KeptLaws:
    """The laws of a source, and what share of each the condition on the form of the text has left."""

    source: ModelSource
    kept: dict[Tokens, float] = field(default_factory=dict)

    def law(self, tokens: Tokens) -> TokenLaw:
        """The law of the token after `tokens`."""
        law = self.source.law(tokens)
        self.kept[tokens] = law.kept
        return law

    def variation(self, tokens: Tokens, start: int = 0) -> float:
        """1 - the product of the shares before each token of a text from `start` on: its mean over texts is the total
        variation from the model's law.
        """
        return 1 - math.prod(self.kept[tokens[:place]] for place in range(start, len(tokens)))


def write_end(writing: Writing, sender: ArithmeticSender, tokens: Tokens, node: Node, law_after: LawAfter) -> Tokens:
    """All tokens of the text, from those of the message and the node of the token under way.

    The draws depend on the message, as no receiver needs them.
    """
    places = count()
    check = sender.frame.first(writing.keys.check_bits).to_bytes()

    def reported(tokens: Tokens) -> TokenLaw:
        writing.report(next(places), LONGEST_TAIL, "the message is in; tokens to the sentence's end, at most")
        return law_after(tokens)

    vocabulary, draws = writing.channel.source.vocabulary, writing.keys.stream("tail", check)
    return write_tail(vocabulary, tokens, node, draws, writing.limits.ending, reported)
