"""The trace: what a system issued to its streams, with waits and buffers, and no durations.

The classes mirror the trace file key by key (format ``pebbler/trace/1``). The list of operations is in the
order in which one thread of the host issued them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import msgspec

from ...instances.arguments import require_kind
from ...instances.errors import FormatError
from ...instances.figures import (
    Natural,
    Positive,
    Text,
    are_all,
    are_optional,
    is_one_of,
    is_positive,
    is_text,
    require_types,
    shown,
)
from ...instances.files import read_document, reread, write_document

Kind = Literal["run", "copy", "acquire", "free", "wait"]
"""Kind of an operation of a trace."""

_KINDS = get_args(Kind)

ALLOCATIONS: tuple[Kind, ...] = ("acquire", "free")
"""Kinds by which an allocator gives bytes out, and takes them back; they leave nothing of use in them."""


class TraceBuffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A range of bytes of some memory.

    Attributes
    ----------
    name
        Unique within the trace.
    memory
        Whose bytes they are, such as ``device`` or ``host``.
    offset
        First byte in that memory; None for bytes that no other buffer has.
    bytes
        Size in bytes.
    """

    name: Text
    memory: Text
    offset: Natural | None = None
    bytes: Positive

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and is_text(self.memory)
            and are_optional(self.offset)
            and is_positive(self.bytes)
        ):
            require_types(self)


class TraceOperation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A step of one stream, or of the thread that issues.

    Attributes
    ----------
    name
        What it is called in reasons; it need not be unique.
    kind
        A ``run`` reads and writes; a ``copy`` reads one place and writes another; an allocator's ``acquire``
        gives out the buffers of `writes`, and its ``free`` takes them back; a ``wait`` touches nothing.
    stream
        Its stream; None for what the issuing thread does itself before it goes on.
    reads, writes
        Names of buffers.
    waits
        Events: the latest record of each, earlier in the list, has happened before this starts.
    joins
        Streams: all that was issued to them earlier in the list has ended before this starts.
    records
        Events that happen when this ends.
    """

    name: Text
    kind: Kind
    stream: Text | None = None
    reads: tuple[Text, ...] = ()
    writes: tuple[Text, ...] = ()
    waits: tuple[Text, ...] = ()
    joins: tuple[Text, ...] = ()
    records: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and is_one_of(self.kind, _KINDS)
            and (self.stream is None or is_text(self.stream))
            and _are_texts(self.reads)
            and _are_texts(self.writes)
            and _are_texts(self.waits)
            and _are_texts(self.joins)
            and _are_texts(self.records)
        ):
            require_types(self)


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a system issued to its streams, in the order of issue.

    Attributes
    ----------
    name
        What it is a trace of.
    buffers
        The bytes that operations touch. Those of two buffers in one memory may overlap.
    operations
        In the order in which one thread issued them.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    format: Literal["pebbler/trace/1"] = "pebbler/trace/1"
    name: Text
    buffers: tuple[TraceBuffer, ...]
    operations: tuple[TraceOperation, ...]

    def __post_init__(self) -> None:
        if not (
            is_one_of(self.format, ("pebbler/trace/1",))
            and is_text(self.name)
            and are_all(self.buffers, TraceBuffer)
            and are_all(self.operations, TraceOperation)
        ):
            require_types(self)
        known: set[str] = set()
        for i, buffer in enumerate(self.buffers):
            if buffer.name in known:
                raise FormatError(f"buffers[{i}]: the name {shown(buffer.name)} is used twice; give another")
            known.add(buffer.name)
        for i, operation in enumerate(self.operations):
            _require_kind(operation, f"operations[{i}]")
            for name in (*operation.reads, *operation.writes):
                if name not in known:
                    raise FormatError(
                        f"operations[{i}]: there is no buffer {shown(name)}; list it in 'buffers'"
                    )
        self.predecessors()

    def predecessors(self) -> list[list[int]]:
        """Return, per operation, the positions of what it waits for beside the one before on its stream.

        These are the last operation of the issuing thread, the records of events and the last operations of
        the streams that it joins, all of them earlier in the list. So no waits go round in a circle.

        Raises
        ------
        FormatError
            When it waits for an event that nothing earlier records, or joins a stream that there is not.
        """
        streams = {operation.stream for operation in self.operations}
        recorded: dict[str, int] = {}
        last: dict[str | None, int] = {}
        before = []
        for i, operation in enumerate(self.operations):
            mine = [last[None]] if None in last else []
            for event in operation.waits:
                if event not in recorded:
                    raise FormatError(f"operations[{i}]: {self._unrecorded(event, i)}")
                mine.append(recorded[event])
            for stream in operation.joins:
                if stream not in streams:
                    raise FormatError(f"operations[{i}]: it joins {shown(stream)}, a stream of no operation")
                if stream in last:
                    mine.append(last[stream])
            before.append(mine)
            recorded |= dict.fromkeys(operation.records, i)
            last[operation.stream] = i
        return before

    def _unrecorded(self, event: str, i: int) -> str:
        """Say of an event that it is waited for before it is recorded, or without."""
        told = f"it waits for event {shown(event)}, which"
        for j, other in enumerate(self.operations[i:], start=i):
            if event in other.records:
                return (
                    f"{told} operations[{j}] records, that is not earlier in the list; such a wait waits for "
                    "nothing, or two of them for each other"
                )
        return f"{told} nothing records; a wait for it waits for nothing, or for ever"


def read_trace(path: str | Path) -> Trace:
    """Read a trace file. What it holds is not checked for races: see `check_trace`.

    Raises
    ------
    PebblerError
        When the file cannot be read or breaks a rule of the format; the sentence names the place.
    """
    return read_document(path, Trace, "a trace")


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace file."""
    require_trace(trace)
    write_document(trace, path)


def require_trace(value: object) -> None:
    """Refuse what is no trace."""
    require_kind("trace", value, Trace, "make a Trace, or read one with read_trace(path)")


def as_from_file(trace: Trace) -> Trace:
    """Return a trace in the form in which it is read from a file, and refuse what no file can hold."""
    require_trace(trace)
    return reread(trace)


def _are_texts(values: object) -> bool:
    """Return whether a value is a tuple of printable lines."""
    return type(values) is tuple and all(map(is_text, values))


def _require_kind(operation: TraceOperation, where: str) -> None:
    """Refuse an operation without the buffers of its kind, or with others."""
    kind, reads, writes = operation.kind, operation.reads, operation.writes
    if kind == "copy" and not (reads and writes):
        raise FormatError(f"{where}: a copy has 'reads' and 'writes'; give both")
    if kind in ALLOCATIONS and (reads or not writes):
        raise FormatError(f"{where}: {kind} names its buffers in 'writes', and has no 'reads'")
    if kind == "wait" and (reads or writes):
        raise FormatError(f"{where}: a wait touches no buffers; call it a run, or leave them out")
