import builtins
import gzip
import json
import lzma
import sys
import types

import pytest

from wm_env.lm.prompts import C4_WORDS, openings, read_prompts


def write(path, text):
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        file.write(text)
    return str(path)


PROMPTS = ("One  two.", "Zwei, drei – ♩", " leading space", "last ")


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.txt.gz", "prompts.XZ", "prompts"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_one_prompt_a_line(tmp_path, name, ends):
    source = write(tmp_path / name, ends.join(PROMPTS) + ends)
    assert read_prompts(source) == PROMPTS
    assert read_prompts(write(tmp_path / name, "\ufeff" + ends.join(PROMPTS))) == PROMPTS


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.gz", "prompts.jsonl.xz", "news.2020.JSONL"])
def test_json_lines(tmp_path, name):
    records = [{"text": prompt + "\nmore", "url": "x"} for prompt in PROMPTS]
    source = write(tmp_path / name, "".join(json.dumps(record) + "\n" for record in records))
    assert read_prompts(source) == tuple(prompt + "\nmore" for prompt in PROMPTS)


def test_shipped_prompts_are_news_openings():
    prompts = read_prompts("shipped")
    assert len(prompts) == len(set(prompts)) == 250
    assert all(40 <= len(prompt.split()) <= 80 for prompt in prompts)


def test_draws_are_seeded_subsets_in_order(tmp_path):
    everything = tuple(f"prompt {number}" for number in range(100))
    source = write(tmp_path / "many", "\n".join(everything))
    drawn = read_prompts(source, 10, seed=3)
    assert drawn == read_prompts(source, 10, seed=3)
    assert drawn != read_prompts(source, 10, seed=4)
    assert len(set(drawn)) == 10
    assert list(drawn) == [prompt for prompt in everything if prompt in drawn]
    assert read_prompts(source, 100, seed=5) == everything


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"", "holds no prompt"),
        ("p.txt", b"one\n\ntwo\n", "line 2: an empty prompt"),
        ("p.txt", b"one\n \t\n", "line 2: an empty prompt"),
        ("p.txt", b"caf\xe9\n", "not UTF-8"),
        ("p.txt.gz", b"no gzip", r"no complete \.gz file"),
        ("p.jsonl", b'{"text": "one"}\nnonsense\n', "line 2 is not JSON"),
        ("p.jsonl", b"[" * 100_000, "line 1 is not JSON: nested too deeply"),
        ("p.jsonl", rb'{"text": "a\ud800b"}', "line 1: text is .*, text is needed"),
        ("p.jsonl", b'{"title": "one"}\n', "line 1: text is missing"),
        ("p.jsonl", b'{"text": 3}\n', "line 1: text is 3, text is needed"),
        ("p.jsonl", b'["text"]\n', "line 1 is .*, an object is needed"),
        ("p.jsonl", b'{"text": ""}\n', "line 1: an empty prompt"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_prompts(str(tmp_path / name))


def test_missing_file_and_folder(tmp_path):
    for name in ("nothing", "nothing.gz"):
        with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
            read_prompts(str(tmp_path / name))
    with pytest.raises(OSError, match="is a folder"):
        read_prompts(str(tmp_path))


@pytest.mark.parametrize(("count", "message"), [(0, "at least 1"), (-3, "at least 1"), (5, "holds 4")])
def test_bad_counts(tmp_path, count, message):
    with pytest.raises(ValueError, match=message):
        read_prompts(write(tmp_path / "p", "\n".join(PROMPTS)), count)


def test_c4_says_what_is_missing(monkeypatch):
    real = builtins.__import__

    def without_datasets(name, *arguments, **options):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(ValueError, match="datasets package"):
        read_prompts("c4", 3)
    with pytest.raises(ValueError, match="how many"):
        read_prompts("c4")


class Articles(list):
    def shuffle(self, seed, buffer_size):
        assert buffer_size > 0
        return self[seed:]


def test_c4_takes_the_openings_of_long_articles(monkeypatch):
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return Articles({"text": " ".join(f"w{n}" for n in range(start, start + size))} for start, size in lengths)

    lengths = [(0, C4_WORDS - 1), (100, C4_WORDS), (300, 3 * C4_WORDS), (900, C4_WORDS)]
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    prompts = read_prompts("c4", 2, seed=1)
    assert [prompt.split()[0] for prompt in prompts] == ["w100", "w300"]
    assert {len(prompt.split()) for prompt in prompts} == {C4_WORDS}
    assert asked == [(("allenai/c4", "realnewslike"), {"split": "train", "streaming": True})]


def test_c4_without_a_network(monkeypatch):
    def load_dataset(*arguments, **options):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(OSError, match=r"could not be fetched: no route; a file"):
        read_prompts("c4", 2)


def test_openings_of_too_few_articles():
    articles = ["word " * 10, "word\n" * C4_WORDS]
    assert openings(articles, 1) == (" ".join(["word"] * C4_WORDS),)
    with pytest.raises(ValueError, match=f"2 prompts were asked for, 1 articles have {C4_WORDS} words: ask for fewer"):
        openings(articles, 2)
