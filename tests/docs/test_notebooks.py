"""The notebooks of the documentation run from their first cell to their last."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from repository import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()


def test_the_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["environment", "message"]
