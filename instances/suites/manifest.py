"""A suite as files: every instance, and a manifest with checksums and figures."""

from __future__ import annotations

import logging
import os
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..errors import PebblerError
from ..files import write_atomically, write_document, write_instance
from ..instance import Instance
from ..memory import ideal_ns, least_budget, unlimited_peak
from .generators import VERSION
from .suite import Frozen, Member, find_suite, members

_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of a suite and figures of its instance.

    Attributes
    ----------
    file, sha256
        Name of the file and checksum of its bytes.
    name, engines, rounds, tasks, blocks, algorithms
        Figures of the instance; algorithms are those of all tasks together.
    budget_bytes, least_budget_bytes, peak_bytes, resident_bytes
        Budget, M_min, peak without a limit, and bytes that are always resident.
    ideal_ns
        Time of a round without a memory limit.
    offload_ns
        Time of copying every block that can move to the host once.
    kind, memory_model
        Of an instance that is frozen: its kind in the suite, and the memory model in which it is solved.
    """

    file: str
    sha256: str
    name: str
    engines: Literal["duplex", "single"]
    rounds: int
    tasks: int
    blocks: int
    algorithms: int
    budget_bytes: int
    least_budget_bytes: int
    peak_bytes: int
    resident_bytes: int
    ideal_ns: int
    offload_ns: int
    kind: str | UnsetType = UNSET
    memory_model: Literal["contiguous", "paged"] | UnsetType = UNSET


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``manifest.json``: the suite, the versions that made it, and its files."""

    format: Literal["pebbler/manifest/1"] = "pebbler/manifest/1"
    suite: str
    title: str
    pebbler: str
    generator: int
    instances: tuple[Entry, ...]


def write_suite(name: str, directory: Path) -> Manifest:
    """Write a suite's instances into a folder, which is created if need be.

    The manifest is written last, so that a folder with a manifest is complete. Before it comes
    ``best-known.json``, if the suite has best-known values. Every file is written whole or not at all, with
    the same bytes each time.

    Raises
    ------
    PebblerError
        When there is no such suite, or the folder or a file cannot be written.
    """
    suite = find_suite(name)
    manifest_file = directory / "manifest.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if manifest_file.is_file():
            Path(os.path.realpath(manifest_file)).unlink()
    except OSError as error:
        raise PebblerError(f"{directory} cannot be written: {error.strerror or error}") from None
    planned = list(members(suite))
    entries = []
    for count, member in enumerate(planned, start=1):
        instance = member.build()
        file = f"{member.name}.instance.json"
        entries.append(_entry(instance, file, _write(member, instance, directory / file), member.frozen))
        _log.info("%d of %d: %s", count, len(planned), file)
    known = resources.files(__package__).joinpath("best_known", f"{name}.json")
    if known.is_file():
        write_atomically(directory / "best-known.json", known.read_bytes())
    manifest = Manifest(
        suite=name,
        title=suite.title,
        pebbler=metadata.version("pebbler"),
        generator=VERSION,
        instances=tuple(entries),
    )
    write_document(manifest, manifest_file)
    return manifest


def _write(member: Member, instance: Instance, path: Path) -> str:
    """Write the file of an instance and return its checksum; what is frozen keeps its bytes for ever."""
    if member.frozen is None:
        return write_instance(instance, path)
    data = member.frozen.content(member.name)
    write_atomically(path, data)
    return sha256(data).hexdigest()


def _entry(instance: Instance, file: str, checksum: str, frozen: Frozen | None) -> Entry:
    return Entry(
        file=file,
        sha256=checksum,
        name=instance.name,
        engines=instance.engines,
        rounds=instance.rounds,
        tasks=len(instance.tasks),
        blocks=len(instance.blocks),
        algorithms=sum(len(task.algorithms) for task in instance.tasks),
        budget_bytes=instance.budget_bytes,
        least_budget_bytes=least_budget(instance),
        peak_bytes=unlimited_peak(instance),
        resident_bytes=instance.resident_bytes,
        ideal_ns=ideal_ns(instance),
        offload_ns=sum(block.offload_ns or 0 for block in instance.blocks),
        kind=UNSET if frozen is None else frozen.kind,
        memory_model=UNSET if frozen is None else frozen.memory,
    )
