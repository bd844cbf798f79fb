"""Folders that somebody else may remove or rename while a command works in them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wm_env.common.command import WorkFailedError
from wm_env.common.files import is_open_as


class HeldFolder:
    """A folder that was there when work began; open it with `held_folder`."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    @property
    def is_there(self) -> bool:
        """Whether the path still names the same folder."""
        return is_open_as(self._handle, self.path)

    def check(self) -> None:
        """Check that the folder is still there, before what is written would make another one of its name.

        Raises:
            WorkFailedError: it was removed, renamed or replaced.
        """
        if not self.is_there:
            raise WorkFailedError(
                f"{self.path} was removed or renamed while this command worked in it: what was in it is not made anew, "
                "start again, and leave the folder where it is"
            )


@contextmanager
def held_folder(path: Path) -> Iterator[HeldFolder]:
    """An existing folder, to be looked for again within the context.

    Raises:
        OSError: it cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield HeldFolder(path, handle)
    finally:
        os.close(handle)
