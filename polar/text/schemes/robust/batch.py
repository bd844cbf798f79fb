"""Many texts: a function for `datasets.Dataset.map`, and for anything else that calls with one row.

rows = load_dataset("json", data_files="texts.jsonl")["train"]
rows.map(RowReader(key, read_text_tokenizer(folder), "text"), num_proc=4)
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from polar.text.keys.key import Key
from polar.text.schemes.robust.messages import p_value_of, read_forms
from polar.text.schemes.robust.reader import FIRST_NONCES, Receiver
from polar.text.schemes.robust.settings import RobustSettings
from wm_env.lm.tokenizer import TextTokenizer


class RowReader:
    """Reads the text of a row.

    Args:
        key: the shared secret.
        tokenizer: the model's.
        column: the name of the column with the text.
        settings: as the sender's.
        nonces: those that are looked for.
    """

    def __init__(
        self,
        key: Key,
        tokenizer: TextTokenizer,
        column: str = "text",
        settings: RobustSettings | None = None,
        nonces: range = FIRST_NONCES,
    ) -> None:
        self._key, self._content, self._column = key, tokenizer.content, column
        self._settings, self._nonces = settings or RobustSettings(), nonces

    @cached_property
    def _receiver(self) -> Receiver:
        return Receiver(self._key, TextTokenizer(self._content), self._settings, self._nonces)

    def __getstate__(self) -> dict[str, Any]:
        """Processes get the settings, and make their own receiver."""
        return {name: value for name, value in vars(self).items() if name != "_receiver"}

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """`payload` as zeros and ones (empty without a message), `nonce` (-1 without), `p_value`, `score` in bits, and
        `marked`, the ranges of characters that are marked.
        """
        readings = read_forms(self._receiver, row[self._column] or "")
        reading = readings[-1]
        return {
            "payload": "".join(map(str, reading.payload or ())),
            "nonce": -1 if reading.nonce is None else reading.nonce,
            "p_value": p_value_of(readings),
            "score": reading.score,
            "marked": [list(part) for part in reading.parts()],
        }
