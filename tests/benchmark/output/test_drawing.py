from __future__ import annotations

import warnings

import pytest
from matplotlib.figure import Figure

from pebbler.benchmark.output.drawing import pdf, png, svg


@pytest.mark.parametrize("made", [png, pdf, svg])
def test_what_does_not_print_is_shown_as_its_code(made: object) -> None:
    assert callable(made)
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("a\x1b[31m title\nin two lines, for $1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(figure)
    assert axes.get_title() == "a\\x1b[31m title\nin two lines, for $1"
