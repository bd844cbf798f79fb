import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from wm_env.lm.text_files import read_lines

TEXT = b"one\r\n\n two\nthr\xc3\xa9e"
LINES = ["one", "", " two", "thrée"]


@pytest.mark.parametrize(("name", "pack"), [("a", bytes), ("a.txt.gz", gzip.compress), ("a.txt.XZ", lzma.compress)])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_are_the_same_in_any_packing(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], mark: bytes
) -> None:
    (tmp_path / name).write_bytes(pack(mark + TEXT))
    assert list(read_lines(tmp_path / name)) == LINES


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.xz", lzma.compress)])
def test_a_damaged_file_is_named_wherever_the_damage_is(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    lines = [f"line {number}" for number in range(50)]
    path, whole = tmp_path / name, pack("\n".join(lines).encode())
    for content in [TEXT, *(whole[:size] for size in range(1, len(whole)))]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is no complete \{path.suffix} file \(.+\)$"):
            list(read_lines(path))
    for place in range(len(whole)):
        path.write_bytes(bytes([*whole[:place], whole[place] ^ 0x55, *whole[place + 1 :]]))
        try:
            # Such as the time in the head of a gzip file.
            assert list(read_lines(path)) == lines
        except ValueError as error:
            assert f"{name} is no" in str(error)  # noqa: PT017 - either is right


def test_other_texts_and_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match="latin is not UTF-8 text"):
        list(read_lines(tmp_path / "latin"))
    for name in ("none", "none.gz", "none.xz"):
        with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
            list(read_lines(tmp_path / name))
    with pytest.raises(IsADirectoryError, match="is a folder"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize(("name", "pack"), [("a", bytes), ("a.gz", gzip.compress), ("a.xz", lzma.compress)])
def test_a_line_without_end_is_refused(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / name
    path.write_bytes(pack("äbc\n\nabc".encode()))
    assert list(read_lines(path, 3)) == ["äbc", "", "abc"]
    for content in (b"ab\nabcd\n", b"ab\nabcd", b"ab\nabcdefgh"):
        path.write_bytes(pack(content))
        lines = read_lines(path, 3)
        assert next(lines) == "ab"
        with pytest.raises(ValueError, match=f"{name} has a line of more than 3 characters, or without end"):
            next(lines)
