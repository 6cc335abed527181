"""Tables and pictures as LaTeX floats, for texts that load booktabs and graphicx."""

from __future__ import annotations

from collections.abc import Sequence

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{char: "\\" + char for char in "&%$#_{}"},
}
"""LaTeX's text for each special character."""

_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
"""LaTeX that makes the following box as narrow as the line, if it is wider."""


def escape(text: str) -> str:
    """Return a text that LaTeX shows without change."""
    return "".join(_SPECIAL.get(char, char) for char in text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str) -> str:
    """Return a table that fits the line: the first column to the left, the others to the right."""
    lines = [r" & ".join(map(escape, cells)) + r" \\" for cells in (header, *rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"{_FIT}{{\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def figure(file: str, caption: str, label: str) -> str:
    """Return a figure that shows a picture's file."""
    return "\n".join(
        [
            r"\begin{figure}",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{{file}}}",
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{fig:{label}}}",
            r"\end{figure}",
            "",
        ]
    )
