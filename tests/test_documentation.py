"""The documentation runs: its blocks, the commands that it names, and its links.

Every block of code is run as it stands, in order, in a folder of the page. A comment before it says more:

- ``<!-- needs torch, torchvision -->``: it is run where these modules are installed;
- ``<!-- not run: takes minutes -->``: it is not run, for that reason;
- ``<!-- file NAME -->``: it is a file that lies in the folder before anything runs;
- ``<!-- file NAME: PATH -->``: such a file is PATH of the repository;
- ``<!-- output -->``: it is what the command before it prints, but for times of solving.

Of blocks that are not run, Python is compiled, and what it takes from pebbler exists and takes these
arguments; of commands, the arguments are read.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import pkgutil
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import pebbler
from pebbler.benchmark.sweeps.config import read_config
from pebbler.cli.main import main
from pebbler.heuristics.methods import temporary_methods
from pebbler.instances.files import read_document
from pebbler.instances.networks import kinds, zoo
from pebbler.validate.execution.cpu import kernels as cpu
from pebbler.validate.execution.cuda import calls as cuda
from pebbler.validate.schedule import Schedule

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
PAGES = {str(path.relative_to(ROOT)): path for path in (*AT_THE_ROOT, *(ROOT / "docs").glob("*.md"))}
SCRIPTS = (ROOT / "docs" / "scripts", ROOT / "paper" / "scripts")
FOLDERS = ("docs", "paper", "tests", "instances", "validate", "heuristics", "solver", "benchmark", "src")
LANGUAGES = {"csv", "json", "python", "sh", "text", "toml"}
LEFT_OUT = {"cd", "dask", "latexmk", "mkdir", "pip", "pytest", "source", "tar", "venv"}
"""Commands that are not ours."""

TABLES = (
    (kinds, "KINDS"),
    (zoo, "ENTRIES"),
    (cpu, "KERNELS"),
    (cuda, "REGISTERED"),
    (cuda, "SOURCES"),
)
"""What a page may add to."""

READERS = {
    "pebbler/instance/1": pebbler.read_instance,
    "pebbler/profile/1": pebbler.read_profile,
    "pebbler/schedule/1": partial(read_document, kind=Schedule, what="a schedule"),
    "pebbler/trace/1": pebbler.read_trace,
}

FENCED = re.compile(
    r"^(?P<marks>(?: *<!--.*-->\n)*)(?P<indent> *)```(?P<language>.*)\n(?P<text>(?:.*\n)*?)(?P=indent)```$",
    re.MULTILINE,
)
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


@dataclass(frozen=True)
class Block:
    """A block of code in a page, with the marks before it by their first word."""

    language: str
    text: str
    line: int
    marks: dict[str, str]

    def missing(self) -> list[str]:
        """Modules that it needs and that are not installed."""
        needed = self.marks["needs"].split(", ") if "needs" in self.marks else []
        return [module for module in needed if find_spec(module) is None]

    def runs(self) -> bool:
        return "not run:" not in self.marks and not self.missing()


@cache
def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


@cache
def blocks_of(page: str) -> list[Block]:
    text = text_of(page)
    return [
        Block(
            language=found["language"],
            text=textwrap.dedent(found["text"]),
            line=text[: found.start("text")].count("\n") + 1,
            marks=dict(re.findall(r"<!-- (needs|not run:|file|output) ?(.*?) ?-->", found["marks"])),
        )
        for found in FENCED.finditer(text)
    ]


@cache
def prose_of(page: str) -> str:
    """The page without its blocks."""
    return FENCED.sub("", text_of(page))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty folder, from which modules are imported; what a page registers is its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, table in TABLES:
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    with temporary_methods():
        yield tmp_path


# --- what is run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "rendered"),
    [
        *(
            pytest.param(page, False, id=page, marks=pytest.mark.landing if page == "README.md" else [])
            for page in PAGES
            if blocks_of(page)
        ),
        pytest.param("README.md", True, id="README.md with its pictures", marks=pytest.mark.slow),
    ],
)
def test_blocks_of_a_page_run(
    page: str, rendered: bool, folder: Path, request: pytest.FixtureRequest
) -> None:
    if not rendered:
        request.getfixturevalue("unrendered")
    for block in blocks_of(page):
        name, _, place = block.marks.get("file", "").partition(": ")
        if place:
            shutil.copyfile(ROOT / place, folder / name)
        elif name:
            (folder / name).write_text(block.text, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": page}
    printed = ""
    for block in blocks_of(page):
        where = f"{page}:{block.line}"
        if block.language == "python":
            code = compile(block.text, where, "exec")
            tree = ast.parse(block.text)
            _require_calls(tree, _imported(tree), where)
            if block.runs() and "file" not in block.marks:
                printed = _executed(code, namespace)
        elif block.language == "sh":
            for words in _commands(block.text):
                printed = _run(words, where) if block.runs() else _read(words, where)
        elif block.language in ("json", "toml"):
            _read_document(block, folder / f"{block.line}.{block.language}")
        elif "output" in block.marks:
            assert _untimed(block.text) == _untimed(printed), where


def _executed(code: CodeType, namespace: dict[str, Any]) -> str:
    """Execute Python, and return what it prints; methods that it registers have to find schedules."""
    known = {info.name for info in pebbler.list_methods()}
    with redirect_stdout(io.StringIO()) as output:
        exec(code, namespace)
    printed = output.getvalue()
    for name in {info.name for info in pebbler.list_methods()} - known:
        assert re.search(rf"^{name} +(feasible|optimal) ", printed, re.MULTILINE), printed
    assert "failed" not in printed, printed
    return printed


def _commands(text: str) -> Iterator[list[str]]:
    """Words of each command, without the folder that it lies in."""
    for line in text.replace("\\\n", " ").splitlines():
        command: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word != "&&":
                command.append(word)
            elif command:
                name = Path(command[0]).name
                yield ["python" if name == "python3" else name, *command[1:]]
                command = []


def _run(words: Sequence[str], where: str) -> str:
    """Run a command, and return what it prints."""
    if words[0] == "pebbler":
        with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
            status = main(words[1:])
        assert status == 0, f"{where}: {shlex.join(words)}\n{errors.getvalue()}"
        return output.getvalue()
    if words[0] == "python" and Path(words[1]).exists():  # a file of the page
        with redirect_stdout(io.StringIO()) as output, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", list(words[1:]))
            runpy.run_path(words[1], run_name="__main__")
        return output.getvalue()
    if words[0] == "sqlite3":
        file, query = words[1:]
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute(query).fetchone() is not None, where
        return ""
    return _read(words, where)


def _read(words: Sequence[str], where: str) -> str:
    """Have the arguments of a command read, and nothing else done."""
    if words[0] in LEFT_OUT or (words[0] == "python" and words[1] == "-m" and words[2] in LEFT_OUT):
        return ""
    parse = argparse.ArgumentParser.parse_args

    def stop(*given: Any) -> None:
        parse(*given)
        raise SystemExit(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        status, _, errors = _called(words)
    assert status == 0, f"{where}: {shlex.join(words)}\n{errors}"
    return ""


def _called(words: Sequence[str]) -> tuple[object, str, str]:
    """Exit status, output and errors of pebbler or of a script, called as from the root of the checkout."""
    if words[0] == "python" and words[1] == "-m" and words[2].startswith("pebbler"):
        # what is a whole program has signals and an end of its own
        done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            if words[0] == "pebbler":
                status: object = main(words[1:])
            else:
                assert words[0] == "python", words
                _execute(words[1:])
                status = 0
        except SystemExit as end:
            status = end.code or 0
    return status, output.getvalue(), errors.getvalue()


def _execute(words: Sequence[str]) -> None:
    """Execute a script or a module as Python does: it is told apart from what tests have imported already."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        patch.chdir(ROOT)
        others = [place for place in sys.path if Path(place) not in SCRIPTS]
        for script in (script for place in SCRIPTS for script in place.glob("*.py")):
            patch.delitem(sys.modules, script.stem, raising=False)
        if words[0] == "-m":
            patch.setattr(sys, "path", [str(ROOT), *others])
            patch.setattr(sys, "argv", list(words[1:]))
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            script = ROOT / words[0]
            assert "ArgumentParser" in script.read_text(encoding="utf-8"), f"{words[0]} reads no arguments"
            patch.setattr(sys, "path", [str(script.parent), *others])
            patch.setattr(sys, "argv", list(words))
            runpy.run_path(str(script), run_name="__main__")


