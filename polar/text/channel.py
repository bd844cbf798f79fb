"""What sender and receiver have in common: a model with a prompt in front of it, and the settings."""

from dataclasses import dataclass

from polar.text.keys import MessageKeys
from polar.text.settings import Settings
from polar.text.sources import ModelSource, PoolSource, open_vocabulary
from polar.text.vocabulary import Vocabulary
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.text import token_bytes


@dataclass(frozen=True)
class Channel:
    """A model with a prompt in front of it, and the settings; make one with `open_channel`."""

    source: ModelSource
    token_bytes: dict[int, bytes]
    prompt: bytes
    settings: Settings


def open_channel(lm: MaskedLM, prompt: str, settings: Settings, vocabulary: Vocabulary | None = None) -> Channel:
    """Put `prompt` in front of `lm`. Of a long prompt the model sees the last tokens.

    `vocabulary` is `open_vocabulary(lm)`, for those who open many channels.

    Raises:
        ValueError: a setting is out of range, the prompt contains a token that no text may contain, or blocks are
            longer than the model reads.
    """
    settings.check()
    for name in ("block_length", "positions"):
        if getattr(settings, name) > lm.max_length:
            raise ValueError(f"{name}={getattr(settings, name)}: {lm.name} reads at most {lm.max_length} tokens")
    source = ModelSource(
        lm=lm,
        vocabulary=open_vocabulary(lm) if vocabulary is None else vocabulary,
        prompt=tuple(lm.encode(prompt)),
        block_length=settings.block_length,
        temperature=settings.temperature,
    )
    return Channel(source, token_bytes(lm.tokenizer), prompt.encode(), settings)


def pool_source(channel: Channel, keys: MessageKeys) -> PoolSource:
    """The candidate blocks of one text."""
    return PoolSource(channel.source, channel.token_bytes, channel.settings.pool_settings(keys.derive("pool")))
