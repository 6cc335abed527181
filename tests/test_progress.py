"""Progress: on a terminal one line that renews itself and leaves nothing, elsewhere nothing unasked."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

WORK = """
import logging, sys, time
from pebbler.progress import progress

log = logging.getLogger("pebbler.work")
pause = float(sys.argv[2]) if "--pauses" in sys.argv else 0.0
with progress("work", verbose="-v" in sys.argv):
    time.sleep(2 * pause)
    log.debug("a step")
    log.info("a message of many words " + "x" * 80)
    time.sleep(pause)
    log.info("a row", extra={"stays": True})
    log.warning("a warning")
    sys.stderr.write("half a line, ")
    sys.stderr.flush()
    time.sleep(pause)
    print("and the rest", file=sys.stderr)
    time.sleep(pause)
    print("the result")
    time.sleep(pause)
"""


def on_terminal(*command: str, width: int = 50, term: str = "xterm") -> str:
    """What a command writes to a terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {**os.environ, "TERM": term}
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        seen = b""
        while True:
            try:
                data = os.read(leader, 4096)
            except OSError:  # nobody has the other side
                break
            if not data:
                break
            seen += data
    os.close(leader)
    assert process.returncode == 0, seen.decode()
    return seen.decode()


def shown(text: str) -> list[str]:
    """The lines that stay on a terminal."""
    lines = [""]
    for token in re.findall(r"\r\n|\r\x1b\[K|[^\r]+", text):
        if token == "\r\n":
            lines.append("")
        elif token == "\r\x1b[K":
            lines[-1] = ""
        else:
            lines[-1] += token
    return lines


@pytest.fixture(scope="module")
def work_on_terminal() -> str:
    """What a terminal gets of two seconds' work."""
    return on_terminal(sys.executable, "-c", WORK, "--pauses", "0.4")


def test_on_a_terminal_one_line_renews_itself_and_leaves_nothing(work_on_terminal: str) -> None:
    text = work_on_terminal
    assert shown(text) == ["a row", "a warning", "half a line, and the rest", "the result", ""]
    drawn = re.findall(r"\r\x1b\[K(\[\d+ s\] [^\r]+)", text)
    assert drawn[0] == "[1 s] work"
    assert any("a message of many words" in line for line in drawn)
    assert all(len(line) < 50 for line in drawn)
    assert any(line.endswith("...") for line in drawn)
    assert "[" not in text.partition("the result")[2]


def test_what_is_shown_has_no_colours(work_on_terminal: str) -> None:
    assert re.findall(r"\x1b\[[0-9;]*m", work_on_terminal) == []


def test_verbose_messages_stay_on_a_terminal() -> None:
    lines = shown(on_terminal(sys.executable, "-c", WORK, "-v", width=200))
    assert [line.partition(" of ")[0] for line in lines][:3] == ["a message", "a row", "a warning"]
    assert not any("a step" in line for line in lines)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_erase_gets_a_line_a_message(term: str) -> None:
    text = on_terminal(sys.executable, "-c", WORK, term=term)
    assert "\x1b" not in text
    assert [line.partition(" of ")[0] for line in text.splitlines()] == [
        "a message",
        "a row",
        "a warning",
        "half a line, and the rest",
        "the result",
    ]


def test_elsewhere_there_are_warnings_alone_unless_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("the result\n", "a warning\nhalf a line, and the rest\n")
    done = subprocess.run([sys.executable, "-c", WORK, "-v"], capture_output=True, text=True, check=True)
    assert [line.partition(" of ")[0] for line in done.stderr.splitlines()] == [
        "a message",
        "a row",
        "a warning",
        "half a line, and the rest",
    ]


def test_a_terminal_that_is_gone_changes_no_answer() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-c", WORK, "--pauses", "0.2"],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=environment,
        text=True,
    ) as process:
        os.close(follower)
        os.read(leader, 100)
        os.close(leader)
        assert process.stdout is not None
        assert process.stdout.read() == "the result\n"
    assert process.returncode == 0
