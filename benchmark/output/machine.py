"""The origin of a measurement: machine, versions, revision, and the memory that a process used."""

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
"""Packages that answers depend on; OR-Tools contains the solvers."""

WRITTEN = ("docs/data", "docs/*.md", "docs/images", "paper/data", "paper/generated")
"""What scripts of the repository write: runs that follow are still those of its revision."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The machine and the software of a measurement.

    Attributes
    ----------
    machine
        Processor, cores and memory.
    python, packages
        Versions of Python and of the packages.
    revision
        Revision of the working folder in version control, with ``-dirty`` if files other than `WRITTEN`
        differ from it; None without version control.
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
    """Return the origin of this process's measurements."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Origin(
        machine=f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        python=platform.python_version(),
        packages=package_versions(),
        revision=_revision(),
    )


@cache
def made_here() -> str:
    """Return where and with which software this process measures, and the day of the first call."""
    return f"{date.today().isoformat()}: {origin()}"


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of the packages that answers depend on, if they are installed as packages."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss_bytes() -> int:
    """Return an upper bound on the resident memory so far in bytes.

    It is the peak of this process plus that of its largest child.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = (
        unit * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    # Linux counts in the first what the process had before it became this program: its parent's memory
    told = _told_by("/proc/self/status", "VmHWM")
    return (own if told is None else 1024 * int(told.removesuffix(" kB"))) + children


def limit_memory(size: int) -> None:
    """Limit the address space of this process, and of each process that it will start, to so many bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def _processor() -> str:
    """Return the model of the processor, if the system reports it."""
    return _told_by("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _told_by(file: str, key: str) -> str | None:
    """Return the value of a key in a file of the system; None if the file does not have it."""
    place = Path(file)
    lines = place.read_text("utf-8").splitlines() if place.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)


def _revision() -> str | None:
    changed = ["git", "diff", "--quiet", "HEAD", "--", ":/", *(f":(top,exclude){path}" for path in WRITTEN)]
    try:
        command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*"]
        revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return f"{revision}-dirty" if subprocess.run(changed, capture_output=True).returncode else revision
    except (OSError, subprocess.CalledProcessError):
        return None
