"""Pictures that another process draws: the same ones, whatever becomes of that process, and none is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pebbler.benchmark.comparison.compare import compare
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.pictures import drawn as pictures_module
from pebbler.benchmark.pictures.drawn import Picture, drawer, drawn, timeline
from pebbler.heuristics.methods import Method
from pebbler.instances.instance import Instance
from pebbler.instances.processes.child import Child

from ...solver.processes import children


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures_module, "usable_cores", lambda: 2)


def evaluated(*expressions: str) -> list[Picture]:
    """As pictures, expressions: any process can evaluate those."""
    return [Picture(Path(str(i)), eval, (expression,)) for i, expression in enumerate(expressions)]


@pytest.fixture(scope="module")
def helper() -> Iterator[tuple[Child, int]]:
    """Another process that has loaded what it needs, and its number."""
    before = children()  # of other tests, which wait for more work
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures_module, "usable_cores", lambda: 2)
        with drawer(5) as other:
            assert other is not None
            other.result(60)
            (number,) = set(children()) - set(before)
            yield other, number


@pytest.mark.slow
def test_another_process_draws_the_same(
    helper: tuple[Child, int], chain: Instance, toys: Callable[..., None], keep: Method
) -> None:
    toys(keep=keep)
    rows = compare(chain).rows
    pictures = [
        Picture(Path(row.method), timeline, (row.instances[0], row.schedules[0], made_here())) for row in rows
    ]
    assert dict(drawn(pictures, helper[0])) == dict(drawn(pictures, None))


def test_it_begins_with_the_first_and_this_one_with_the_last(helper: tuple[Child, int]) -> None:
    other, number = helper
    found = dict(drawn(evaluated("__import__('os').getpid()", "__import__('os').getpid() * -1"), other))
    assert found == {Path("0"): number, Path("1"): -os.getpid()}


def test_while_it_loads_all_is_drawn_here() -> None:
    with drawer(5) as other:
        found = dict(drawn(evaluated(*["__import__('os').getpid()"] * 3), other))
    assert set(found.values()) == {os.getpid()}


def test_what_it_has_not_drawn_when_it_ends_is_drawn_here(helper: tuple[Child, int]) -> None:
    code = f"b'here' if __import__('os').getpid() == {os.getpid()} else __import__('os')._exit(3)"
    found = dict(drawn(evaluated(code, "b'here'", code), helper[0]))
    assert list(found.values()) == [b"here"] * 3


def test_it_ends_with_the_block_whatever_it_is_at() -> None:
    before = children()  # of other tests, which wait for more work
    with drawer(5):
        assert len(set(children()) - set(before)) == 1
    assert set(children()) <= set(before)


def test_few_pictures_and_one_core_need_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with drawer(4) as other:
        assert other is None
    monkeypatch.setattr(pictures_module, "usable_cores", lambda: 1)
    with drawer(100) as other:
        assert other is None
