"""Common parts of pictures: units of axes, the note at the foot, and files that depend on the input only."""

from __future__ import annotations

import textwrap
from io import BytesIO
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from ...instances.errors import escaped

_CHARACTERS = 15
"""Number of characters of a footnote in an inch."""


def footnote(figure: Figure, text: str) -> None:
    """Write a note at the foot of a picture, in as many lines as it needs."""
    lines = textwrap.fill(text, int(_CHARACTERS * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=8.5, color="#444444")


def time_unit(longest: int) -> tuple[str, int]:
    """Return a unit in which a time is easy to read, and its nanoseconds."""
    return next(
        ((unit, scale) for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)) if longest >= scale),
        ("ns", 1),
    )


def size_unit(largest: int) -> tuple[str, int]:
    """Return a unit in which a size is easy to read, and its bytes."""
    return next(
        ((unit, size) for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if largest >= size),
        ("bytes", 1),
    )


def _show_texts_as_they_are(figure: Figure) -> None:
    """Show dollar signs, except in the labels of logarithmic axes, and the codes of what does not print."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        if not text.get_text().replace("\n", "").isprintable():
            text.set_text("\n".join(map(escaped, text.get_text().split("\n"))))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for label in axis.get_ticklabels(which="both"):
                label.set_parse_math(axis.get_scale() in ("log", "symlog"))


def png(figure: Figure) -> bytes:
    """Return a picture as PNG."""
    _show_texts_as_they_are(figure)
    buffer = BytesIO()
    canvas: Any = FigureCanvasAgg(figure)  # it has no types; savefig would draw twice
    canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def pdf(figure: Figure) -> bytes:
    """Return a picture as PDF."""
    _show_texts_as_they_are(figure)
    buffer = BytesIO()
    figure.savefig(buffer, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """Return a picture as SVG, which needs no fonts."""
    _show_texts_as_they_are(figure)
    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "pebbler"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
