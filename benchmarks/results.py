"""Results of a benchmark in a folder, a file each: what a run has finished when it is killed, the next one reads.

    results = Results(Path("runs/codes"), Point)
    point = results.read(name) or results.write(name, search(...))

A file's name holds all that its result depends on. Files are written whole or not at all, and those of several machines
can be copied together.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from wm_env.common.files import check_writable, read_json, write_json
from wm_env.common.json_values import read_as

Result = TypeVar("Result")


@dataclass(frozen=True)
class Results(Generic[Result]):
    """The results in a folder.

    Attributes:
        folder: where they are; made when the first is written.
        kind: what they are, a dataclass of JSON types.
    """

    folder: Path
    kind: type[Result]

    def check(self) -> None:
        """Raise OSError if no file can be made in the folder."""
        check_writable(self.folder, "choose another --folder")

    def read(self, name: str) -> Result | None:
        """The result of this name, None if it is not there.

        Raises:
            ValueError: its file holds something else.
        """
        path = self._path(name)
        return read_as(self.kind, read_json(path), path) if path.exists() else None

    def read_all(self, prefix: str) -> dict[str, Result]:
        """All results whose names begin with `prefix`, by name."""
        names = sorted(path.stem for path in self.folder.glob("*.json") if path.stem.startswith(prefix))
        return {name: found for name in names if (found := self.read(name)) is not None}

    def write(self, name: str, result: Result) -> Result:
        """Keep a result, and give it back."""
        values: Any = result
        write_json(self._path(name), asdict(values))
        return result

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"
