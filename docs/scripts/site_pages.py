"""What the site needs beside the pages: a reference from docstrings, pages of source files, and formulas.

The pages are written for GitHub. ``mkdocs build --strict`` makes the site of them, with this hook:

- each table of names in ``docs/python.md`` gets a page of the reference, made from the docstrings, and so
  does what pages import from modules;
- README and the other pages at the root are pages of the site, too;
- any other file of the repository to which a page links gets a page that shows it;
- in the reference, parameters that a docstring describes together have a type and a default each;
- formulas become MathML, which browsers show without a script;
- the few things that GitHub and Python-Markdown read in different ways are written in the latter's way.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.structure.files import File, InclusionLevel

NAMES = "python.md"
"""The page whose tables list the public names."""

ROOT = {name: name.lower() for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
"""Pages at the root of the repository, and their places on the site."""

ON_THE_SITE = {".css", ".md", ".png"}
"""Suffixes of what lies beside the pages and is on the site as it is."""

LANGUAGES = {".cff": "yaml", ".py": "python", ".sh": "bash", ".toml": "toml"}

OF_MODULES = "What pages import from a module of pebbler; [it remains there](../formats.md#names-in-python)."

LINK = re.compile(r"(?<=\]\()(?P<place>[^()\s#:]+)(?=[)#])")
TOPIC = re.compile(r"^### (?P<title>.*)\n\n\| name \|.*\n\|.*\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| `(?P<name>\w+)` \|", re.MULTILINE)
IMPORT = re.compile(r"^from (pebbler\.[\w.]+) import (.*)$", re.MULTILINE)
FENCED = re.compile(r"^(?P<indent> *)```.*\n(?:.*\n)*?(?P=indent)```$", re.MULTILINE)
COMMENT = re.compile(r"^ *<!--.*-->$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
FORMULA = re.compile(r"\$`(?P<inline>[^`]+)`\$|^\$\$\n(?P<block>(?:.+\n)+)\$\$$", re.MULTILINE)
TAG = re.compile(r"\\tag\{(?P<number>[^{}]*)\}")
PLACEHOLDER = re.compile(r"(?:<p>)?FORMULA(\d+)\.(?:</p>)?")


def reference(docs: Path) -> dict[str, tuple[str, str]]:
    """The pages of the reference by their places, each with its title and its text."""
    pages = {}
    listed = (docs / NAMES).read_text(encoding="utf-8")
    for topic in TOPIC.finditer(listed):
        title, names = topic["title"], ROW.findall(topic["rows"])
        entries = "\n\n".join(f"::: pebbler.{name}" for name in names)
        pages[f"reference/{title.lower().replace(' ', '-')}.md"] = (title, f"# {title}\n\n{entries}\n")
    texts = [page.read_text(encoding="utf-8") for page in sorted(docs.glob("*.md"))]
    imported = {
        (module, name)
        for text in texts
        for module, names in IMPORT.findall(text)
        for name in names.split(", ")
    }
    options = "\n    options:\n      show_root_full_path: true\n"
    modules = "\n".join(
        f"::: {module}.{name}{options}" for module, name in sorted(imported) if f"`{name}`" not in listed
    )
    pages["reference/torch.md"] = ("pebbler.torch", f"::: pebbler.torch{options}      heading_level: 1\n")
    pages["reference/modules.md"] = ("Names of modules", f"# Names of modules\n\n{OF_MODULES}\n\n{modules}\n")
    return pages


def at_the_root(docs: Path) -> dict[str, str]:
    """The texts of the pages at the root by their places on the site; links are from the folder of pages."""
    texts = {place: (docs.parent / name).read_text(encoding="utf-8") for name, place in ROOT.items()}
    return {
        place: LINK.sub(lambda link: normpath(f"../{link['place']}").removeprefix(f"../{docs.name}/"), text)
        for place, text in texts.items()
    }


def page_of(place: str) -> str | None:
    """The page to which a link of a page leads on the site, where that is not the link itself."""
    outside = place.startswith("../")
    if outside and place[3:] in ROOT:
        return ROOT[place[3:]]
    if not outside and Path(place).suffix in ON_THE_SITE:
        return None
    return f"source/{normpath(f'docs/{place}')}.md"


def on_config(config: Any) -> None:
    """List the pages of the reference in the navigation."""
    pages = reference(Path(config["docs_dir"]))
    for section in config["nav"]:
        if "Reference" in section:
            section["Reference"].extend({title: place} for place, (title, _) in pages.items())


def on_files(files: Any, config: Any) -> None:
    """Add the pages of the reference, those at the root, and those of source files."""
    docs = Path(config["docs_dir"])
    generated = {place: text for place, (_, text) in reference(docs).items()} | at_the_root(docs)
    for place, text in generated.items():
        files.append(File.generated(config, place, content=text))
    texts = [page.read_text(encoding="utf-8") for page in docs.glob("*.md")] + [*at_the_root(docs).values()]
    for place in sorted({place for text in texts for place in LINK.findall(FENCED.sub("", text))}):
        page = page_of(place)
        if page is not None and page not in generated:
            text = (docs / place).read_text(encoding="utf-8")
            language = LANGUAGES.get(Path(place).suffix, "text")
            shown = f"# {normpath(f'docs/{place}')}\n\n```{language}\n{text.rstrip()}\n```\n"
            file = File.generated(config, page, content=f"---\nsearch:\n  exclude: true\n---\n\n{shown}")
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write a page so that Python-Markdown reads it as GitHub does; its formulas wait in `page.meta`."""
    formulas: list[str] = []

    def keep(formula: re.Match[str]) -> str:
        formulas.append(mathml(formula["inline"] or formula["block"], formula["inline"] is not None))
        return f"FORMULA{len(formulas) - 1}."

    def rewritten(prose: str) -> str:
        prose = COMMENT.sub("", prose).replace("<details>", "<details markdown>")
        prose = CODE.sub(lambda span: span[0].replace(r"\|", "|"), FORMULA.sub(keep, prose))
        return LINK.sub(lambda link: page_of(link["place"]) or link["place"], prose)

    if page.file.src_uri == NAMES:
        markdown = ROW.sub(r"| [`\g<name>`][pebbler.\g<name>] |", markdown)
    if page.file.src_uri.startswith(("reference/", "source/")):
        return markdown
    written, end = "", 0
    for block in FENCED.finditer(markdown):
        written += rewritten(markdown[end : block.start()]) + block[0]
        end = block.end()
    page.meta["formulas"] = formulas
    return written + rewritten(markdown[end:])


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put the formulas in their places."""
    return PLACEHOLDER.sub(lambda place: str(page.meta["formulas"][int(place[1])]), html)


def mathml(formula: str, inline: bool) -> str:
    """A formula of TeX as MathML; the number of a block is beside it."""
    if inline:
        return str(convert(formula))
    tag = TAG.search(formula)
    number = f"<span>({tag['number']})</span>" if tag else ""
    return f'<div class="formula">{convert(TAG.sub("", formula), display="block")}{number}</div>'


class EachByItsName(griffe.Extension):  # type: ignore[misc]
    """Names that a docstring describes together, such as ``instance, schedule``, have types of their own."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Give each parameter and attribute of the public names its own type and default."""
        for page in reference(Path(__file__).parents[1]).values():
            for path in re.findall(r"^::: pebbler\.(\S+)$", page[1], re.MULTILINE):
                found = pkg[path]
                correct(found.final_target if found.is_alias else found)


def correct(described: Any) -> None:
    """Correct the docstring of a function, or those of all in a class or a module."""
    if described.is_class or described.is_module:
        for member in described.members.values():
            if member.is_public and not member.is_alias:
                correct(member)
    for section in described.docstring.parsed if described.docstring else ():
        for item in section.value if section.kind.value in ("parameters", "attributes") else ():
            own = described.parameters if section.kind.value == "parameters" else described.members
            if item.name in own:
                item.annotation = own[item.name].annotation
                default = own[item.name].default if described.is_function else None
                item.value = default and str(default)
