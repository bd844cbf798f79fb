"""What sender and receiver have in common: a model with a prompt in front of it, and the settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from polar.text.canonical import CanonicalRule, canonical_prompt
from polar.text.settings import Settings
from polar.text.sources import ModelSource, open_vocabulary
from polar.text.vocabulary import Vocabulary
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.lm.models.masked_lm import MaskedLM


@dataclass(frozen=True)
class Channel:
    """A model with a prompt in front of it, in canonical form, and the settings; make one with `open_channel`."""

    source: ModelSource
    prompt: str
    settings: Settings

    @property
    def strings(self) -> Mapping[int, bytes]:
        """The bytes of the tokens of the model's tokenizer."""
        return self.source.lm.text_tokenizer.strings


_rule_of = lru_cache(maxsize=4)(CanonicalRule)
"""The rule of a vocabulary; made once for many channels."""


@usual_torch()
def open_channel(lm: MaskedLM, prompt: str, settings: Settings, vocabulary: Vocabulary | None = None) -> Channel:
    """Put `prompt` in front of `lm`. Of a long prompt the model sees the last tokens.

    `vocabulary` is `open_vocabulary(lm)`, for those who open many channels.

    Raises:
        ValueError: a setting is out of range, the prompt contains a token that no text may contain, or blocks are
            longer than the model reads.
    """
    settings.check()
    vocabulary = open_vocabulary(lm) if vocabulary is None else vocabulary
    front = canonical_prompt(prompt) if settings.law.form == "canonical" else prompt
    longest = settings.scheme.longest_step(settings)
    if longest > lm.max_length:
        raise ValueError(f"a step has {longest} tokens: {lm.name} reads at most {lm.max_length} tokens")
    source = ModelSource(
        lm=lm,
        vocabulary=vocabulary,
        prompt=tuple(lm.encode(front)),
        settings=settings.law,
        rule=_rule_of(vocabulary),
    )
    return Channel(source, front, settings)
