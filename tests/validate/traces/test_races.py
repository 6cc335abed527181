"""The check of traces: published races, random correct traces, and what an independent judge says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from pebbler import Trace, TraceBuffer, TraceOperation, check_trace, read_trace

from ...samples import counts
from .judge import is_corrupted_by_a_slow_one, is_corrupted_somehow
from .random_traces import random_trace, with_a_wait_less

TRACES = Path(__file__).parents[3] / "docs" / "data" / "traces"

PUBLISHED = {
    "megatron-lm-7398": [
        "operation 2 (copy 'reload' on compute) may read 'staging' before operation 1 (copy 'offload' on "
        "d2h) has written it (1048576 bytes of host memory); let it wait for operation 1 first"
    ],
    "torchrec-4231": [
        "operation 3 (free 'resize_(0)' on main) may free 'table' before operation 2 (copy 'stash' on side) "
        "has read it (1048576 bytes of device memory); let it wait for operation 2 first"
    ],
    "velox-17163": [
        "operation 2 (free 'release arrow' by the host) may free 'arrow' before operation 1 (copy "
        "'from_arrow' on cudf) has read it (1048576 bytes of host memory); let the host wait for "
        "operation 1 first"
    ],
    "torchtitan-2581": [
        "operation 3 (copy 'offload, step 2' on d2h) may write 'slab' before operation 0 (copy 'prefetch, "
        "step 1' on h2d) has read it (1048576 bytes of host memory); let it wait for operation 0 first",
        "operation 3 (copy 'offload, step 2' on d2h) may read 'activation' before operation 2 (run 'forward, "
        "step 2' on compute) has written it (1048576 bytes of device memory); let it wait for "
        "operation 2 first",
    ],
}
"""Threads of the issue trackers where the races were reported, and what is said of their models."""


def device(*names: str, offset: int | None = 0) -> tuple[TraceBuffer, ...]:
    """Buffers of eight bytes, all in one place."""
    return tuple(TraceBuffer(name=name, memory="device", offset=offset, bytes=8) for name in names)


def op(name: str, kind: str, stream: str | None, **lists: Sequence[str]) -> TraceOperation:
    return TraceOperation(name=name, kind=kind, stream=stream, **lists)  # type: ignore[arg-type]


def reasons(buffers: tuple[TraceBuffer, ...], *operations: TraceOperation) -> tuple[str, ...]:
    report = check_trace(Trace(name="a test", buffers=buffers, operations=operations))
    assert report.valid == (not report.reasons)
    return report.reasons


# --- published races ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_race_is_refused_with_its_reason_and_the_fixed_version_passes(name: str) -> None:
    assert list(check_trace(read_trace(TRACES / f"{name}.trace.json")).reasons) == PUBLISHED[name]
    assert check_trace(read_trace(TRACES / f"{name}.fixed.trace.json")).valid


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_judge_says_the_same_of_published_races(name: str) -> None:
    for version, corrupted in (("trace", True), ("fixed.trace", False)):
        trace = read_trace(TRACES / f"{name}.{version}.json")
        smaller = tuple(msgspec.structs.replace(buffer, bytes=2) for buffer in trace.buffers)
        trace = msgspec.structs.replace(trace, buffers=smaller)
        assert is_corrupted_by_a_slow_one(trace) == is_corrupted_somehow(trace) == corrupted


def test_the_page_shows_the_models_as_they_are() -> None:
    page = (TRACES.parents[1] / "traces.md").read_text(encoding="utf-8")
    for name in ("megatron-lm-7398", "torchrec-4231", "velox-17163"):
        assert f"```json\n{(TRACES / f'{name}.trace.json').read_text(encoding='utf-8')}```" in page


def test_the_reuse_of_a_pool_is_found_without_what_the_allocator_did() -> None:
    trace = read_trace(TRACES / "torchrec-4231.trace.json")
    issued = tuple(one for one in trace.operations if one.kind not in ("acquire", "free"))
    (told,) = check_trace(msgspec.structs.replace(trace, operations=issued)).reasons
    assert told.startswith(
        "operation 2 (run 'dense' on main) may write 'next' before operation 1 (copy 'stash' "
    )
    assert "has read 'table', which has the same bytes (524288 bytes of device memory)" in told


# --- random traces ------------------------------------------------------------------------------------


def test_a_thousand_correct_traces_give_no_false_alarm() -> None:
    kinds = set()
    for seed in range(1000):
        trace = random_trace(Random(seed))
        kinds |= {(operation.kind, operation.stream) for operation in trace.operations}
        assert check_trace(trace).reasons == (), seed
    assert kinds >= {
        (kind, place) for kind in ("run", "copy", "acquire", "free", "wait") for place in (None, "s3")
    }


@pytest.mark.parametrize("count", counts(25, 1000))
def test_a_trace_with_a_wait_less_is_refused_where_some_timing_corrupts_data(count: int) -> None:
    refused = passed = 0
    for seed in range(count):
        trace = random_trace(Random(seed))
        assert not is_corrupted_by_a_slow_one(trace)
        for mutant in with_a_wait_less(trace):
            report = check_trace(mutant)
            assert report.valid == (not is_corrupted_by_a_slow_one(mutant)), (seed, report)
            refused += not report.valid
            passed += report.valid
    assert refused > 2 * count
    assert passed > 0


@pytest.mark.parametrize("count", counts(20, 400))
def test_the_judge_agrees_with_all_orders_of_starts_and_ends(count: int) -> None:
    corrupted = fine = 0
    for seed in range(count):
        trace = random_trace(Random(10_000 + seed), operations=5)
        for one in (trace, *with_a_wait_less(trace)):
            if len(one.operations) > 7:
                continue
            found = is_corrupted_somehow(one)
            assert found == is_corrupted_by_a_slow_one(one) == (not check_trace(one).valid), seed
            corrupted += found
            fine += not found
    assert min(corrupted, fine) >= count // 2


@pytest.mark.parametrize("count", counts(25, 500))
def test_the_waits_that_the_reasons_name_mend_a_trace(count: int) -> None:
    mended = 0
    for seed in range(count):
        trace = random_trace(Random(seed))
        bare = [msgspec.structs.replace(one, waits=(), joins=()) for one in trace.operations]
        while told := check_trace(msgspec.structs.replace(trace, operations=tuple(bare))).reasons:
            for reason in told:
                q, p = map(int, re.findall(r"^operation (\d+) .* wait for operation (\d+) first$", reason)[0])
                bare[p] = msgspec.structs.replace(bare[p], records=tuple({*bare[p].records, f"end of {p}"}))
                assert f"end of {p}" not in bare[q].waits
                bare[q] = msgspec.structs.replace(bare[q], waits=(*bare[q].waits, f"end of {p}"))
                mended += 1
    assert mended > 4 * count


# --- rules --------------------------------------------------------------------------------------------


def test_two_reads_need_no_order_and_neither_do_different_bytes() -> None:
    a, b = device("a", "b", offset=None)
    assert not reasons(
        (a, b),
        op("x", "run", "s", reads=["a"], writes=["b"]),
        op("y", "run", "t", reads=["a"]),
    )


def test_what_the_host_does_itself_is_over_before_it_issues_more() -> None:
    assert not reasons(device("a"), op("x", "run", None, writes=["a"]), op("y", "run", "s", reads=["a"]))
    assert reasons(device("a"), op("x", "run", "s", writes=["a"]), op("y", "run", None, reads=["a"]))


def test_an_event_is_its_latest_record_before_the_wait() -> None:
    first = op("x", "run", "s", writes=["a"], records=["e"])
    again = op("y", "run", "s", reads=["a"], records=["e"])
    late = op("z", "run", "t", writes=["a"], waits=["e"])
    assert not reasons(device("a"), first, again, late)
    (told,) = reasons(device("a"), first, late, again)
    assert told.startswith(
        "operation 2 (run 'y' on s) may read 'a' before operation 1 (run 'z' on t) has written"
    )


def test_a_wait_on_the_own_stream_is_joined_by_what_follows_there() -> None:
    assert not reasons(
        device("a"),
        op("x", "run", "s", writes=["a"]),
        op("w", "wait", "t", joins=["s"]),
        op("y", "run", "t", reads=["a"]),
    )


def test_a_part_of_a_buffer_conflicts_in_its_bytes_only() -> None:
    whole = TraceBuffer(name="whole", memory="device", offset=0, bytes=100)
    part = TraceBuffer(name="part", memory="device", offset=90, bytes=20)
    elsewhere = TraceBuffer(name="elsewhere", memory="host", offset=0, bytes=100)
    issued = op("x", "run", "s", writes=["whole"])
    (told,) = reasons((whole, part, elsewhere), issued, op("y", "run", "t", reads=["part", "elsewhere"]))
    assert (
        "may read 'part' before operation 0 (run 'x' on s) has written 'whole', which has the same " in told
    )
    assert "(10 bytes of device memory)" in told


ACQUIRE, FREE = op("x", "acquire", "s", writes=["a"]), op("x", "free", "s", writes=["a"])


@pytest.mark.parametrize(
    ("operations", "told"),
    [
        (
            [op("x", "free", None, writes=["a"]), op("y", "run", "s", reads=["a"])],
            "operation 1 (run 'y' on s) uses 'a' after operation 0 (free 'x' by the host) has freed it",
        ),
        (
            [FREE, op("y", "run", "s", reads=["b"])],
            "operation 1 (run 'y' on s) uses 'b' after operation 0 (free 'x' on s) has freed its bytes "
            "as 'a'",
        ),
        (
            [FREE, op("y", "free", "s", writes=["a"])],
            "operation 1 (free 'y' on s) uses 'a' after operation 0 (free 'x' on s) has freed it",
        ),
        (
            [op("y", "run", "s", writes=["a"]), ACQUIRE],
            "operation 0 (run 'y' on s) uses 'a' before anything has acquired it",
        ),
        (
            [ACQUIRE, op("y", "acquire", "s", writes=["b"])],
            "operation 1 (acquire 'y' on s) acquires 'b', but operation 0 (acquire 'x' on s) has acquired "
            "its bytes as 'a', and nothing has freed 'a' since",
        ),
        (
            [op("y", "acquire", "s", writes=["a", "b"])],
            "operation 0 (acquire 'y' on s) acquires 'b', but operation 0 (acquire 'y' on s) has acquired "
            "its bytes as 'a', and nothing has freed 'a' since",
        ),
        (
            [FREE, op("y", "acquire", "s", writes=["b"]), op("z", "run", "s", writes=["a"])],
            "operation 2 (run 'z' on s) uses 'a' after operation 1 (acquire 'y' on s) has acquired its bytes "
            "as 'b'",
        ),
        (
            [ACQUIRE, op("y", "run", "s", reads=["a"])],
            "operation 1 (run 'y' on s) reads 'a', where nothing has been written since operation 0 (acquire "
            "'x' on s) has acquired it (8 bytes of device memory)",
        ),
    ],
)
def test_what_is_wrong_on_one_stream_is_refused(operations: list[TraceOperation], told: str) -> None:
    assert reasons(device("a", "b"), *operations) == (told,)
