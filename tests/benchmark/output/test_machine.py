"""What is told of a measurement's origin and memory."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pebbler.benchmark.output.machine import (
    PACKAGES,
    Origin,
    made_here,
    origin,
    package_versions,
    peak_rss_bytes,
    usable_cores,
)

MIB = 2**20

CHILD = """
from pebbler.benchmark.output.machine import limit_memory, peak_rss_bytes
before = peak_rss_bytes()
block = bytearray(b"x") * (100 * 2**20)
print(peak_rss_bytes() - before, before)
limit_memory(2 * 2**30)
try:
    bytearray(3 * 2**30)
except MemoryError:
    print("refused")
"""


def test_versions_are_those_installed() -> None:
    assert package_versions() == {name: version(name) for name in PACKAGES}
    assert "pebbler" in PACKAGES
    assert origin().packages == package_versions()


def test_packages_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> str:
        if name in ("pebbler", "ortools"):
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("pebbler.benchmark.output.machine.version", found)
    for told in (package_versions, origin, made_here):
        told.cache_clear()
    try:
        assert set(package_versions()) == set(PACKAGES) - {"pebbler", "ortools"}
        assert "numba" in made_here()
        assert "ortools" not in made_here()
    finally:
        for told in (package_versions, origin, made_here):
            told.cache_clear()


def test_origin_names_cores_and_memory() -> None:
    gigabytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE / 2**30
    assert origin().machine.endswith(f"{os.cpu_count()} cores, {gigabytes:.0f} GiB")
    assert origin().python == sys.version.split()[0]
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_origins_are_told_in_a_line() -> None:
    found = Origin("a machine", "3.1", {"one": "1", "two": "2"}, "abc")
    assert str(found) == "a machine; Python 3.1, one 1, two 2, revision abc"
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d: {re.escape(str(origin()))}", made_here())


def test_a_revision_is_dirty_if_its_code_is_changed_not_if_runs_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    def revision() -> str | None:
        origin.cache_clear()
        return origin().revision

    written = tmp_path / "docs" / "data" / "runs.jsonl"
    code, page = tmp_path / "docs" / "scripts" / "page.py", tmp_path / "docs" / "page.md"
    for file in (written, code, page):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1\n", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    clean = git("rev-parse", "--short=12", "HEAD").strip()
    try:
        written.write_text("2\n", encoding="utf-8")
        page.write_text("2\n", encoding="utf-8")
        assert revision() == clean
        code.write_text("2\n", encoding="utf-8")
        assert revision() == f"{clean}-dirty"
        git("add", ".")
        assert revision() == f"{clean}-dirty"
    finally:
        monkeypatch.undo()
        origin.cache_clear()


def test_peak_and_limit_of_a_process_are_its_own() -> None:
    large = b"x" * (200 * MIB)
    output = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    numbers, refused = output.splitlines()
    more, before = map(int, numbers.split())
    assert 95 * MIB < more < 110 * MIB
    assert before < 150 * MIB < len(large)
    assert refused == "refused"


def test_peak_includes_the_largest_child() -> None:
    subprocess.run([sys.executable, "-c", f"b'x' * {300 * MIB}"], check=True)
    assert peak_rss_bytes() > 320 * MIB
