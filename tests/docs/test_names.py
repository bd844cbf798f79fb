"""What the documents name is there: files of the repository, modules and their attributes, and tests."""

import pkgutil
import re
from pathlib import Path

import pytest
from repository import DOCUMENTS, ROOT

TEXTS = [" ".join(path.read_text(encoding="utf-8").split()) for path in DOCUMENTS]
INVENTED = {
    "agents/random_search.py",
    "agents.random_search",
    "polar/text/schemes/menu/__init__.py",
    "wm_env/criteria/hellinger.py",
    "wm_env.criteria.hellinger",
    "wm_env/criteria/thrifty.py",
    "wm_env.criteria.thrifty",
}
"""What the pages on extending have the reader write."""

FILES = r"\b(?:tests|benchmarks|examples|polar|wm_env|agents)/[\w/]+\.(?:py|md|yaml|txt|csv|json)\b"
NAMES = r"`((?:wm_env|polar|agents)(?:\.\w+)+)"
TESTS = r"pytest ((?:tests/[\w/.]+ ?)+)(?:-k (\w+))?"


def found(pattern: str) -> list[tuple[str, ...]]:
    """The groups of a pattern wherever it stands, each once."""
    matches = [match.groups() or (match.group(),) for text in TEXTS for match in re.finditer(pattern, text)]
    return sorted(set(matches), key=str)


@pytest.mark.parametrize("name", [file for (file,) in found(FILES) if file not in INVENTED])
def test_a_file_that_the_documents_name_is_there(name):
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("name", [name for (name,) in found(NAMES) if name not in INVENTED])
def test_a_module_or_what_is_in_it_is_there(name):
    pkgutil.resolve_name(name)


@pytest.mark.parametrize(("paths", "word"), found(TESTS))
def test_a_test_that_the_documents_name_is_there(paths, word):
    files: list[Path] = []
    for path in map(ROOT.joinpath, paths.split()):
        files += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        assert files
    assert word is None or any(re.search(rf"^def test_\w*{word}", file.read_text(), re.M) for file in files)