def _read_document(block: Block, file: Path) -> None:
    """Parse a document, and read it as pebbler does where it is one of ours."""
    document = json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)
    file.write_text(block.text, encoding="utf-8")
    if "format" in document:
        READERS[document["format"]](file)
    if "sweep" in document:
        read_config(file)


def _untimed(printed: str) -> list[list[str]]:
    """Words of each line, without a time at its end."""
    return [re.sub(r"[\d.]+ s$", "", line).split() for line in printed.splitlines()]


def _imported(tree: ast.AST) -> dict[str, Any]:
    """What code imports from pebbler, by its names there."""
    return {
        alias.asname or alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pebbler")
        for alias in node.names
    }


def _require_calls(tree: ast.AST, names: dict[str, Any], where: str) -> None:
    """Calls of what has these names, and of methods of an object just made, give arguments that there are."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, own = _called_by(node, names)
        if called is None:
            continue
        keywords = {word.arg: None for word in node.keywords if word.arg}
        signature = inspect.signature(called)
        try:
            if any(isinstance(word, ast.Constant) and word.value is ... for word in node.args):
                signature.bind_partial(**keywords)
            else:
                signature.bind(*own, *node.args, **keywords)
        except TypeError as error:
            pytest.fail(f"{where}: {ast.unparse(node)}: {error}")


def _called_by(node: ast.Call, names: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What a call calls, and what it is called on; None where that is none of the names' business."""
    function = node.func
    if isinstance(function, ast.Name):
        return names.get(function.id), []
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
        made = function.value.func  # such as Workload(...).instance(...)
        kind = names.get(made.id) if isinstance(made, ast.Name) else None
        if inspect.isclass(kind):
            return getattr(kind, function.attr), [kind]
    return None, []


