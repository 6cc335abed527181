"""The stand-ins have the parameters and classes of the packages, where these are installed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest

from . import stand_ins


def source_of(package: str, file: str) -> ast.Module:
    """The text of an installed package, which is not imported: that may take a GPU."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return ast.parse(Path(spec.origin).with_name(file).read_text(encoding="utf-8"))


def parameters(tree: ast.Module) -> dict[str, list[str]]:
    """Names of the parameters of every function, without defaults."""
    found = {}
    for one in tree.body:
        if isinstance(one, ast.FunctionDef):
            assert not one.args.kwonlyargs
            found[one.name] = [argument.arg for argument in one.args.args]
    return found


def attributes(tree: ast.Module, name: str) -> set[str]:
    (found,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    annotated = (one.target for one in found.body if isinstance(one, ast.AnnAssign))
    return {target.id for target in annotated if isinstance(target, ast.Name)}


def test_cupti_is_that_of_the_package() -> None:
    tree = source_of("cupti", "cupti.pyi")
    real, own = parameters(tree), stand_ins.Cupti()
    for name in ("activity_enable", "activity_disable", "activity_flush_all", "activity_register_callbacks"):
        assert list(inspect.signature(getattr(own, name)).parameters) == real[name]
    record = stand_ins.ActivityKernel10("kernel", 0)
    assert {"kind", *vars(record)} <= attributes(tree, "ActivityKernel10")
    assert {kind.name for kind in stand_ins.ActivityKind} <= attributes(tree, "ActivityKind")
    assert {status.name for status in stand_ins.Result} <= attributes(tree, "Result")
    assert stand_ins.cuptiError(35).status == 35


def test_nvml_is_that_of_the_package() -> None:
    tree = source_of("pynvml", "pynvml.py")
    real, own = parameters(tree), stand_ins.Nvml()
    for name in [name for name in dir(own) if name.startswith("nvml")]:
        assert list(inspect.signature(getattr(own, name)).parameters) == real[name]
    numbers = {
        one.targets[0].id: one.value.value
        for one in tree.body
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Constant)
    }
    told = {name.replace("_", "").lower(): number for name, number in numbers.items()}
    for name, (number, _) in stand_ins.ERRORS.items():
        assert told[f"nvmlerror{name.lower()}"] == number
        error = stand_ins.NVMLError(number)
        assert (type(error).__name__, error.value) == (f"NVMLError_{name}", number)
