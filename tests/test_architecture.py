"""The house: which room may import which, how large a room may be, and that the tests have the same rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

from repository import ROOT

ROOMS = (
    "wm_env.common",
    "wm_env",
    "wm_env.theory",
    "wm_env.lm",
    "wm_env.lm.models",
    "wm_env.lm.pools",
    "wm_env.lm.build",
    "wm_env.texts",
    "wm_env.lm.pretrain",
    "agents.common",
    "agents.primal_dual",
    "agents.ppo_lagrangian",
    "agents.planner",
    "agents.training",
    "agents",
    "polar.compiling",
    "polar.code",
    "polar.text",
    "polar.serve",
    "polar.evaluation",
    "polar.evaluation.live",
    "polar",
)
"""Rooms from the ground up: a module imports from its own room and from those before it."""

COMMANDS = {
    "wm_env.lm.quality": "wm_env.lm.pretrain",
    "wm_env.lm.quantise": "wm_env.lm.models",
    "wm_env.lm.verify": "polar",
}
"""Commands whose public path lies in a room below the one that they belong to."""

MOST_MODULES = 14


def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    files = [file for top in ("wm_env", "agents", "polar") for file in (ROOT / top).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


MODULES = modules()


def imports(file: Path) -> Iterator[str]:
    """The modules of the product that a file imports, wherever in the file, but for its types alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules_inside = [name for name in inner if name in MODULES]
            yield from modules_inside
            if len(modules_inside) < len(inner):
                yield node.module


def room(module: str) -> str:
    """The innermost room of a module; the folders of schemes belong to the room of texts."""
    return COMMANDS.get(module) or max(
        (name for name in ROOMS if module == name or module.startswith(name + ".")), key=len
    )


def test_imports_run_one_way() -> None:
    wrong = [
        f"{module} imports {other} from a room above its own"
        for module, file in MODULES.items()
        for other in imports(file)
        if ROOMS.index(room(other)) > ROOMS.index(room(module))
    ]
    assert not wrong


def test_agents_and_polar_do_not_know_each_other() -> None:
    for module, file in MODULES.items():
        other = {"agents": "polar", "polar": "agents"}.get(module.split(".")[0])
        if other:
            assert not [name for name in imports(file) if name.split(".")[0] == other], module


def test_texts_need_the_polar_code_in_one_scheme_alone() -> None:
    users = {
        module
        for module, file in MODULES.items()
        if room(module) in ("polar.text", "polar.serve") and any(room(name) == "polar.code" for name in imports(file))
    }
    assert {user.rpartition(".")[0] for user in users} == {"polar.text.schemes.parallel"}


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: set(imports(file)) - {module} for module, file in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_one_module_shows_progress_and_one_ends_commands() -> None:
    """Bars and times that are left come from one module, exit codes and lines for errors from another."""
    product = {f"{name}": file for name, file in MODULES.items()} | {
        f"benchmarks.{file.stem}": file for file in (ROOT / "benchmarks").glob("*.py")
    }
    words = {"tqdm": "wm_env.common.progress", "tell_failure": "wm_env.common.command"}
    for word, owner in words.items():
        assert [name for name, file in product.items() if word in file.read_text("utf-8")] == [owner], word


def test_one_module_prints() -> None:
    """What is printed may hold names that others chose: `say` and `tell` make them visible."""
    calls = {
        name
        for name, file in MODULES.items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write")
    }
    assert calls == {"wm_env.common.command"}


def test_a_public_name_has_one_meaning() -> None:
    """Each is defined in one module; `main` and `Options` are the entry and the options of every command."""
    defined: dict[str, set[str]] = {}
    for module, file in MODULES.items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, set()).add(module)
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert twice.keys() <= {"main", "Options"}, twice


def test_no_room_is_crowded() -> None:
    for folder in {file.parent for file in MODULES.values()}:
        names = [file.name for file in folder.glob("*.py") if not file.name.startswith("__")]
        assert len(names) <= MOST_MODULES, f"{folder.relative_to(ROOT)} has {len(names)} modules"


def test_every_package_says_what_it_is() -> None:
    for folder in {file.parent for file in MODULES.values()}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder


def test_the_tests_have_the_same_rooms() -> None:
    known = {str(file.parent.relative_to(ROOT)) for file in MODULES.values()}
    for file in (ROOT / "tests").rglob("test_*.py"):
        place = str(file.parent.relative_to(ROOT / "tests"))
        assert place in known or place in (".", "benchmarks", "commands", "docs", "examples"), place
