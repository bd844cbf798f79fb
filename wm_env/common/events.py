"""TensorBoard's event files, written by the caller's own thread and named so that they sort in the order of writing.

TensorBoard's own writer has a thread for the file, whose errors name no file and reach nobody, and names a file by the
clock alone: once a clock was set back, the events of a run that goes on would stand before those that it goes on from.
"""

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.writer import FileWriter, SummaryWriter

from wm_env.common.files import naming

_VERSION = "brain.Event:2"
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")


class EventWriter(SummaryWriter):
    """A `SummaryWriter` that raises an OSError with the name of the file where an event cannot be written.

    Args:
        folder: where the event file goes; it is made if there is none.
        purge_step: events of earlier files from this step on no longer count.
    """

    file_writer: Any
    all_writers: Any

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        super().__init__(str(folder), purge_step=purge_step)

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            self.file_writer = _OwnFile(Path(self.log_dir))
            self.all_writers = {self.log_dir: self.file_writer}
            if self.purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                self.file_writer.add_event(Event(step=self.purge_step, session_log=start))
                self.purge_step = None
        return self.file_writer


class _OwnFile(FileWriter):
    def __init__(self, folder: Path) -> None:
        self.event_writer = _Events(folder)


class _Events:
    """As TensorBoard's `EventFileWriter`; every event is in the file when `add_event` returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = next_event_file(folder)
        with naming(self._path):
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self.add_event(Event(wall_time=time.time(), file_version=_VERSION))

    def get_logdir(self) -> str:
        """The folder of the file."""
        return str(self._path.parent)

    def add_event(self, event: Event) -> None:
        """Write an event."""
        with naming(self._path):
            self._records.write(event.SerializeToString())
            self._records.flush()

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Close the file."""
        with naming(self._path):
            self._file.close()


def next_event_file(folder: Path) -> Path:
    """A name for an event file that sorts behind those of all event files in `folder`."""
    stamps = [int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    stamp = max([int(time.time()), *(stamp + 1 for stamp in stamps)])
    return folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
