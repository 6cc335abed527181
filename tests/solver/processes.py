"""What tests ask about other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something holds within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    return _state_and_group(pid)[0] not in ("", "Z")


def members(group: int) -> int:
    """Number of processes of a group that run."""
    ids = [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]
    states = map(_state_and_group, ids)
    return sum(of == group and state != "Z" for state, of in states)


def children() -> list[int]:
    """Ids of the processes that this one has started and that run."""
    lists = [place.read_text() for place in Path("/proc/self/task").glob("*/children")]
    return [pid for pid in map(int, " ".join(lists).split()) if alive(pid)]


def computing(seconds: float = 0.2) -> int:
    """Wait until a process that this one has started has computed for some seconds, and return its id."""
    before: dict[int, float] = {}
    found: list[int] = []

    def has_computed() -> bool:
        for pid in children():
            spent = _processor_seconds(pid)
            if spent - before.setdefault(pid, spent) >= seconds:
                found.append(pid)
        return bool(found)

    assert eventually(has_computed, 60.0)
    return found[0]


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _state_and_group(pid: int) -> tuple[str, int]:
    try:
        state, _, group, *_ = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return state, int(group)
