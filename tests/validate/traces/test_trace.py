"""The format of traces: what is read, and what is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import msgspec
import pytest

from pebbler import PebblerError, TraceBuffer, check_trace, read_trace, write_trace
from pebbler.validate.schemas import json_schema
from pebbler.validate.traces.trace import Trace

from .random_traces import random_trace

TRACES = Path(__file__).parents[3] / "docs" / "data" / "traces"

Document = dict[str, Any]


@pytest.fixture
def document() -> Document:
    """A trace of four operations on two streams, with two events."""
    found: Document = json.loads((TRACES / "megatron-lm-7398.fixed.trace.json").read_bytes())
    return found


def written(document: Document, folder: Path) -> Path:
    file = folder / "t.trace.json"
    file.write_text(json.dumps(document))
    return file


def test_a_trace_is_written_and_read_again(tmp_path: Path) -> None:
    for seed in range(10):
        trace = random_trace(Random(seed))
        write_trace(trace, tmp_path / "t.trace.json")
        assert read_trace(tmp_path / "t.trace.json") == trace
        document = json.loads((tmp_path / "t.trace.json").read_bytes())
        jsonschema.validate(document, json_schema(Trace))


def _cyclic(d: Document) -> None:
    """Two streams wait for each other."""
    d["operations"][0] |= {"waits": ["offloaded"]}
    d["operations"][1] |= {"waits": ["computed"]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.pop("format"), "missing required field `format`"),
        (lambda d: d.pop("operations"), "missing required field `operations`"),
        (lambda d: d.update(colour=1), "unknown field `colour`"),
        (lambda d: d.update(format="pebbler/schedule/1"), "invalid enum value 'pebbler/schedule/1'"),
        (lambda d: d["buffers"][0].update(bytes=0), "expected `int` >= 1 - at `$.buffers[0].bytes`"),
        (lambda d: d["buffers"][1].update(name="activation"), "the name 'activation' is used twice"),
        (lambda d: d["operations"][0].update(kind="launch"), "invalid enum value 'launch'"),
        (lambda d: d["operations"][0].update(name="a\nb"), "line of printable text"),
        (
            lambda d: d["operations"][3].update(reads=["reloadde"]),
            "operations[3]: there is no buffer 'reloadde'; list it in 'buffers'",
        ),
        (
            lambda d: d["operations"][1].pop("writes"),
            "operations[1]: a copy has 'reads' and 'writes'; give both",
        ),
        (
            lambda d: d["operations"][3].update(kind="free"),
            "operations[3]: free names its buffers in 'writes', and has no 'reads'",
        ),
        (lambda d: d["operations"][3].update(kind="wait"), "operations[3]: a wait touches no buffers"),
        (
            lambda d: d["operations"][1].update(joins=["computer"]),
            "it joins 'computer', a stream of no operation",
        ),
        (
            lambda d: d["operations"][2].update(waits=["uploaded"]),
            "operations[2]: it waits for event 'uploaded', which nothing records",
        ),
        (
            _cyclic,
            "operations[0]: it waits for event 'offloaded', which operations[1] records, that is not earlier",
        ),
    ],
)
def test_a_malformed_trace_is_refused_in_one_sentence(
    change: Callable[[Document], object], told: str, document: Document, tmp_path: Path
) -> None:
    change(document)
    with pytest.raises(PebblerError) as refusal:
        read_trace(written(document, tmp_path))
    message = str(refusal.value)
    assert "is not a trace: " in message
    assert told in message
    assert "\n" not in message


def test_a_file_that_ends_early_is_refused(document: Document, tmp_path: Path) -> None:
    file = written(document, tmp_path)
    whole = file.read_bytes()
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(PebblerError, match="is not a trace: "):
            read_trace(file)


def test_a_timeline_of_a_profiler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="is not a trace: object missing required field `format`"):
        read_trace(written({"traceEvents": [], "displayTimeUnit": "ms"}, tmp_path))


def test_what_no_file_can_hold_is_refused_in_memory() -> None:
    with pytest.raises(PebblerError, match="buffer 'a', 'bytes': expected `int` >= 1"):
        TraceBuffer(name="a", memory="device", bytes=-1)
    trace = random_trace(Random(0))
    msgspec.structs.force_setattr(trace, "name", "a\nb")
    with pytest.raises(PebblerError, match="the Trace in memory breaks a rule of its format"):
        check_trace(trace)
    with pytest.raises(PebblerError, match=r"trace is 'a\.json'; make a Trace, or read one"):
        check_trace("a.json")  # type: ignore[arg-type]
    with pytest.raises(PebblerError, match="trace is None; make a Trace"):
        write_trace(None, "a.json")  # type: ignore[arg-type]
