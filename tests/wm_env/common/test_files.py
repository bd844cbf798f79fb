import errno
import fcntl
import hashlib
import io
import json
import math
import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from wm_env.common import files
from wm_env.common.files import (
    check_output,
    check_replaceable,
    check_seed,
    check_writable,
    encoded,
    fingerprint,
    is_open_as,
    locked_folder,
    make_folder,
    naming,
    network_file_system,
    read_all,
    read_file,
    read_json,
    read_text,
    write_atomically,
    write_json,
    write_text,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "deep" / "file.txt"
    write_text(target, "old")

    def half(path):
        path.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, half)
    assert target.read_text() == "old"
    assert [path.name for path in target.parent.iterdir()] == ["file.txt"]


def test_a_failed_write_leaves_no_folder_that_it_made(tmp_path):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "new" / "deep" / "file", full)
    assert not list(tmp_path.iterdir())

    def others(path):
        (tmp_path / "new" / "of another").touch()
        full(path)

    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "new" / "deep" / "file", others)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "of another"]


def test_written_files_are_ordinary(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    write_text(tmp_path / "file.txt", "grüße\n")
    assert (tmp_path / "file.txt").read_bytes() == "grüße\n".encode()
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_a_folder_without_read_permission_is_written_too(tmp_path, monkeypatch):
    open_file, waits = os.open, []

    def open_as_its_owner(path, flags, *others, **names):
        """Root may read every folder."""
        if flags == os.O_RDONLY and os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, flags, *others, **names)

    monkeypatch.setattr(os, "open", open_as_its_owner)
    monkeypatch.setattr(os, "sync", lambda: waits.append((tmp_path / "drop" / "file.txt").read_text()))
    (tmp_path / "drop").mkdir(mode=0o300)
    try:
        write_text(tmp_path / "drop" / "file.txt", "written")
    finally:
        (tmp_path / "drop").chmod(0o700)
    assert waits == ["written"]
    assert [path.name for path in (tmp_path / "drop").iterdir()] == ["file.txt"]


def test_links_stay_links(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "real").write_text("old")
    (tmp_path / "link").symlink_to("data/real")
    (tmp_path / "dangling").symlink_to("data/new")
    for name, target in (("link", "real"), ("dangling", "new")):
        write_text(tmp_path / name, "written")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "data" / target).read_text() == "written"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dangling", "data", "link", "new", "real"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("folder", "pipe", "link"):
        with pytest.raises(OSError, match=f"{name} is no file that can be written: give another name"):
            write_text(tmp_path / name, "x")
        with pytest.raises(OSError, match=f"{name} is no file that can be written: name another"):
            check_output(tmp_path / name, "name another")
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "file").touch()
    check_output(tmp_path / "file", "name another")
    check_output(tmp_path / "new" / "file", "name another")
    with pytest.raises(OSError, match="file cannot be written: name another"):
        check_output(tmp_path / "file" / "in", "name another")


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, "ü"]})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"b": [1, "ü"]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "bad.json", {"x": math.nan})
    assert not (tmp_path / "bad.json").exists()


def test_json_files_that_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for content, says in (
        (b"[" * 100_000, "is not JSON: nested too deeply"),
        (b"\xff", "is not UTF-8 text"),
        (b"[]", r"is \[\], an object is needed"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"a.json {says}"):
            read_json(path)
    with pytest.raises(FileNotFoundError, match=r"b.json: no such file"):
        read_json(tmp_path / "b.json")
    with pytest.raises(IsADirectoryError, match="is a folder: name a file"):
        read_json(tmp_path)


def test_texts_that_are_no_text(tmp_path):
    (tmp_path / "a").write_bytes("ü\r\n".encode())
    assert read_text(tmp_path / "a") == "ü\r\n"
    (tmp_path / "a").write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"is not UTF-8 text .* at byte 2"):
        read_text(tmp_path / "a")
    assert encoded("ü", "the prompt") == "ü".encode()
    with pytest.raises(ValueError, match=r"the prompt is not UTF-8 text \(character 2\)"):
        encoded("a" + os.fsdecode(b"\xff"), "the prompt")


