import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from polar.text.keys import lock as lock_module
from polar.text.keys.derivation import KeyStream, MessageKeys
from polar.text.keys.key import Key, load_key, new_key, save_key
from polar.text.keys.ledger import check_ledger, ledger_beside, open_ledger


def test_key_file_round_trip_and_mode(tmp_path):
    key, path = new_key(), tmp_path / "secret.key"
    save_key(key, path)
    assert load_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.secret.hex() not in repr(key)
    with pytest.raises(FileExistsError):
        save_key(new_key(), path)
    assert load_key(path) == key


def test_key_files_that_are_refused(tmp_path):
    path = tmp_path / "secret.key"
    with pytest.raises(FileNotFoundError):
        load_key(path)
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a folder: name a key file"):
        load_key(tmp_path)
    with pytest.raises(OSError, match="/dev/zero is a device"):
        load_key(Path("/dev/zero"))
    save_key(new_key(), path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        load_key(path)
    path.chmod(0o600)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        load_key(path)
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="not a key file"):
        load_key(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("change", ["{}", "\n\n{}\n \n", " {}\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \n\n  "])
def test_a_key_file_that_an_editor_saved_is_the_same_key(tmp_path, encoding, change, end):
    path, key = tmp_path / "secret.key", new_key()
    save_key(key, path)
    text = change.format(path.read_text().replace("\n", end))
    path.write_bytes(text.encode(encoding))
    assert load_key(path) == key


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"covert-watermark key 4\nab\n", r"is not a key file of this version \('covert-watermark key 4'\): make"),
        (b"", "is not a key file: make a new key"),
        ("covert-watermark key 3".encode("utf-16-le"), "is not a key file: make a new key"),
        (b"\xff\xfea", "is not a key file: not UTF-16 text .* at byte"),
        (b"covert-watermark key 3\n\xff", "is not a key file: not UTF-8 text .* at byte 23"),
    ],
)
def test_what_is_wrong_with_a_key_file_is_named(tmp_path, content, says):
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=says):
        load_key(path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_ledger_that_an_editor_saved_is_the_same_ledger(tmp_path, encoding):
    path = tmp_path / "nonces"
    path.write_bytes(f"\n {ledger_file([0, 3])} \n".encode(encoding))
    with open_ledger(path) as ledger:
        assert used_below(5, ledger) == [0, 3]


def test_a_key_file_says_what_the_secret_must_be(tmp_path):
    path = tmp_path / "secret.key"
    key = Key(bytes(range(32)))
    save_key(key, path)
    kind, digits, check = path.read_text().splitlines()
    assert (kind, digits) == ("covert-watermark key 3", bytes(range(32)).hex())
    assert check == hashlib.sha256(b"covert-watermark key 3" + bytes(range(32))).hexdigest()[:16]


@given(data=st.data())
def test_no_damage_gives_another_key(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("keys") / "secret.key"
    key = new_key()
    save_key(key, path)
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    part = data.draw(st.binary(max_size=3) | st.text("0123456789abcdef", max_size=3).map(str.encode))
    length = data.draw(st.sampled_from([0, len(part), len(content) - place]))
    path.write_bytes(content[:place] + part + content[place + length :])
    try:
        assert load_key(path) == key
    except ValueError as error:
        assert re.search("damaged|not a key file", str(error))  # noqa: PT017  (either may be)


def test_keys_without_a_check_value_are_refused(tmp_path):
    path = tmp_path / "old.key"
    for kind, says in (
        ("key 1", "was written by a version before 0.1, whose texts this version does not read"),
        ("key 2", "was written by version 0.1, whose texts this version does not read"),
        ("key 3", "damaged"),
    ):
        path.write_text(f"covert-watermark {kind}\n{'ab' * 32}\n")
        path.chmod(0o600)
        with pytest.raises(ValueError, match=says):
            load_key(path)


def test_ledgers_of_earlier_versions_are_refused(tmp_path):
    path = tmp_path / "nonces"
    path.write_text(ledger_file([1], "covert-watermark nonces 2"))
    with pytest.raises(ValueError, match=r"was written by version 0\.1, as its key was: make a new key$"):
        check_ledger(path, None)


def test_ledger_and_lock_are_their_owner_s(tmp_path):
    path = tmp_path / "nonces"
    with open_ledger(path) as ledger:
        ledger.record(1)
    assert {file.stat().st_mode & 0o777 for file in (path, lock_file(path))} == {0o600}


def test_a_ledger_that_others_may_share_says_so(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(lock_module, "network_file_system", lambda path: "nfs4")
    with open_ledger(tmp_path / "nonces", said.append):
        pass
    assert len(said) == 1
    assert "network file system (nfs4)" in said[0]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_lock_that_the_system_refuses_names_the_file(tmp_path, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as refused, open_ledger(tmp_path / "nonces"):
        pass
    assert refused.value.filename == str(tmp_path / "nonces.lock")


def test_two_keys_differ():
    assert new_key() != new_key()
    with pytest.raises(ValueError, match="32 bytes"):
        Key(b"short")


def test_key_stream_is_chacha20_of_rfc_8439():
    expected = int(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        16,
    )
    stream = KeyStream(bytes(32))
    assert stream.leading(512) == expected
    assert stream.leading(12) == expected >> 500
    assert stream.leading(5000) >> 4488 == expected


@pytest.mark.parametrize("nonce", [-1, 1 << 64])
def test_nonces_have_64_bits(nonce):
    with pytest.raises(ValueError, match="2\\^64"):
        MessageKeys(new_key(), nonce, b"stream")


def test_draws_are_uniform():
    stream = KeyStream(hashlib.sha256(b"draws").digest())
    counts = np.bincount([stream.below(7) for _ in range(7000)], minlength=7)
    assert chisquare(counts).pvalue > 1e-3
    large = [stream.below(3 << 90) >> 90 for _ in range(3000)]
    assert chisquare(np.bincount(large, minlength=3)).pvalue > 1e-3
    assert stream.below(1) == 0
    assert any(first != second for first, second in pairwise(large))


def test_ledger_notes_what_is_recorded(tmp_path):
    path = tmp_path / "nonces"
    with open_ledger(path) as ledger:
        assert ledger.first_free() == 0
        ledger.record(0)
        ledger.record(2)
    with open_ledger(path) as ledger:
        assert used_below(4, ledger) == [0, 2]
        assert (ledger.first_free(), ledger.first_free(2)) == (1, 3)
    assert json.loads(path.read_text())["used"] == [0, 2]


def test_a_nonce_is_on_the_disk_once_it_is_recorded(tmp_path, monkeypatch):
    path = tmp_path / "new" / "nonces"
    synced = []

    def sync(handle):
        place = os.readlink(f"/proc/self/fd/{handle}")
        synced.append((place, os.listdir(place) if os.path.isdir(place) else Path(place).read_text()))

    monkeypatch.setattr(os, "fsync", sync)
    with open_ledger(path) as ledger:
        assert (str(tmp_path), ["new"]) in synced
        synced.clear()
        ledger.record(5)
        (temporary, content), (folder, names) = synced
    assert temporary.startswith(str(tmp_path / "new" / ".nonces."))
    assert content == path.read_text()
    assert folder == str(tmp_path / "new")
    assert sorted(names) == ["nonces", "nonces.lock"]


def test_a_key_file_is_on_the_disk_once_it_is_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    save_key(new_key(), tmp_path / "secret.key")
    # A file of another name is tried before.
    assert synced[-2:] == [str(tmp_path / "secret.key"), str(tmp_path)]


def test_a_key_in_no_folder_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    for place in ("none", "file"):
        with pytest.raises(FileNotFoundError, match=f"{tmp_path / place} is no folder: make it first, or name another"):
            save_key(new_key(), tmp_path / place / "secret.key")


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    path = tmp_path / "nonces"

    def fail(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_ledger(path) as ledger:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left") as full:
            ledger.record(0)
    assert full.value.filename == str(path)
    assert not path.exists()
    with pytest.raises(OSError, match="No space left") as full:
        save_key(new_key(), tmp_path / "secret.key")
    assert full.value.filename == str(tmp_path / "secret.key")
    assert not (tmp_path / "secret.key").exists()


@given(data=st.data())
def test_no_damage_gives_a_ledger_of_other_nonces(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledgers") / "nonces"
    with open_ledger(path) as ledger:
        for nonce in (0, 1, 12):
            ledger.record(nonce)
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    part = data.draw(st.binary(max_size=3) | st.sampled_from([b"3", b",", b' "used": [],', b"1"]))
    length = data.draw(st.sampled_from([0, len(part), len(content) - place]))
    path.write_bytes(content[:place] + part + content[place + length :])
    with contextlib.suppress(ValueError), open_ledger(path) as ledger:
        assert used_below(200, ledger) == [0, 1, 12]


def used_below(count, ledger):
    """The nonces below `count` for which another one is offered."""
    return [nonce for nonce in range(count) if ledger.first_free(nonce) != nonce]


def ledger_file(used, kind="covert-watermark nonces 3"):
    """A ledger with a check value that fits."""
    content = {"kind": kind, "used": used}
    return json.dumps(content | {"check": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()})


def test_a_ledger_is_read_and_written_anew_with_its_check_value(tmp_path):
    path = tmp_path / "nonces"
    path.write_text(ledger_file([3, 0]))
    with open_ledger(path) as ledger:
        assert used_below(4, ledger) == [0, 3]
        ledger.record(1)
    stored = json.loads(path.read_text())
    assert stored == json.loads(ledger_file([0, 1, 3]))
    path.write_text(json.dumps(stored | {"used": [0, 1]}))
    with pytest.raises(ValueError, match=r"do not fit their check value; .*restore it, or use a new key"):
        open_ledger(path).__enter__()


def test_an_interrupted_embedding_uses_up_no_nonce(tmp_path):
    path = tmp_path / "nonces"
    with pytest.raises(KeyboardInterrupt), open_ledger(path):
        raise KeyboardInterrupt
    with open_ledger(path) as ledger:
        assert ledger.first_free() == 0


def test_a_ledger_is_for_one_at_a_time(tmp_path):
    other = (tmp_path / "nonces.lock").open("w")
    with open_ledger(tmp_path / "nonces"), other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "nonces.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_of_two_that_hold_a_ledger_one_gets_the_nonce(tmp_path):
    """The lock is removed while the first embeds, so that the second need not wait; the first ends first, or last."""
    for number, first_ends_first in enumerate((True, False)):
        path = tmp_path / f"nonces {number}"
        with open_ledger(path) as first:
            lock_file(path).unlink()
            with open_ledger(path) as second:
                assert first.first_free() == second.first_free() == 0
                if first_ends_first:
                    with pytest.raises(RuntimeError, match="was removed while it was locked, and nonce 0 may be"):
                        first.record(0)
                second.record(0)
            with pytest.raises(RuntimeError, match="was removed while it was locked, and nonce 0 may be"):
                first.record(0)
        assert json.loads(path.read_text())["used"] == [0]


def lock_file(path):
    return path.with_name(path.name + ".lock")


def test_a_lock_that_is_removed_during_the_write_is_noticed(tmp_path, monkeypatch):
    path, rename = tmp_path / "nonces", Path.replace

    def replace(source, target):
        lock_file(path).unlink()
        return rename(source, target)

    with open_ledger(path) as ledger:
        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(RuntimeError, match="the text is not printed"):
            ledger.record(0)
    monkeypatch.undo()
    # Who opens it from now on finds the nonce.
    with open_ledger(path) as ledger:
        assert used_below(2, ledger) == [0]


def test_what_others_noted_meanwhile_is_kept_and_not_given_out_again(tmp_path):
    path = tmp_path / "nonces"
    path.write_text(ledger_file([3]))
    with open_ledger(path) as ledger:
        path.write_text(ledger_file([0, 3, 8]))
        with pytest.raises(RuntimeError, match=r"another embed has used nonce 0 .* not printed"):
            ledger.record(0)
        assert path.read_text() == ledger_file([0, 3, 8])
        ledger.record(1)
        # One that was there from the beginning is used again on purpose.
        ledger.record(3)
        path.unlink()
        ledger.record(4)
    assert json.loads(path.read_text())["used"] == [0, 1, 3, 4, 8]


def test_a_lock_that_was_removed_while_another_waited_is_no_lock(tmp_path):
    path, first = tmp_path / "nonces", contextlib.ExitStack()
    first.enter_context(open_ledger(path))

    def remove(line):
        lock_file(path).unlink()
        first.close()

    with open_ledger(path, remove) as ledger, lock_file(path).open("a") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ledger.record(0)


def test_locks_that_are_no_files(tmp_path):
    path = tmp_path / "nonces"
    makes = (
        lambda lock: lock.mkdir(),
        lambda lock: lock.symlink_to("nowhere/at/all"),
        lambda lock: lock.symlink_to("not-there"),
        lambda lock: os.mkfifo(lock),
    )
    for make in makes:
        make(lock_file(path))
        for refuse in (lambda: check_ledger(path, None), lambda: open_ledger(path).__enter__()):
            with pytest.raises(
                FileExistsError, match=r"nonces.lock, .* is no file: remove it, or name another --ledger"
            ):
                refuse()
        lock_file(path).rmdir() if lock_file(path).is_dir() else lock_file(path).unlink()


def test_a_lock_of_somebody_else(tmp_path, monkeypatch):
    path = tmp_path / "nonces"
    lock_file(path).touch()

    def refuse(self, *arguments, usual=Path.open, **options):
        """Root may write every file."""
        if self != lock_file(path):
            return usual(self, *arguments, **options)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"nonces.lock, .* cannot be written: make it writable"):
        check_ledger(path, None)


def test_a_ledger_is_checked_without_a_lock_and_without_a_trace(tmp_path):
    path = tmp_path / "new" / "nonces"
    check_ledger(path, 0)
    assert not list(tmp_path.iterdir())
    with open_ledger(path) as ledger:
        for nonce in (0, 1, 5):
            ledger.record(nonce)
        check_ledger(path, 2)
        check_ledger(path, None)
        with pytest.raises(ValueError, match="nonce 5 was used with this key: the next free one is 2 "):
            check_ledger(path, 5)
    path.write_text("")
    with pytest.raises(ValueError, match="not a ledger of nonces, or damaged"):
        check_ledger(path, None)


def test_one_ledger_under_several_names(tmp_path):
    (tmp_path / "away").mkdir()
    real, link = tmp_path / "away" / "nonces", tmp_path / "link"
    link.symlink_to("away/nonces")
    # The link dangles at first.
    for expected, path in enumerate((link, real, link, link, real)):
        with open_ledger(path) as ledger:
            assert ledger.first_free() == expected
            ledger.record(expected)
            with (real.with_name("nonces.lock")).open("w") as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert link.is_symlink()
    (tmp_path / "hard").hardlink_to(real)
    with pytest.raises(ValueError, match="several names"), open_ledger(link):
        pass


def test_the_ledger_is_beside_the_key_and_not_beside_a_link(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "a.key").touch()
    (tmp_path / "d" / "k.key").symlink_to("../a.key")
    beside = ledger_beside(tmp_path / "d" / "k.key")
    assert beside == ledger_beside(tmp_path / "a.key")
    assert beside.name == "a.key.nonces"
    assert beside.parent.samefile(tmp_path)


def test_a_key_with_several_names_has_no_ledger_beside_it(tmp_path):
    key = tmp_path / "a.key"
    save_key(new_key(), key)
    ledger_beside(key)
    (tmp_path / "b.key").hardlink_to(key)
    (tmp_path / "link").symlink_to(key)
    for name in ("a.key", "b.key", "link"):
        with pytest.raises(ValueError, match=f"{name} has several names .* name one --ledger for all"):
            ledger_beside(tmp_path / name)


def test_a_folder_has_one_name(tmp_path):
    (tmp_path / "a.key" / "below").mkdir(parents=True)
    assert ledger_beside(tmp_path / "a.key") == tmp_path / "a.key.nonces"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not JSON"),
        ("[]", r"is \[\], an object is needed"),
        ('{"kind": "covert-watermark nonces 3", "used": [3], "used": []}', "the name 'used' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        (ledger_file([], "other"), "kind is 'other'"),
        (ledger_file([3], "covert-watermark nonces 1"), "kind is 'covert-watermark nonces 1'"),
        ('{"kind": "covert-watermark nonces 3", "check": ""}', "used is missing"),
        ('{"kind": "covert-watermark nonces 3", "used": [3]}', "check is missing"),
        (ledger_file("123"), "used is '123', a list is needed"),
        (ledger_file([0.7, True, "1"]), r"used\[0\] is 0.7"),
        (ledger_file([True]), r"used\[0\] is True"),
        (ledger_file({"0": 1}), "used is {'0': 1}, a list is needed"),
        (ledger_file([0, -5]), "nonce -5 is none"),
        (ledger_file([2**64]), "nonce 18446744073709551616 is none"),
        ('{"kind": "covert-watermark nonces 3", "used": [1e400], "check": ""}', r"used\[0\] is inf"),
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path, content, says):
    (tmp_path / "nonces").write_text(content)
    with pytest.raises(ValueError, match=f"{says}.*not a ledger"), open_ledger(tmp_path / "nonces"):
        pass
    assert (tmp_path / "nonces").read_text() == content
