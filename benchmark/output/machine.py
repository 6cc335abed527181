"""Where a measurement was made: machine, versions, revision, and the memory that a process took."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("pebbler", "msgspec", "numba", "numpy", "ortools")
"""What answers depend on; OR-Tools carries the solvers."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a measurement was made with.

    Attributes
    ----------
    machine
        Processor, cores and memory.
    python, packages
        Versions.
    revision
        Of the working folder in version control, ``-dirty`` where files differ from it; None without.
    """

    machine: str
    python: str
    packages: dict[str, str]
    revision: str | None

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {number}" for name, number in self.packages.items())
        revision = "" if self.revision is None else f", revision {self.revision}"
        return f"{self.machine}; Python {self.python}, {packages}{revision}"


@cache
def origin() -> Origin:
    """Return the origin of what this process measures."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Origin(
        machine=f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        python=platform.python_version(),
        packages=package_versions(),
        revision=_revision(),
    )


@cache
def made_here() -> str:
    """Tell where and with what this process measures, and the day on which it first asked."""
    return f"{date.today().isoformat()}: {origin()}"


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of the packages that answers depend on, of those that are installed as packages."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss_bytes() -> int:
    """Upper bound on the resident memory so far: this process's peak, plus that of its largest child."""
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = (
        unit * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    # Linux counts in the first what the process had before it became this program: its parent's memory
    told = _told_by("/proc/self/status", "VmHWM")
    return (own if told is None else 1024 * int(told.removesuffix(" kB"))) + children


def limit_memory(size: int) -> None:
    """Refuse this process, and those that it will start, more than so many bytes of address space each."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def _processor() -> str:
    """Model of the processor, where the system tells it."""
    return _told_by("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _told_by(file: str, key: str) -> str | None:
    """Return what a file of the system says of a key; None where it says nothing."""
    place = Path(file)
    lines = place.read_text("utf-8").splitlines() if place.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)


def _revision() -> str | None:
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
