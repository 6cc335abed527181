"""The rules of the house: which folders are shipped, who may import whom, what files may not name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from importlib import import_module, resources
from pathlib import Path

import networkx as nx
import pytest

import pebbler

FLOORS = ["instances", "validate", "heuristics", "solver", "benchmark"]
NOT_OURS = {".git", ".venv", ".hypothesis", "build", "dist", "pebbler-out", "__pycache__"}


@pytest.fixture(scope="module")
def root(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath


def library(root: Path) -> list[Path]:
    """Every module of the library."""
    face = root / "src" / "pebbler"
    floors = [file for floor in FLOORS for file in (root / floor).rglob("*.py")]
    return [*floors, *face.glob("*.py"), *(face / "cli").glob("*.py")]


@cache
def parsed(file: Path) -> ast.Module:
    """The syntax of a module."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> list[ast.AST]:
    """The whole syntax of a module."""
    return [*ast.walk(parsed(file))]


@cache
def imports(file: Path) -> list[ast.Import | ast.ImportFrom]:
    """Whatever a module imports, lazily or not."""
    return [node for node in nodes(file) if isinstance(node, ast.Import | ast.ImportFrom)]


def name_of(file: Path, root: Path) -> str:
    """Name of a module of the library."""
    parts = file.relative_to(root).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else ("pebbler", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(file: Path, package: str, known: Container[str] = ()) -> Iterator[str]:
    """Modules of the project that a module of `package` imports, lazily or not, in full.

    What is imported from a package is a module where it is `known` to be one.
    """
    for node in imports(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "pebbler")
        else:
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            if target == "pebbler":
                yield from (f"pebbler.{alias.name}" for alias in node.names)
            elif target.startswith("pebbler."):
                modules = {f"{target}.{alias.name}" for alias in node.names}
                yield from {one if one in known else target for one in modules}


def modules_of(root: Path, floor: str) -> Iterator[tuple[Path, str]]:
    """Files of a floor, each with the package that it is in."""
    for file in (root / floor).rglob("*.py"):
        yield file, ".".join(["pebbler", *file.relative_to(root).parent.parts])


def test_every_package_is_shipped(root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {"pebbler"} | {
        ".".join(["pebbler", *file.parent.relative_to(root).parts])
        for floor in FLOORS
        for file in (root / floor).rglob("__init__.py")
    }
    found |= {
        ".".join(file.parent.relative_to(root / "src").parts)
        for file in (root / "src").rglob("__init__.py")
        if not any(parent.is_symlink() for parent in file.parents)
    }
    assert set(settings["packages"]) == found
    assert set(settings["package-dir"]) >= {"pebbler", *(f"pebbler.{floor}" for floor in FLOORS)}


def test_every_data_file_is_shipped(root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    shipped = {
        file
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for file in root.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    data = {
        file
        for floor in FLOORS
        for file in (root / floor).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc", ".nbi", ".nbc")
    }
    assert len(data) > 5
    assert data <= shipped


@pytest.mark.parametrize("floor", FLOORS)
def test_the_face_links_to_each_floor(root: Path, floor: str) -> None:
    link = root / "src" / "pebbler" / floor
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", floor)


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_itself_and_what_lies_below(root: Path, floor: str) -> None:
    allowed = set(FLOORS[: FLOORS.index(floor) + 1])
    modules = list(modules_of(root, floor))
    assert modules
    for file, package in modules:
        reached = {target.split(".")[1] for target in imports_of(file, package)}
        assert reached <= allowed, f"{file.relative_to(root)} imports {sorted(reached - allowed)}"


def test_no_modules_import_each_other_in_a_circle(root: Path) -> None:
    names = {name_of(file, root): file for file in library(root)}
    arrows = nx.DiGraph()
    for name, file in names.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        arrows.add_edges_from((name, target) for target in imports_of(file, package, names) if target != name)
    assert arrows.number_of_edges() > 1000
    assert [sorted(part) for part in nx.strongly_connected_components(arrows) if len(part) > 1] == []


def test_a_room_has_at_most_fifteen_modules(root: Path) -> None:
    rooms = Counter(file.parent for file in library(root))
    assert len(rooms) > 20
    assert {str(room.relative_to(root)): count for room, count in rooms.items() if count > 15} == {}


def test_a_long_module_says_why_it_is_long(root: Path) -> None:
    """Above more than 600 lines stands a docstring with a sentence that begins "It is long because"."""
    texts = {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in library(root)}
    long = [file for file, text in texts.items() if len(text.splitlines()) > 600]
    docs = {file: " ".join(str(ast.get_docstring(ast.parse(texts[file]))).split()) for file in long}
    assert "heuristics/search/kernel.py" in long
    assert [file for file, doc in docs.items() if "It is long because" not in doc] == []


def test_the_page_on_the_code_names_every_room(root: Path) -> None:
    text = (root / "docs" / "code.md").read_text(encoding="utf-8")
    rooms = {file.parent.relative_to(root).as_posix() for file in library(root)}
    assert {room for room in rooms if f"`{room}/`" not in text} == set()


def test_scripts_that_write_pages_are_no_part_of_the_library(root: Path) -> None:
    scripts = [*(root / "docs" / "scripts").glob("*.py"), *(root / "paper" / "scripts").glob("*.py")]
    stems = {script.stem for script in scripts}
    assert len(stems) == len(scripts) > 30
    for file in library(root):
        for node in imports(file):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & stems, file
            elif not node.level and node.module:
                assert node.module.split(".")[0] not in stems, file


def names_made(file: Path) -> Iterator[str]:
    """Names that a module defines: functions, classes, what it assigns to, attributes too."""
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def names_used(file: Path) -> Iterator[tuple[int, str]]:
    """Names that a test asks of what is not its own, with the line: imports, attributes, what it patches."""
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):  # getattr, setattr
            texts = [str(given.value) for given in node.args if isinstance(given, ast.Constant)]
            yield from ((node.lineno, name) for text in texts for name in text.split("."))


def test_tests_ask_for_public_names_only(root: Path) -> None:
    scripts = [*(root / "docs" / "scripts").glob("*.py"), *(root / "paper" / "scripts").glob("*.py")]
    made = {name for file in (*library(root), *scripts) for name in names_made(file)}
    private = {name for name in made if re.fullmatch(r"_[^_]\w*[^_]", name)} - {"_replace"}  # of named tuples
    assert len(private) > 1000
    asked = [
        f"{file.relative_to(root)}:{line}: {name}"
        for file in sorted((root / "tests").rglob("*.py"))
        if private.intersection(re.findall(r"\w+", file.read_text(encoding="utf-8")))  # parsing takes longer
        for line, name in names_used(file)
        if name in private
    ]
    assert asked == []


@pytest.mark.parametrize("floor", FLOORS)
def test_paths_are_never_derived_from_the_module(root: Path, floor: str) -> None:
    for file, _ in modules_of(root, floor):
        assert "__file__" not in file.read_text(encoding="utf-8"), file


def test_the_checker_imports_only_the_instance_and_the_schedule(root: Path) -> None:
    own = ("check", "host_memory", "order", "times")
    reached = {
        name for module in own for name in imports_of(root / "validate" / f"{module}.py", "pebbler.validate")
    }
    reached -= {f"pebbler.validate.{module}" for module in own}
    assert reached == {
        "pebbler.instances.figures",  # has no more than constants and types of files
        "pebbler.instances.instance",
        "pebbler.validate.schedule",
    }


def test_the_replay_shares_nothing_with_the_checker_but_the_formats(root: Path) -> None:
    room = root / "validate" / "replay"
    reached = {name for file in room.glob("*.py") for name in imports_of(file, "pebbler.validate.replay")}
    own = {name for name in reached if name.startswith("pebbler.validate.replay.")}
    assert len(own) > 3
    assert reached - own == {"pebbler.instances.instance", "pebbler.validate.schedule"}


def test_types_are_shipped() -> None:
    assert resources.files("pebbler").joinpath("py.typed").is_file()


def test_public_names_are_the_same_for_type_checkers_and_at_run_time(root: Path) -> None:
    tree = ast.parse((root / "src" / "pebbler" / "__init__.py").read_text(encoding="utf-8"))
    declared = {
        alias.name: node.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name, home in declared.items():
        assert getattr(import_module(f"pebbler.{home}"), name) is getattr(pebbler, name)
        assert getattr(pebbler, name).__name__ == name
    assert set(dir(pebbler)) == {*declared, "__version__"}


def files_below(folder: Path) -> Iterator[Path]:
    """The files of the project in a folder and below it."""
    for inner in folder.iterdir():
        if inner.name in NOT_OURS or inner.name.endswith((".egg-info", "_cache")):
            continue
        if inner.is_dir() and not inner.is_symlink():
            yield from files_below(inner)
        elif inner.is_file():
            yield inner


def test_no_file_names_a_place_on_somebodys_machine(root: Path) -> None:
    named = [b"/%s/" % name for name in (b"work", b"root", b"home", b"Users")]
    place = re.compile(rb"(?<![\w.)}])(?:" + b"|".join(named) + rb")")
    files = [file for file in files_below(root) if file.suffix not in (".png", ".pyc")]
    assert len(files) > 30
    for file in files:
        content = file.read_bytes()
        if any(name in content for name in named):  # which is found much sooner
            assert not place.search(content), file.relative_to(root)


def test_what_the_suite_leaves_out_is_run_elsewhere(root: Path) -> None:
    options = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"][
        "ini_options"
    ]
    left_out = re.findall(r"not (\w+)", options["addopts"][-1])
    assert (
        left_out
        == ["slow", "landing"]
        == sorted((one.split(":")[0] for one in options["markers"]), reverse=True)
    )
    assert "$tests -m 'not slow'" in (root / ".ci" / "run").read_text(encoding="utf-8")
    assert "pytest -n 2 -m slow" in (root / ".ci" / "long").read_text(encoding="utf-8")
