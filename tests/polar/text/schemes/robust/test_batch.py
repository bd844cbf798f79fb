"""Rows of JSONL and Parquet files, read by several processes of `datasets`."""

import json
import pickle

import pytest
from datasets import load_dataset
from word_texts import mini_tokenizer, write_words

from polar.text.keys.key import Key
from polar.text.schemes.robust.batch import RowReader
from polar.text.schemes.robust.reader import MOST_CHARACTERS

KEY = Key(bytes(range(32)))
PAYLOADS = [[number >> place & 1 for place in range(32)] for number in (0, 1, 0xFFFF0000, 4711)]
OTHERS = [None, "", "A sentence without a mark.", "a" * (MOST_CHARACTERS + 1)]


@pytest.fixture(scope="module")
def rows():
    texts = [write_words(KEY, payload, nonce, 100) for nonce, payload in enumerate(PAYLOADS)] + OTHERS
    return [{"id": number, "body": text} for number, text in enumerate(texts)]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_files_are_read_by_several_processes(rows, kind, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = load_dataset("json", data_files=str(file), cache_dir=str(tmp_path / "cache"))["train"]
    if kind == "parquet":
        dataset.to_parquet(tmp_path / "texts.parquet")
        file = tmp_path / "texts.parquet"
        dataset = load_dataset("parquet", data_files=str(file), cache_dir=str(tmp_path / "cache"))["train"]
    read = dataset.map(RowReader(KEY, mini_tokenizer(), "body", nonces=range(4)), num_proc=2)
    read.to_parquet(tmp_path / "read.parquet")
    again = load_dataset("parquet", data_files=str(tmp_path / "read.parquet"), cache_dir=str(tmp_path / "cache"))
    answers = list(again["train"])
    assert [row["id"] for row in answers] == list(range(len(rows)))
    assert [row["body"] for row in answers] == [row["body"] for row in rows]
    assert [row["payload"] for row in answers[:4]] == ["".join(map(str, payload)) for payload in PAYLOADS]
    assert [row["nonce"] for row in answers] == [0, 1, 2, 3, -1, -1, -1, -1]
    for row in answers[4:]:
        assert (row["payload"], row["marked"]) == ("", [])
    assert [bool(row["problem"]) for row in answers] == [False] * 7 + [True]
    assert "at most 200000" in answers[7]["problem"]


def test_a_row_whose_text_is_none_says_so():
    answer = RowReader(KEY, mini_tokenizer())({"text": 5})
    assert (answer["payload"], answer["problem"]) == ("", "text is no text")
    with pytest.raises(KeyError):
        RowReader(KEY, mini_tokenizer())({"body": "a"})


def test_processes_get_no_receiver(rows):
    reader = RowReader(KEY, mini_tokenizer(), "body", nonces=range(4))
    first = reader(rows[2])
    assert len(pickle.dumps(reader)) < 3 * len(mini_tokenizer().content)
    assert pickle.loads(pickle.dumps(reader))(rows[2]) == first


def test_a_quoted_text_has_the_p_value_of_the_plain_one(rows):
    reader = RowReader(KEY, mini_tokenizer(), "body", nonces=range(4))
    plain = "Some words without a mark that go on."
    one, two = reader({"body": plain}), reader({"body": f"> {plain}"})
    assert one["p_value"] == two["p_value"] == 1.0
    marked = reader(rows[1])["p_value"]
    assert reader({"body": f"> {rows[1]['body']}"})["p_value"] == pytest.approx(marked, rel=1e-6)
