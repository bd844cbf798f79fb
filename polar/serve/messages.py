"""What goes over the wire, as JSON."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _whole(text: str) -> str:
    """Refuse what JSON can spell although it is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = {"place": error.start + 1}
        line = "character {place} is half of a surrogate pair, which is no text: send both halves"
        raise PydanticCustomError("half_character", line, place) from None
    return text


_Text = Annotated[str, AfterValidator(_whole)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PlainRequest(_Message):
    """A text of the model, without a message."""

    prompt: _Text = Field(description="What the text continues; may be empty.")
    tokens: int = Field(200, ge=1, description="Tokens of the text, before its last sentence ends.")
    temperature: float = Field(0.7, gt=0, le=100, description="tau of softmax(logits / tau).")
    top_p: float = Field(1.0, gt=0, le=1, description="Only the likeliest tokens of this total probability are said.")


class EmbedRequest(PlainRequest):
    """A text with a message in it: give `message` or `message_bits`."""

    message: _Text | None = Field(None, description="Text whose UTF-8 has exactly payload_bits bits.")
    message_bits: _Text | None = Field(None, description="Exactly payload_bits zeros and ones.")


class TextRequest(_Message):
    """A text to be read."""

    text: _Text = Field(description="As it was received: copied, quoted, edited, inside other text.")


class PlainText(_Message):
    """A text of the model."""

    text: str = Field(description="To be put behind the prompt as it is.")
    tokens: int


class MarkedText(PlainText):
    """A text with a message in it."""

    nonce: int = Field(description="Number of the text under the key; it never comes again.")
    message_bits: str
    discarded: int = Field(description="Texts before this one that did not decode, each with a nonce of its own.")
    law: str = Field(description="How the law of such texts differs from the model's.")


class Token(_Message):
    """A token of a text that was read."""

    start: int = Field(description="Its first character.")
    end: int = Field(description="The character behind it.")
    marked: float = Field(ge=0, le=1, description="Probability that it is the sender's, if the text is marked at all.")


class DetectionBody(_Message):
    """Whether a text is marked, and where."""

    is_marked: bool = Field(description="Whether p_value is below 0.001, or there is a message.")
    p_value: float = Field(
        description="At most a share x of texts that were made without the key gets x or less, over the key."
    )
    score: float = Field(description="Evidence that it is marked, in bits.")
    text: str = Field(description="The text as it was read, without what copying adds; all places refer to it.")
    tokens: list[Token]
    parts: list[tuple[int, int]] = Field(description="Ranges of characters that are marked; none if it is not.")


class ReadingBody(DetectionBody):
    """The same, and the message."""

    message_bits: str | None = Field(description="The message as zeros and ones; null if there is none.")
    message: str | None = Field(description="The same as text; null if it is no plain text.")
    nonce: int | None


class Status(_Message):
    """What the server does, and what it takes."""

    model: str
    payload_bits: int
    most_tokens: int
    most_characters: int
    reading: int = Field(description="Texts that are read or wait to be.")
    writing: int = Field(description="Texts that are written or wait to be.")
    done: int = Field(description="Tokens of the text that is being written.")
    total: int = Field(description="Tokens that it may have; 0 if none is being written.")


class ProblemBody(_Message):
    """Why a request was refused."""

    error: Annotated[str, Field(description="One line that says what to do.")]
