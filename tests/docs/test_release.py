from __future__ import annotations

import re
from pathlib import Path

import pytest

import pebbler
import release

ROOT = Path(__file__).parents[2]
URLS = "\n".join(f'{name} = "https://example.org"' for name in release.URLS)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """The files of a release that lacks nothing, which the tests then damage."""
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "1.2.0"\n[project.urls]\n{URLS}\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0 (2030-01-31)\n\n## 1.1.0 (2029-12-01)\n")
    (tmp_path / "CITATION.cff").write_text(
        "version: 1.2.0\ndate-released: 2030-01-31\nrepository-code: https://example.org\n"
    )
    return tmp_path


def test_a_release_that_lacks_nothing(ready: Path) -> None:
    assert release.missing(ready, "v1.2.0") == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "1.2.0", "1.3.0", "the tag is v1.2.0, and pyproject.toml has version 1.3.0"),
        ("pyproject.toml", "Issues", "Other", r"\[project.urls\] of pyproject.toml should have Issues$"),
        ("CHANGELOG.md", "(2030-01-31)", "(unreleased)", "should be '## 1.2.0 "),
        ("CHANGELOG.md", "2030-01-31", "2030-02-01", "should have 'date-released: 2030-02-01'"),
        ("CITATION.cff", "version: 1.2.0", "version: 1.1.0", "should have 'version: 1.2.0'"),
        ("CITATION.cff", "repository-code", "url", "should have 'repository-code'"),
    ],
)
def test_what_a_release_lacks_is_told(ready: Path, file: str, old: str, new: str, said: str) -> None:
    text = (ready / file).read_text(encoding="utf-8")
    assert old in text
    (ready / file).write_text(text.replace(old, new), encoding="utf-8")
    assert [sentence for sentence in release.missing(ready, "v1.2.0") if re.search(said, sentence)]


def test_the_files_of_the_project_have_one_version() -> None:
    said = " ".join(release.missing(ROOT, f"v{pebbler.__version__}"))
    assert "version" not in said
    assert "the tag" not in said
