"""The receiver's ledger when several commands read with one key."""

import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from threading import Event, Thread

import pytest

from polar.text.keys.lock import lock_of, locked_ledger
from polar.text.keys.received import Seen, note_seen, read_seen, what_was_seen
from wm_env.common.files import write_json

MESSAGES = [Seen("", number, "ab", f"{number:02x}", "ef") for number in range(4)]


def test_what_was_noted_since_the_ledger_was_read_is_kept(tmp_path):
    path = tmp_path / "seen"
    for message in MESSAGES:
        note_seen(path, message)
    assert read_seen(path) == tuple(MESSAGES)
    # The entries before are returned, so that two readers of one text at once do not both call it new.
    again, before = "nonce 1 was read before, with the same message: in this text or in a copy of it", MESSAGES[1]
    assert what_was_seen(note_seen(path, before), before) == again
    assert what_was_seen([before], replace(before, text="ff")) == again
    twice = "nonce 1 was read before, with another message: the sender used the nonce twice"
    assert what_was_seen([before], replace(before, message="ff")) == twice
    for new in (replace(before, use="ff"), replace(before, nonce=2)):
        assert what_was_seen([before], new) is None
    assert path.stat().st_mode & 0o777 == lock_of(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("nonce", [-4, 2**64])
def test_a_nonce_that_is_none_is_refused_with_the_name_of_the_ledger(tmp_path, nonce):
    path = tmp_path / "seen"

    def note(number):
        entry = {"sender": "", "nonce": number, "use": "ab", "text": "cd", "message": "ef"}
        write_json(path, {"kind": "covert-watermark messages read 2", "seen": [vars(MESSAGES[0]), entry]})

    note(nonce)
    with pytest.raises(ValueError, match=f"^{path}: nonce {nonce} is none: name another --ledger, or remove it$"):
        read_seen(path)
    for right in (2**64 - 1, 0):
        note(right)
        assert read_seen(path)[1].nonce == right


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("covert-watermark messages read 1", " was written by version 0.3"),
        *[(kind, " is no list of messages that were read") for kind in ("covert-watermark nonces 3", [], None)],
    ],
)
def test_another_file_is_refused_by_what_it_is(tmp_path, kind, says):
    path = tmp_path / "seen"
    write_json(path, {"kind": kind, "seen": []})
    with pytest.raises(ValueError, match=f"^{path}{says}: name another --ledger, or remove it$"):
        read_seen(path)


def test_who_waits_says_so_and_keeps_what_the_other_noted(tmp_path):
    path, waits, said = tmp_path / "seen", Event(), []

    def say(line):
        said.append(line)
        waits.set()

    second = Thread(target=note_seen, args=(path, MESSAGES[1], say))
    with locked_ledger(path, "decode", said.append):
        second.start()
        assert waits.wait(60)
        write_json(path, {"kind": "covert-watermark messages read 2", "seen": [vars(MESSAGES[0])]})
    second.join(60)
    assert read_seen(path) == tuple(MESSAGES[:2])
    assert said == [f"{path} is in use by another decode: waiting for it to end"]


def test_many_processes_at_once_lose_no_note(tmp_path):
    path = tmp_path / "seen"
    note = (
        "import sys; from pathlib import Path; from polar.text.keys.received import Seen, note_seen\n"
        "number = int(sys.argv[2]); [note_seen(Path(sys.argv[1]), Seen('', 100 * number + part, '', '', '')) "
        "for part in range(5)]"
    )
    processes = [subprocess.Popen([sys.executable, "-c", note, str(path), str(number)]) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert {entry.nonce for entry in read_seen(path)} == {100 * n + part for n in range(4) for part in range(5)}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_lock_that_the_system_refuses_is_an_error_that_names_it(tmp_path, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as refused:
        note_seen(tmp_path / "seen", MESSAGES[0])
    assert refused.value.filename == str(lock_of(tmp_path / "seen"))
    assert not (tmp_path / "seen").exists()
