"""Files as editors save them."""

import gzip

import pytest

from wm_env.common.files import read_json, read_text
from wm_env.common.foreign.encodings import text_of
from wm_env.lm.prompts import read_prompt_file

TEXT = "läuf 水 👩\n"
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_byte_order_mark_says_how_a_text_is_encoded(tmp_path, encoding):
    path = tmp_path / "text"
    path.write_bytes(TEXT.encode(encoding))
    assert read_text(path) == text_of(TEXT.encode(encoding)) == TEXT


@pytest.mark.parametrize(("order", "mark"), [("utf-16-be", b"\xfe\xff"), ("utf-32-be", b"\0\0\xfe\xff")])
def test_the_other_order_of_bytes(order, mark):
    assert text_of(mark + TEXT.encode(order)) == TEXT


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_settings_and_prompts_are_read_in_any_of_them(tmp_path, encoding):
    settings, prompts, lines = tmp_path / "settings.json", tmp_path / "prompts.txt", tmp_path / "prompts.jsonl.gz"
    settings.write_bytes(' \n{"name": "水"}\n\n'.encode(encoding))
    assert read_json(settings) == {"name": "水"}
    prompts.write_bytes("水\r\nb\r\n".encode(encoding))
    assert read_prompt_file(prompts) == ("水", "b")
    lines.write_bytes(gzip.compress('{"text": "水"}\n{"text": "b"}\n'.encode(encoding)))
    assert read_prompt_file(lines) == ("水", "b")


@pytest.mark.parametrize(
    ("content", "says"), [(b"a\xffb", "UTF-8 text .* at byte 1"), (b"\xff\xfea\0b", "UTF-16 text .* at byte 4")]
)
def test_what_is_no_text_is_named(tmp_path, content, says):
    path = tmp_path / "text.json"
    path.write_bytes(content)
    for read in (read_text, read_json):
        with pytest.raises(ValueError, match=f"{path} is not {says}.*save it as UTF-8"):
            read(path)
    with pytest.raises(ValueError, match=r"is not UTF-.* text .*save it as UTF-8"):
        read_prompt_file(path)
