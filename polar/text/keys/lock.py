"""The lock of a ledger: a file beside it that one process at a time holds."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from wm_env.common.files import check_output, is_open_as, link_target, make_folder, naming, network_file_system


def lock_of(ledger: Path) -> Path:
    """The file that is locked while a ledger is in use. Nothing is written to it, whatever it holds."""
    target = link_target(ledger)
    return target.with_name(target.name + ".lock")


@contextmanager
def locked_ledger(
    ledger: Path,
    command: str,
    say: Callable[[str], object],
    on_network: str = "use it on one machine at a time",
    other: str = "name another --ledger",
) -> Iterator[TextIO]:
    """The open lock of a ledger that will be written, held within the context; its folder is made if it is missing.

    Args:
        ledger: the file, there or not.
        command: the commands that take this lock, for what is said.
        say: called with a line before this process waits for another one, and where a network file system may keep no
            locks.
        on_network: what to do where the ledger is on a network file system.
        other: what to do if the ledger cannot be written.

    Raises:
        OSError: the ledger cannot be written, or the lock cannot be made, opened or taken; the error names it.
    """
    ledger = link_target(ledger)
    check_output(ledger, other)
    make_folder(ledger.parent)
    if kind := network_file_system(ledger.parent):
        say(f"{ledger} is on a network file system ({kind}), whose locks may not hold between machines: {on_network}")
    while True:
        with open_lock(ledger) as lock:
            with naming(lock_of(ledger)):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say(f"{ledger} is in use by another {command}: waiting for it to end")
                    fcntl.flock(lock, fcntl.LOCK_EX)
            # Somebody may have removed it meanwhile, and others lock the next.
            if is_open_as(lock.fileno(), lock_of(ledger)):
                yield lock
                return


def open_lock(ledger: Path) -> TextIO:
    """Open the lock of a ledger, without taking it; where there is none it is made.

    Raises:
        OSError: it is no file, or cannot be written.
    """
    lock = lock_of(ledger)
    if os.path.lexists(lock) and not lock.is_file():
        raise FileExistsError(f"{lock}, by which the ledger is locked, is no file: remove it, or name another --ledger")
    try:
        lock.touch(mode=0o600)
        return lock.open("a")
    except PermissionError:
        raise PermissionError(
            f"{lock}, by which the ledger is locked, cannot be written: make it writable, or name another --ledger"
        ) from None