def test_what_is_too_long_to_be_read_at_once(tmp_path):
    (tmp_path / "a").write_text("123456")
    assert read_file(tmp_path / "a", 6) == b"123456"
    assert read_text(tmp_path / "a", 6) == "123456"
    for read in (read_file, read_text):
        with pytest.raises(ValueError, match=r"a has more than 5 bytes, or no end: give less$"):
            read(tmp_path / "a", 5)
    with pytest.raises(ValueError, match="/dev/zero has more than 1,000 bytes"):
        read_file(Path("/dev/zero"), 1000)
    assert read_all(io.BytesIO(b""), "the input", 0) == b""
    with pytest.raises(ValueError, match="the input has more than 0 bytes"):
        read_all(io.BytesIO(b"x"), "the input", 0)


def test_errors_without_a_place_get_one(tmp_path):
    for error, place in (
        (OSError(errno.ENOSPC, "No space"), "here"),
        (OSError(errno.ENOSPC, "No space", "there"), "there"),
        (OSError("our own line"), None),
    ):
        with pytest.raises(OSError, match=r"No space|our own line") as raised, naming(Path("here")):
            raise error
        assert raised.value.filename == place
    assert str(raised.value) == "our own line"


def test_a_file_is_known_by_its_handle(tmp_path):
    path = tmp_path / "file"
    with path.open("w") as file:
        assert is_open_as(file.fileno(), path)
        (tmp_path / "link").symlink_to(path)
        assert is_open_as(file.fileno(), tmp_path / "link")
        path.unlink()
        assert not is_open_as(file.fileno(), path)
        path.touch()
        assert not is_open_as(file.fileno(), path)


def test_fingerprint_names_content():
    a, b = np.arange(6).reshape(2, 3), np.ones(2)
    base = fingerprint({"a": a, "b": b}, {"k": 1, "l": 2})
    assert len(base) == 64
    assert base == fingerprint({"b": b, "a": np.asfortranarray(a)}, {"l": 2, "k": 1})
    for other in (
        fingerprint({"a": a.reshape(3, 2), "b": b}, {"k": 1, "l": 2}),
        fingerprint({"a": a.astype(np.int32), "b": b}, {"k": 1, "l": 2}),
        fingerprint({"a": a, "c": b}, {"k": 1, "l": 2}),
        fingerprint({"a": a, "b": b}, {"k": 2, "l": 2}),
    ):
        assert other != base
    assert fingerprint({}, {}) == hashlib.sha256(b"{}").hexdigest()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_no_generator_takes(seed):
    check_seed(0)
    check_seed(2**32 - 1)
    with pytest.raises(ValueError, match=f"seed={seed}"):
        check_seed(seed)


def test_writable_is_asked_of_the_nearest_folder_that_exists(tmp_path, monkeypatch):
    check_writable(tmp_path / "a" / "b", "choose another --run")
    assert not list(tmp_path.iterdir())
    asked = []

    def refuse(dir, **_):
        asked.append(dir)
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(PermissionError, match="choose another --run"):
        check_writable(tmp_path / "a" / "b", "choose another --run")
    assert asked == [tmp_path]


def test_folder_below_a_file_is_not_writable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="cannot be written"):
        check_writable(tmp_path / "file" / "run", "choose another --run")


@pytest.mark.parametrize("target", ["nowhere/at/all", "link"])
@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_in_the_place_of_a_link_to_nothing_is_refused(tmp_path, target, below):
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(FileExistsError, match=f"^{link} is a link to nothing: choose another --run, or remove the l"):
        check_writable(link / below, "choose another --run")
    with pytest.raises(FileExistsError, match=f"^{link} is a link to nothing: name another folder, or remove the link"):
        make_folder(link / below)
    assert list(tmp_path.iterdir()) == [link]


def system_refuses(monkeypatch, call, number, place):
    """Let a call of the operating system fail wherever it is about `place`."""
    ordinary = getattr(os, call)

    def refuse(*paths, **names):
        if any(not isinstance(path, int) and os.fspath(path) == str(place) for path in paths):
            raise OSError(number, os.strerror(number), *paths[:1], *[None] * (len(paths) > 1), *paths[1:])
        return ordinary(*paths, **names)

    monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("reason", ["sticky or immutable", "mounted"])
