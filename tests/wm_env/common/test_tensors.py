import json
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from wm_env.common.tensors import FileFormat, read_tensors, write_tensors

APPLES = FileFormat("apples", 2)


@pytest.fixture
def apples(tmp_path):
    path = tmp_path / "apples.safetensors"
    write_tensors(path, APPLES, {"a": np.arange(12).reshape(3, 4)[:, ::2], "empty": np.zeros((0, 3))}, {"x": [1, None]})
    return path


def test_round_trip(apples):
    arrays, meta = read_tensors(apples, APPLES)
    assert np.array_equal(arrays["a"], [[0, 2], [4, 6], [8, 10]])
    assert arrays["empty"].shape == (0, 3)
    assert meta == {"x": [1, None]}


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such apples file"):
        read_tensors(tmp_path / "none", APPLES)


def test_other_kind_and_version(apples, tmp_path):
    with pytest.raises(ValueError, match="is no pears file but one of 'apples'"):
        read_tensors(apples, FileFormat("pears", 2))
    with pytest.raises(ValueError, match="version 2, this program reads 3"):
        read_tensors(apples, FileFormat("apples", 3))
    save_file({"a": np.ones(2)}, tmp_path / "plain")
    with pytest.raises(ValueError, match=r"plain is no apples file$"):
        read_tensors(tmp_path / "plain", APPLES)


def test_every_truncation_is_noticed(apples):
    whole = apples.read_bytes()
    for length in range(0, len(whole), 7):
        apples.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged or cut short"):
            read_tensors(apples, APPLES)


def test_a_folder_or_noise_is_no_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder, not a file of kind apples"):
        read_tensors(tmp_path, APPLES)
    for content in (bytes(range(256)) * 3, b"# A README of an orchard\n", b"[1, 2, 3, 4, 5]", b"PK\x03\x04" * 5):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match=r"other is no apples file$"):
            read_tensors(tmp_path / "other", APPLES)


def test_a_disk_that_takes_no_more_is_an_os_error(tmp_path):
    # A limit on the size of files, in a process of its own, stands for a full disk.
    program = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from wm_env.common.tensors import FileFormat, write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_tensors(Path(sys.argv[1]), FileFormat("apples", 2), {"a": np.ones(10_000)}, None)
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a"], capture_output=True, text=True, check=True)
    assert re.fullmatch(rf"{tmp_path} cannot be written \(.*\): make room, or name another folder\n", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_metadata_that_is_too_deep_is_damaged(tmp_path):
    save_file({"a": np.ones(2)}, tmp_path / "deep", metadata={"covert-watermark": "[" * 100_000})
    with pytest.raises(ValueError, match=r"deep is damaged or cut short \(.*\)"):
        read_tensors(tmp_path / "deep", APPLES)


def test_metadata_of_another_program_is_no_file(tmp_path):
    for header in ("[]", "3", '"apples"'):
        save_file({"a": np.ones(2)}, tmp_path / "other", metadata={"covert-watermark": header})
        with pytest.raises(ValueError, match=r"other is no apples file$"):
            read_tensors(tmp_path / "other", APPLES)


def test_every_flipped_byte_of_the_data_is_noticed(apples):
    whole = apples.read_bytes()
    data = 12 * 8 // 2
    for place in range(len(whole) - data, len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x41
        apples.write_bytes(flipped)
        with pytest.raises(ValueError, match="changed after it was written"):
            read_tensors(apples, APPLES)


def test_equal_content_gives_equal_bytes(apples, tmp_path):
    arrays, meta = read_tensors(apples, APPLES)
    write_tensors(tmp_path / "again", APPLES, dict(reversed(arrays.items())), meta)
    assert (tmp_path / "again").read_bytes() == apples.read_bytes()


@pytest.mark.parametrize(("declared", "size"), [("BF16", 2), ("F8_E4M3", 1), ("F8_E5M2", 1), ("F8_E8M0", 1)])
def test_tensors_of_types_that_numpy_lacks_are_refused_by_name(tmp_path, declared, size):
    """PyTorch and other programs write them; the file is whole, and another tensor of it is fine."""
    path = tmp_path / "file"
    write_tensors(path, APPLES, {"good": np.ones(2), "odd": np.zeros(4)}, {})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["odd"] |= {"dtype": declared, "shape": [32 // size]}
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the whole line is compared)
        read_tensors(path, APPLES)
    assert str(raised.value) == f"{path}: tensor odd is of type {declared}, which no {APPLES.kind} has"


@pytest.mark.parametrize("version", ["[1]", "{}", "true", "null", '"2"', "1" + "0" * 5000])
def test_a_version_that_is_no_number_is_refused_by_file(tmp_path, version):
    header = f'{{"kind": "apples", "version": {version}, "meta": null, "fingerprint": ""}}'
    save_file({"a": np.ones(2)}, tmp_path / "odd", metadata={"covert-watermark": header})
    with pytest.raises(ValueError, match=r"odd(: version is| is damaged| has format version)"):
        read_tensors(tmp_path / "odd", APPLES)


def test_halves_of_characters_in_the_metadata_are_damage(tmp_path):
    header = '{"kind": "apples", "version": 2, "meta": "\\ud800", "fingerprint": ""}'
    save_file({"a": np.ones(2)}, tmp_path / "half", metadata={"covert-watermark": header})
    with pytest.raises(ValueError, match=r"half is damaged or cut short"):
        read_tensors(tmp_path / "half", APPLES)