# --- what the text names ------------------------------------------------------------------------------


@cache
def _help(*words: str) -> str:
    status, output, errors = _called([*words, "--help"])
    assert status == 0, f"{shlex.join(words)} --help\n{errors}"
    return output


def _spans(page: str) -> Iterator[str]:
    """What is set as code within the text, each in one line."""
    for span in re.findall(r"`([^`]+)`", prose_of(page)):
        yield " ".join(span.replace("\\|", "|").split())


def _named(span: str) -> tuple[tuple[str, ...], str] | None:
    """The command that a span names, and the rest of it; None where it names none."""
    words = span.split(" | ")[0].split()
    commands = re.findall(r"^    ([a-z][a-z-]+)  ", _help("pebbler"), re.MULTILINE)
    if words[:1] == ["pebbler"] and words[1:] and words[1] != "COMMAND":
        return ("pebbler", words[1]), " ".join(words[2:])
    if words[:2] == ["python", "-m"]:
        return tuple(words[:3]), " ".join(words[3:])
    if words[:1] == ["python"] and words[1:]:
        return tuple(words[:2]), " ".join(words[2:])
    if words[0] in commands and OPTION.search(span):
        return ("pebbler", words[0]), " ".join(words[1:])
    return None


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_have_the_options_that_it_names(page: str) -> None:
    for named in filter(None, map(_named, _spans(page))):
        command, rest = named
        unknown = set(OPTION.findall(rest)) - set(OPTION.findall(_help(*command)))
        assert not unknown, f"{page}: {shlex.join(command)} has no {sorted(unknown)}"


@pytest.mark.parametrize("page", PAGES)
def test_calls_in_the_text_have_arguments_that_there_are(page: str) -> None:
    names = {name: getattr(pebbler, name) for name in dir(pebbler)}
    for span in _spans(page):
        if re.match(r"\w+\(", span):
            with suppress(SyntaxError):
                _require_calls(ast.parse(span), names, page)


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_files_in_the_text_exist(page: str) -> None:
    for span in _spans(page):
        dotted = re.match(r"pebbler(?:\.\w+)+", span)
        if dotted:
            assert _is_there(dotted[0]), f"{page}: there is no {dotted[0]}"
        elif re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[a-z_\d/-]+\.(?:cu|json|md|py|sqlite|toml)", span):
            assert (ROOT / span).exists(), f"{page}: there is no {span}"


def _is_there(dotted: str) -> bool:
    """Whether a dotted name is that of a module, an old one too, or of what lies in one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


# --- form and links -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_fenced_and_say_their_language(page: str) -> None:
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    assert "```" not in prose_of(page)
    assert not re.search(r"^\n {4,}\S(?<![-*\d])", prose_of(page), re.MULTILINE)
    for block in blocks_of(page):
        assert block.marks.get("not run:", "a reason"), f"{page}:{block.line} says no reason"


def _links(page: str) -> list[str]:
    """Where the links and pictures of a page lead, other than to the Web."""
    prose = re.sub(r"`[^`]*`", "", prose_of(page))
    places = re.findall(r"\]\(([^()\s]+)\)", prose)
    return [place for place in places if not re.match(r"[a-z]+:", place)]


@cache
def _anchors(page: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub names them."""
    anchors: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE):
        words = re.sub(r"\]\([^)]*\)", "", heading.lower())
        anchor = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        seen[anchor] += 1
        anchors.add(anchor if seen[anchor] == 1 else f"{anchor}-{seen[anchor] - 1}")
    return anchors


def _target(page: str, place: str) -> str:
    """The file that a link of a page leads to, from the root."""
    path = place.partition("#")[0]
    return str(((PAGES[page].parent / path) if path else PAGES[page]).resolve().relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for place in _links(page):
        target, anchor = _target(page, place), place.partition("#")[2]
        assert (ROOT / target).exists(), f"{page}: {place}"
        if anchor:
            assert anchor in _anchors(target), f"{page}: {place}"


def test_every_page_is_reached_from_the_index() -> None:
    reached, open_pages = {"docs/index.md"}, ["docs/index.md"]
    while open_pages:
        page = open_pages.pop()
        new = {_target(page, place) for place in _links(page)} & PAGES.keys() - reached
        reached |= new
        open_pages += new
    assert PAGES.keys() - {page.name for page in AT_THE_ROOT} <= reached
    assert "docs/index.md" in {_target("README.md", place) for place in _links("README.md")}
