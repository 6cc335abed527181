"""One command builds the texts from the committed data; without TeX it fails only where it must not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import text
import typeset
from pebbler.instances.errors import PebblerError
from typeset import REQUIRED, TEXTS, commands, main, run_tex


@pytest.fixture
def arguments(pytestconfig: pytest.Config, tmp_path: Path) -> list[str]:
    root = pytestconfig.rootpath
    return ["--folder", str(root / "paper"), "--docs", str(root / "docs"), "--out", str(tmp_path / "out")]


def _without_tex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)


def test_what_tex_reads_is_written_without_tex(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    _without_tex(monkeypatch)
    monkeypatch.delenv(REQUIRED, raising=False)
    monkeypatch.setattr(text, "pdf", lambda _: b"")  # drawing takes seconds
    main(arguments)
    assert capsys.readouterr().out.count("there is no TeX here") == 2
    committed = pytestconfig.rootpath / "paper" / "generated"
    made = {path.name for path in (tmp_path / "out" / "generated").iterdir()}
    assert made == {path.name for path in committed.iterdir()}
    for path in committed.glob("*.tex"):
        assert (tmp_path / "out" / "generated" / path.name).read_bytes() == path.read_bytes(), path.name
    monkeypatch.setenv(REQUIRED, "required")
    monkeypatch.setattr(typeset, "prepare", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "there is no TeX; install latexmk" in capsys.readouterr().err


def test_latexmk_comes_before_pdflatex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda word: word)
    assert [step[0] for step in commands("pebbler") or ()] == ["latexmk"]
    monkeypatch.setattr(shutil, "which", lambda word: None if word == "latexmk" else word)
    assert [step[0] for step in commands("pebbler") or ()] == ["pdflatex", "bibtex", "pdflatex", "pdflatex"]
    assert [step[0] for step in commands("supplement") or ()] == ["pdflatex", "pdflatex"]


@pytest.mark.parametrize(
    ("program", "log", "message"),
    [
        ("print('! Missing $ inserted.'); raise SystemExit(1)", "", "fails on a.tex: ! Missing"),
        ("", "LaTeX Warning: Reference `x' on page 1 undefined", "Reference `x' on page 1 undefined"),
        ("", "LaTeX Warning: Citation `y' undefined", "Citation `y' undefined"),
    ],
)
def test_what_tex_says_is_told_in_a_sentence(program: str, log: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(log, encoding="utf-8")
    with pytest.raises(PebblerError, match=message.replace("$", r"\$")):
        run_tex(tmp_path, "a", [[sys.executable, "-c", program]])


@pytest.mark.skipif(shutil.which("latexmk") is None, reason="needs TeX with latexmk")
def test_texts_build(arguments: list[str], tmp_path: Path) -> None:
    main(arguments)
    for name in TEXTS:
        assert (tmp_path / "out" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
