from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import certificates
from certificates import BEGIN, END, main, measure, table
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import in_pages, with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.linear.model import LinearResult


def test_exactness_loses_next_to_nothing() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    point = measure(instance, 16)
    assert point is not None
    assert point.certificate.checkpoints
    assert len(point.certificate.checkpoints) == point.checkpoints
    assert abs(point.loss) < 1e-7


@pytest.mark.parametrize("variant", [with_recomputation, in_pages])
def test_variants_lose_as_little(variant: Callable[[Instance], Instance]) -> None:
    point = measure(variant(Workload("alexnet", 64, "k40").instance("1.1xMmin")), 16)
    assert point is not None
    assert abs(point.loss) < 1e-6


def test_a_program_that_does_not_end_has_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsolved(*_: object, **__: object) -> LinearResult:
        return LinearResult("unknown", None, None, -math.inf, "the time is up")

    monkeypatch.setattr(certificates, "LIMIT", 0.0)
    monkeypatch.setattr(certificates, "solve_linear", unsolved)
    text = table([("vgg16", Workload("vgg16", 64, "V100").instance("1.05xMmin"))], [64])
    assert "LP, 64 checkpoints | none in 0 s" in text


def test_the_table_goes_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (WorkloadProblem(Workload("alexnet", 64, "K40"), "1.05xMmin"),)
    monkeypatch.setattr(certificates, "CELLS", cells)
    monkeypatch.setattr(certificates, "VARIANTS", [("in whole pages", in_pages, cells[0])])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}{END}after\n", encoding="utf-8")
    main(["--write", str(page), "--most", "16"])
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}Python ")
    assert re.search(r"LP, \d+ checkpoints \| \d+\.\d+ ms \| \d+\.\d+ ms \| ", text)
    assert "alexnet/64/K40/1.05xMmin, in whole pages, " in text
    assert text.endswith(f"{END}after\n")
