"""The texts as LaTeX: what is opened is closed, and what is referred to is there, without running TeX."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

TEXTS = ("pebbler", "supplement")

PRINTED = {
    "53 to 79": "vDNN, section II-C",
    "24.1": "Layrub, Table 5",
    "5": "what we call reproduced",
    "0.1": "what the suite calls closed",
    "30": "the width that docs/costs.md counts within",
}
"""Percentages that may stand in a text as figures: what papers print and what we set; the rest are macros."""


def _without_comments(text: str) -> str:
    return re.sub(r"(?<!\\)%.*", "", text)


def _whole(folder: Path, name: str) -> str:
    """A text with all that it takes in."""
    text = _without_comments((folder / f"{name}.tex").read_text("utf-8"))
    return re.sub(r"\\input\{([^}]*)\}", lambda found: _whole(folder, found[1]), text)


@pytest.fixture(params=TEXTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath / "paper"


def unbalanced(text: str) -> list[str]:
    """What is opened and not closed, or closed and not opened: environments, braces and formulas."""
    found: list[str] = []
    open_: list[str] = []
    for what, environment in re.findall(r"\\(begin|end)\{([^}]*)\}", text):
        if what == "begin":
            open_.append(environment)
        elif not open_ or open_.pop() != environment:
            found.append(f"end of {environment}")
    found += [f"begin of {environment}" for environment in open_]
    plain = re.sub(r"\\[{}$%&#_\\]", "", text)
    depth = 0
    for line in plain.splitlines():
        for char in line:
            depth += {"{": 1, "}": -1}.get(char, 0)
            if depth < 0:
                return [*found, f"closing brace in: {line[:60]}"]
    if depth:
        found.append("opening brace")
    for paragraph in plain.split("\n\n"):
        if paragraph.count("$") % 2:
            found.append(f"dollar in: {paragraph.strip()[:60]}")
        for left, right in ((r"\left", r"\right"), (r"\bigl", r"\bigr"), (r"\Bigl", r"\Bigr")):
            opened, closed = (len(re.findall(rf"\{word}(?![a-zA-Z])", paragraph)) for word in (left, right))
            if opened != closed:
                found.append(f"{left} in: {paragraph.strip()[:60]}")
    return found


def test_what_is_opened_is_closed(folder: Path, name: str) -> None:
    assert unbalanced(_whole(folder, name)) == []


@pytest.mark.parametrize(
    "text",
    [
        r"\begin{a}\begin{b}\end{a}\end{b}",
        r"\begin{a}",
        r"\end{a}",
        "a {b",
        "a} {b",
        "$a$ and $b",
        r"$\Bigl(a)$",
    ],
)
def test_what_is_not_closed_is_found(text: str) -> None:
    assert unbalanced(text)


def test_a_reference_has_its_label_and_each_label_is_one(folder: Path, name: str) -> None:
    text = _whole(folder, name)
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    assert [label for label, times in Counter(labels).items() if times > 1] == []
    assert set(re.findall(r"\\(?:eq)?ref\{([^}]*)\}", text)) <= set(labels)


def test_each_float_of_the_text_is_referred_to(folder: Path) -> None:
    text = _whole(folder, "pebbler")
    floats = [label for label in re.findall(r"\\label\{([^}]*)\}", text) if re.match("fig:|tab:", label)]
    told = set(re.findall(r"\\ref\{([^}]*)\}", text))
    assert len(floats) > 5
    assert {label for label in floats if label not in told} <= {"tab:provenance"}


def test_captions_of_figures_have_two_lines_and_say_how_many_problems(folder: Path) -> None:
    text = _whole(folder, "pebbler")
    captions = re.findall(r"\\includegraphics[^\n]*\n\\caption\{([^\n]*)\}\n", text)
    assert len(captions) == text.count(r"\begin{figure}") >= 6
    assert [one for one in captions if len(one) > 200 or not re.search(r"\bn\b", one)] == []


def test_every_theorem_has_its_proof(folder: Path) -> None:
    text = _whole(folder, "pebbler")
    claims = re.findall(r"\\begin\{(?:theorem|proposition|lemma)\}", text)
    assert len(claims) == text.count(r"\begin{proof}") >= 14


def test_texts_ask_only_for_numbers_that_are_there(folder: Path, name: str) -> None:
    results = (folder / "generated" / "results.tex").read_text("utf-8")
    there = set(re.findall(r"result:([^#]*?)\\endcsname\{", results))
    asked = set(re.findall(r"\\result\{([^}#]*)\}", (folder / f"{name}.tex").read_text("utf-8")))
    assert asked
    assert asked <= there


CLAIMS = {
    "gaps/best": "flow",
    "gaps/best-rule": "modnn",
    "production/best-rule": "torchtitan-budget",
    "adversary/contradictions": "0",
    "checker/silent": "0",
    "gaps/step/problems": "40",
    "links/proven": "2",
    "parts/below": "5",
    "parts/by-word": "5",
}
"""What sentences of the text say in words; where a number changes, so must they."""


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_the_text_says_in_words_is_what_the_data_say(folder: Path, claim: str) -> None:
    results = (folder / "generated" / "results.tex").read_text("utf-8")
    assert rf"\csname result:{claim}\endcsname{{{CLAIMS[claim]}}}" in results


def test_percentages_are_macros_but_for_those_of_papers_and_ours(folder: Path, name: str) -> None:
    text = (folder / f"{name}.tex").read_text("utf-8")
    typed = re.findall(r"((?:[\d.]+ (?:to|and) )?[\d.]+)(?:\\,|~| )?\\%", text)
    assert set(typed) <= set(PRINTED)


def test_only_texts_cite_what_the_bibliography_has(folder: Path) -> None:
    text = _whole(folder, "pebbler")
    cited = {key for some in re.findall(r"\\cite(?:\[[^]]*\])?\{([^}]*)\}", text) for key in some.split(",")}
    bibliography = (folder / "pebbler.bib").read_text("utf-8")
    keys = re.findall(r"^@\w+\{([^,]*),", bibliography, re.MULTILINE)
    assert len(keys) == len(set(keys))
    assert cited == set(keys)
    assert unbalanced(bibliography) == []


def test_entries_have_what_their_kind_needs(folder: Path) -> None:
    needed = {
        "article": {"author", "title", "journal", "year"},
        "inproceedings": {"author", "title", "booktitle", "year"},
        "misc": {"author", "title", "howpublished", "year"},
        "book": {"author", "title", "publisher", "year"},
        "techreport": {"author", "title", "institution", "year"},
    }
    entries = re.findall(r"^@(\w+)\{([^,]*),\n(.*?)^\}", (folder / "pebbler.bib").read_text(), re.M | re.S)
    for kind, key, body in entries:
        assert needed[kind] <= set(re.findall(r"^  (\w+) = ", body, re.MULTILINE)), key
