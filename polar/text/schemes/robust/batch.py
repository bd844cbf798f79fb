"""Many texts: a function for `datasets.Dataset.map`, and for anything else that calls with one row.

    rows = load_dataset("json", data_files="texts.jsonl")["train"]
    rows.map(RowReader(key, read_text_tokenizer(folder), "text"), num_proc=4).to_parquet("read.parquet")

Every row gets an answer: one that cannot be read says why, and does not end the run.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from polar.text.keys.key import Key
from polar.text.schemes.robust.messages import read_pasted
from polar.text.schemes.robust.reader import FIRST_NONCES, Receiver
from polar.text.schemes.robust.settings import RobustSettings
from wm_env.lm.tokenizer import TextTokenizer


class RowReader:
    """Reads the text of a row.

    Args:
        key, tokenizer, settings, nonces: as in `polar.text.schemes.robust.reader.Receiver`.
        column: the name of the column with the text.
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
        """`payload` as zeros and ones (empty without a message), `nonce` (-1 without), `p_value`, `score` in bits,
        `marked`, the ranges of characters that are marked in the text as it was read (`plain_forms`), and `problem`,
        why the text could not be read (empty if it was).

        Raises:
            KeyError: the row has no such column.
        """
        text = row[self._column]
        try:
            if not isinstance(text, str | None):
                raise ValueError(f"{self._column} is no text")
            found = read_pasted(self._receiver, text or "")
        except ValueError as error:
            return {"payload": "", "nonce": -1, "p_value": 1.0, "score": 0.0, "marked": [], "problem": str(error)}
        reading = found.reading
        return {
            "payload": "".join(map(str, reading.payload or ())),
            "nonce": -1 if reading.nonce is None else reading.nonce,
            "p_value": found.p_value,
            "score": reading.score,
            "marked": [list(part) for part in found.parts],
            "problem": "",
        }
