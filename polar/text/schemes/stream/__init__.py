"""The scheme `stream`: token by token, all of the model's entropy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from polar.text.scheme import Readers, Scheme, Writing, Written
from wm_env.common.help import paragraph_help

if TYPE_CHECKING:
    from polar.text.channel import Channel
    from polar.text.records import Answers
    from polar.text.settings import Settings
    from wm_env.common.tensors import Arrays


@paragraph_help
@dataclass(frozen=True)
class Stream(Scheme):
    """Token by token, all of the model's entropy; no settings of its own."""

    name: ClassVar[str] = "stream"

    def check(self, settings: "Settings") -> None:
        """As in `Scheme`."""

    def write(self, writing: Writing) -> Written:
        """As in `Scheme`."""
        from polar.text.schemes.stream.coding import write_stream_text

        return write_stream_text(writing)

    def readers(self, channel: "Channel") -> Readers:
        """As in `Scheme`."""
        from polar.text.schemes.stream.coding import stream_model_reader

        return (stream_model_reader(channel),)

    def answers(self, arrays: "Arrays", settings: "Settings") -> "Answers":
        """As in `Scheme`."""
        from polar.text.schemes.stream.answers import read_stream_answers

        return read_stream_answers(arrays)

    def answers_readers(self, answers: "Answers") -> Readers:
        """As in `Scheme`."""
        from polar.text.schemes.stream.answers import LawAnswers
        from polar.text.schemes.stream.coding import stream_recorded_reader

        assert isinstance(answers, LawAnswers)
        return (stream_recorded_reader(answers),)


SCHEME = Stream()