def test_a_file_that_cannot_be_replaced_is_told_before_the_work(tmp_path, monkeypatch, reason):
    """Files can be made beside it; only to replace it is refused, by rename and by rmdir alike."""
    path = tmp_path / "a file"
    path.write_text("old")
    check_output(path, "name another")
    if reason == "mounted":
        mounts = tmp_path / "mountinfo"
        line = f"36 35 98:0 / {str(path).replace(' ', chr(92) + '040')} rw,noatime - ext4 /dev/root rw\n"
        mounts.write_text(line)
        monkeypatch.setattr("wm_env.common.files._MOUNTS", mounts)
        expected = "a file is mounted there"
    else:
        system_refuses(monkeypatch, "rmdir", errno.EPERM, path)
        expected = os.strerror(errno.EPERM)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(PermissionError) as raised:
        check_output(path, "name another")
    assert str(raised.value) == f"{path} cannot be replaced ({expected}): name another"
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY, errno.EACCES])
def test_a_file_that_was_not_replaced_is_named_instead_of_the_temporary_one(tmp_path, monkeypatch, number):
    (tmp_path / "file").write_text("old")
    system_refuses(monkeypatch, "replace", number, tmp_path / "file")
    monkeypatch.setattr(Path, "replace", lambda path, target: os.replace(path, target))
    with pytest.raises(OSError) as raised:  # noqa: PT011  (the number tells)
        write_text(tmp_path / "file", "new")
    assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / "file"))
    assert ".tmp" not in str(raised.value)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_names_too_long_for_a_temporary_neighbour_are_told_before_the_work(tmp_path):
    path = tmp_path / ("n" * 250)
    path.touch()
    for call in (lambda: check_output(path, "name another"), lambda: write_text(path, "x")):
        with pytest.raises(OSError, match="name too long") as raised:
            call()
        assert raised.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_where_files_can_be_made_and_not_renamed(tmp_path, monkeypatch):
    def refuse(path, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError, match=f"{tmp_path} cannot be written: name another"):
        check_output(tmp_path / "new", "name another")
    assert not list(tmp_path.iterdir())


def fsync_of_folders(monkeypatch, number):
    ordinary = os.fsync

    def refuse(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        ordinary(handle)

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS, errno.EROFS, errno.EACCES])
def test_file_systems_that_do_not_sync_folders_are_written_all_the_same(tmp_path, monkeypatch, number):
    waits = []
    fsync_of_folders(monkeypatch, number)
    monkeypatch.setattr(os, "sync", lambda: waits.append((tmp_path / "file").read_text()))
    write_text(tmp_path / "file", "new")
    assert waits == ["new"]
    check_output(tmp_path / "file", "name another")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_did_not_reach_the_disk_is_an_error(tmp_path, monkeypatch, number):
    fsync_of_folders(monkeypatch, number)
    for call in (lambda: write_text(tmp_path / "file", "x"), lambda: check_output(tmp_path / "file", "name another")):
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            call()
        assert raised.value.errno == number


def test_only_one_s_own_kind_of_file_is_replaced(tmp_path):
    path = tmp_path / "file"
    check_replaceable(path, "my kind", "advice")
    path.write_text('{"kind": "my kind"}')
    check_replaceable(path, "my kind", "advice")
    path.write_text("something else")
    with pytest.raises(FileExistsError, match="file exists, and this command did not make it: advice"):
        check_replaceable(path, "my kind", "advice")


def test_file_systems_that_others_share(tmp_path, monkeypatch):
    lines = ["1 0 0:1 / / rw - ext4 /dev/a rw", "2 1 0:2 / /net rw shared:1 - nfs4 server:/a rw"]
    lines.append("3 2 0:3 / /net/here rw - tmpfs tmpfs rw")
    (tmp_path / "mounts").write_text("\n".join(lines))
    monkeypatch.setattr(files, "_MOUNTS", tmp_path / "mounts")
    found = [network_file_system(Path(place)) for place in ("/a/b", "/net", "/net/x/y", "/net/here/z")]
    assert found == [None, "nfs4", "nfs4", None]


def test_a_folder_that_cannot_be_locked_is_named(tmp_path, monkeypatch):
    """As on network file systems without a lock server."""

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available") as raised, locked_folder(tmp_path, "wait"):
        pass
    assert raised.value.filename == str(tmp_path)
