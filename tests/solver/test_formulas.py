"""Pages and code of the models say the same: every number of a page is one function of the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

MODELS = {
    "flow": (Path("docs/flow.md"), Path("solver/flow"), 62),
    "cp-sat": (Path("docs/cp-sat.md"), Path("solver/cp_sat"), 12),
}


def numbers_of_page(text: str) -> list[int]:
    r"""Numbers of a page's formulas: of \tag{5a} and \tag{5b} it is 5, once."""
    tags = re.findall(r"\\tag\{(\d+)([a-z]?)\}", text)
    assert len(tags) == len(set(tags)) == text.count(r"\tag")
    return list(dict.fromkeys(int(number) for number, _ in tags))


def functions_of_code(folder: Path) -> list[tuple[int, str]]:
    """Functions whose docstrings begin with a number, with the module of each."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                number = re.match(r"\((\d+)\): [A-Z]", ast.get_docstring(node) or "")
                if number:
                    found.append((int(number[1]), f"{file.stem}.{node.name}"))
    return sorted(found)


@pytest.mark.parametrize("model", MODELS)
def test_every_number_of_a_page_is_one_function_and_every_such_function_is_on_the_page(
    pytestconfig: pytest.Config, model: str
) -> None:
    page, folder, count = MODELS[model]
    numbers = numbers_of_page((pytestconfig.rootpath / page).read_text(encoding="utf-8"))
    functions = functions_of_code(pytestconfig.rootpath / folder)
    assert sorted(numbers) == list(range(1, count + 1))
    assert [number for number, _ in functions] == sorted(numbers), Counter(functions)


def table_of_flow(root: Path) -> list[tuple[int, tuple[str, ...], str]]:
    """Numbers, names of rows and functions, as the page lists them."""
    text = (root / "docs" / "flow.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| \((\d+)\) \| (.+) \| `(.+)` \|$", text, re.MULTILINE)
    return [(int(number), tuple(re.findall("`(.+?)`", rows)), function) for number, rows, function in lines]


def test_the_table_of_flow_names_the_functions(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    listed = [(number, function) for number, _, function in table_of_flow(root)]
    assert listed == functions_of_code(root / "solver" / "flow")


def test_the_table_of_flow_names_the_rows_that_functions_make(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    made = {
        keyword.value.value
        for file in (root / "solver" / "flow").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "family" and isinstance(keyword.value, ast.Constant)
    }
    named = [name for _, names, _ in table_of_flow(root) for name in names]
    assert len(named) == len(set(named)) > 30
    assert set(named) == made
