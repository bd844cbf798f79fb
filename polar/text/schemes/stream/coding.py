"""Texts of the scheme `stream`: written and read with the model, or read with a record."""

from functools import lru_cache, partial

from polar.text.arithmetic import ArithmeticReceiver
from polar.text.channel import Channel
from polar.text.keys.derivation import MessageKeys
from polar.text.scheme import Attempt, Reader, Tokens, VariationBound, Writing, Written
from polar.text.schemes.sending import MODEL_LAW, KeptLaws, given, open_sender, write_end
from polar.text.schemes.stream.answers import LawAnswers
from polar.text.schemes.stream.walk import LawAfter, TokenLaw, walk_tokens
from polar.text.vocabulary import Vocabulary
from wm_env.common.progress import Report

_KEPT_BYTES = 1 << 28
"""Laws of tokens that other forms and nonces need again are kept up to so much memory."""


def write_stream_text(writing: Writing) -> Written:
    """As in `Scheme`."""
    channel, keys = writing.channel, writing.keys
    vocabulary, sender = channel.source.vocabulary, open_sender(writing)
    asked, laws = LawAnswers(vocabulary, {}), KeptLaws(channel.source)
    law_after = asked.watch(laws.law)

    def reported(tokens: Tokens) -> TokenLaw:
        writing.report(*sender.progress())
        return law_after(tokens)

    tokens, node = walk_tokens(vocabulary, keys, sender, reported)
    finished = write_end(writing, sender, tokens, node, law_after)
    answers = LawAnswers(vocabulary, {})
    return Written(
        tokens=finished,
        coded_tokens=len(tokens) + (node.depth > 0),
        cost=VariationBound(laws.variation(finished), MODEL_LAW, given=given(channel.settings.law)),
        read=_reader(vocabulary, answers.watch(asked.law_after)),
        answers=answers,
    )


def stream_model_reader(channel: Channel) -> Reader:
    """As in `Scheme`."""
    law = lru_cache(maxsize=_KEPT_BYTES // (8 * len(channel.source.lm.banned)))(channel.source.law)
    return _reader(channel.source.vocabulary, law)


def stream_recorded_reader(answers: LawAnswers) -> Reader:
    """As in `Scheme`."""
    return _reader(answers.vocabulary, answers.law_after)


def _reader(vocabulary: Vocabulary, law_after: LawAfter) -> Reader:
    def read(text: bytes, keys: MessageKeys, report: Report) -> Attempt:
        receiver = ArithmeticReceiver(text, keys)

        def reported(tokens: Tokens) -> TokenLaw:
            report(receiver.position, len(text), f"nonce {keys.nonce}, bytes")
            return law_after(tokens)

        return receiver.follow(partial(walk_tokens, vocabulary, keys, receiver, reported))

    return read
