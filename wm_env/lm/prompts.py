"""Where prompts come from: the shipped ones, a file, or C4's news articles."""

from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np

from wm_env.common.files import first_line
from wm_env.common.json_values import entry, parse_json
from wm_env.lm.text_files import PACKED, read_lines

C4_WORDS = 64
"""C4 holds whole articles; this many of their first words are the prompt."""

_C4_BUFFER = 10_000


def read_prompts(source: str, count: int | None = None, seed: int = 0) -> tuple[str, ...]:
    """Prompts from `source`, `count` of them drawn without replacement, in the order of the source.

    Args:
        source: "shipped" (250 openings of news articles), "c4" (the first `C4_WORDS` words of articles of C4's
            realnewslike part; needs the `c4` extra and a network), or a file: one prompt a line, or JSON lines with a
            "text" field where the name ends in .jsonl. Either may be compressed (.gz, .xz). UTF-8.
        count: how many; all by default (C4: must be given).
        seed: seed of the draw.

    Raises:
        OSError: the file cannot be read, or C4 cannot be fetched.
        ValueError: the file is damaged or holds an empty prompt or none at all, or `count` exceeds what there is.
    """
    if count is not None and count < 1:
        raise ValueError(f"{count} prompts: at least 1 is needed")
    if source == "c4":
        if count is None:
            raise ValueError("C4 has millions of articles: say how many prompts to draw")
        return _c4_prompts(count, seed)
    shipped = Path(str(resources.files("wm_env"))) / "data" / "prompts.txt"
    path = shipped if source == "shipped" else Path(source)
    prompts = read_prompt_file(path)
    if count is None:
        return prompts
    if count > len(prompts):
        raise ValueError(f"{count} prompts were asked for, {path} holds {len(prompts)}")
    chosen = np.sort(np.random.default_rng(seed).choice(len(prompts), count, replace=False))
    return tuple(prompts[row] for row in chosen)


def read_prompt_file(path: Path) -> tuple[str, ...]:
    """All prompts of a file; see `read_prompts`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or holds an empty prompt or none at all.
    """
    prompts = tuple(_file_prompts(path))
    if not prompts:
        raise ValueError(f"{path} holds no prompt")
    return prompts


def _file_prompts(path: Path) -> Iterator[str]:
    names = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    lines = _jsonl_texts if names[-1:] == [".jsonl"] else read_lines
    for number, text in enumerate(lines(path), start=1):
        if not text.strip():
            raise ValueError(f"{path}, line {number}: an empty prompt; remove the line")
        yield text


def _jsonl_texts(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}, line {number}"
        yield entry(parse_json(line, place), "text", str, place)


def _c4_prompts(count: int, seed: int) -> tuple[str, ...]:
    try:
        import datasets
    except ImportError:
        raise ValueError("C4 needs the datasets package: pip install 'covert-watermark[c4]'") from None
    try:
        articles = datasets.load_dataset("allenai/c4", "realnewslike", split="train", streaming=True)
        return openings((article["text"] for article in articles.shuffle(seed=seed, buffer_size=_C4_BUFFER)), count)
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"C4 could not be fetched: {first_line(error)}; a file of prompts works without a network"
        ) from None


def openings(articles: Iterable[str], count: int) -> tuple[str, ...]:
    """The first `C4_WORDS` words, single-spaced, of the first `count` articles that have as many.

    Raises:
        ValueError: fewer have.
    """
    prompts: list[str] = []
    for article in articles:
        words = article.split()
        if len(words) >= C4_WORDS:
            prompts.append(" ".join(words[:C4_WORDS]))
        if len(prompts) == count:
            return tuple(prompts)
    raise ValueError(f"{count} prompts were asked for, {len(prompts)} articles have {C4_WORDS} words: ask for fewer")
