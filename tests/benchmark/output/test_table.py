"""Tables that fit a line, whatever it holds, with every figure whole."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from pebbler.benchmark.output.table import format_table, line_width, wrapped

HEADER = ("method", "status", "iteration", "overhead", "peak memory", "source")
ROWS = [
    (
        "modnn",
        "feasible",
        "5.638 s",
        "17.97%",
        "12.00 GiB",
        "Chen, Chen, Hu: moDNN, DATE 2018, and TPDS 2019",
    ),
    ("vdnn-all-m", "optimal", "11.422 s", "138.98%", "11.75 GiB", "Rhu et al.: vDNN, MICRO 2016"),
]


def table(width: int) -> str:
    return format_table(HEADER, ROWS, "llrrrl", width)


def test_what_fits_is_one_line_a_row() -> None:
    lines = table(200).splitlines()
    assert len(lines) == 3
    assert lines[2].split("  ")[0] == "vdnn-all-m"
    assert lines[1].index("5.638 s") + len("5.638 s") == lines[2].index("11.422 s") + len("11.422 s")


@pytest.mark.parametrize("width", range(40, 131))
def test_every_line_fits_and_no_figure_is_lost(width: int) -> None:
    text = table(width)
    assert max(map(len, text.splitlines())) <= width
    for row in ROWS:
        for cell in row[:5]:
            assert re.search(rf"(^|  ){re.escape(cell)}( |$)", text, re.MULTILINE), cell
        assert set(row[5].split()) <= set(text.split())
    for block in text.split("\n\n"):
        assert block.startswith("method")
        assert block.count("vdnn-all-m") == 1


def test_a_column_that_is_wider_than_the_line_stays_whole() -> None:
    assert "1234567890" in format_table(("a", "b"), [("x", "1234567890")], "lr", 5)


@pytest.mark.parametrize("width", range(40, 90))
def test_a_figure_stays_with_its_unit(width: int) -> None:
    text = "of which 466.16 MiB are resident; the least possible is 1.50 GiB, 568.103 us, 64.571 ms, 0.45 x"
    lines = wrapped(text, width, first="budget: ", indent=8)
    assert "".join(lines.split()) == "".join(("budget: " + text).split())
    for figure in ("466.16 MiB", "1.50 GiB", "568.103 us", "64.571 ms", "0.45 x"):
        assert figure in lines


def test_words_that_are_longer_than_a_line_stay_whole() -> None:
    assert wrapped("a " + "x" * 60, 40, first="note: ", indent=6).splitlines()[-1].strip() == "x" * 60


@pytest.mark.parametrize(
    ("said", "width"), [("60", 60), ("200", 200), ("", 100), ("0", 100), ("-5", 100), ("wide", 100)]
)
def test_the_width_is_what_columns_says(said: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", said)
    assert line_width() == width


def test_the_width_of_a_terminal_is_asked_for() -> None:
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    code = "from pebbler.benchmark.output.table import line_width; print(line_width())"
    subprocess.run([sys.executable, "-c", code], stdout=follower, env=environment, check=True)
    assert os.read(leader, 100).split() == [b"77"]
    os.close(leader)
    os.close(follower)
