"""What --help shows of the options, against the docs in the source."""

import ast
import importlib
import itertools
from dataclasses import dataclass

import pytest
from repository import ROOT

from wm_env.common.arguments import parse
from wm_env.common.help import paragraph_help

OPTIONS = {
    "agents.train": ["Options"],
    "polar.evaluate": ["Options"],
    "polar.evaluation.settings": ["EvaluationSettings"],
    "agents.common.settings": ["PolicySettings", "RunSettings"],
    "agents.primal_dual.settings": ["LearnerSettings"],
    "agents.ppo_lagrangian.settings": ["PPOSettings"],
    "polar.text.command_line.options": ["Model", "Agreement", "Keygen", "Embed", "Decode", "Detect"],
    "polar.serve.options": ["Serve", "ServeLimits"],
    "polar.text.settings": ["LawSettings", "Limits"],
    "polar.text.schemes.block.__init__": ["Block"],
    "polar.text.schemes.parallel.__init__": ["Parallel"],
    "wm_env.lm.build.options": ["BuildOptions"],
    "wm_env.theory.capacity": ["Solve"],
}


@paragraph_help
@dataclass(frozen=True)
class Sized:
    """How large it is."""

    length: int = 1
    """Metres,
    from end to end."""
    width: int = 2
    """Metres."""


def classes_of(module):
    """By name the classes of a module, each with the docs of its fields as they are in the source."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    return {
        node.name: {
            field.target.id: doc.value.value
            for field, doc in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        }
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in OPTIONS.items() for name in names])
def test_the_doc_of_every_option_is_one_paragraph(module, name):
    expected = [f"    {field}: {' '.join(doc.split())}" for field, doc in classes_of(module)[name].items()]
    shown = getattr(importlib.import_module(module), name).__doc__.splitlines()
    assert shown[-len(expected) :] == expected
    assert shown[-len(expected) - 1] == "Attributes:"


def test_all_options_with_docs_of_several_lines_are_known_here():
    files = [path for folder in ("agents", "polar", "wm_env") for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in files:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "import tyro" in path.read_text() or path.stem.endswith(("options", "settings")):
            for name, docs in classes_of(module).items():
                if any("\n" in doc for doc in docs.values()):
                    assert name in OPTIONS.get(module, ()), f"{path}: decorate {name} with paragraph_help"


def test_help_has_no_line_breaks_of_the_source(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse(Sized, args=["--help"])
    printed = capsys.readouterr().out
    assert "Metres, from end to end. (default: 1)" in printed
    assert "Metres. (default: 2)" in printed
    assert printed.count("How large it is.") == 1
    assert "Attributes" not in printed
    assert parse(Sized, args=["--width", "3"]) == Sized(1, 3)
