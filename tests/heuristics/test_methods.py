"""Methods of other packages."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pebbler
from pebbler.heuristics.methods import temporary_methods
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance

METHOD = """
import pebbler

@pebbler.register("{name}", "keep all", "a test")
def keep(instance, limits):
    builder = pebbler.ProgramBuilder(instance, memory=limits.memory)
    for k in range(len(instance.tasks)):
        builder.run(k, algorithm=0)
    return pebbler.Answer(builder.finish("{name}"))
"""
Package = Callable[[str, str], None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Install a package with one module of the given code, which its entry point names."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(module: str, code: str) -> None:
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(f"[pebbler.methods]\nmine = {module}\n", encoding="utf-8")
        importlib.invalidate_caches()

    with temporary_methods():
        yield install


def test_a_method_of_another_package_is_like_ours(package: Package, chain: Instance) -> None:
    with pytest.raises(PebblerError, match="there is no method 'outside'"):
        pebbler.find_method("outside")
    package("outside_package", METHOD.format(name="outside"))
    assert pebbler.find_method("outside").summary == "keep all"
    assert [info.name for info in pebbler.list_methods()].count("outside") == 1
    assert pebbler.list_methods()[-1].name == "outside"
    assert "outside" in [row.method for row in pebbler.compare(chain, time_limit=0).rows]
    assert pebbler.solve(chain, "outside").schedule is not None


@pytest.mark.parametrize(
    ("module", "code", "why"),
    [
        ("broken_package", "import nothing_of_this_name", "ModuleNotFoundError"),
        ("taken_package", METHOD.format(name="modnn"), "method 'modnn' is registered already"),
        ("wrong_package", "def", "SyntaxError"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_left_out_with_a_warning(
    package: Package, module: str, code: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    package(module, code)
    with caplog.at_level(logging.WARNING):
        names = [info.name for info in pebbler.list_methods()]
    assert "modnn" in names
    assert len(names) == len(set(names))
    (record,) = caplog.records
    assert module in record.getMessage()
    assert why in record.getMessage()
    caplog.clear()
    pebbler.list_methods()
    assert not caplog.records  # once
