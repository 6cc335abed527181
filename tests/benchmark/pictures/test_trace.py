from __future__ import annotations

import msgspec
import pytest

from pebbler.benchmark.pictures.trace import trace
from pebbler.heuristics.methods import Limits, Method
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.measures import carried_bytes, memory_curve
from pebbler.validate.schedule import Schedule


@pytest.fixture
def schedule(tight: Instance, swap: Method) -> Schedule:
    answer = swap(tight, Limits()).schedule
    assert answer is not None
    return answer


def test_every_operation_is_a_complete_event_in_microseconds(tight: Instance, schedule: Schedule) -> None:
    events = [event for event in trace(tight, schedule)["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(schedule.operations)
    for event, operation in zip(events, schedule.operations, strict=True):
        assert event["ts"] * 1000 == operation.start_ns
        assert (event["ts"] + event["dur"]) * 1000 == operation.end_ns
        assert event["cat"] == operation.kind
    assert {event["name"] for event in events} >= {"FP(a)", "offload A", "prefetch A"}


def test_streams_are_threads_with_names(tight: Instance, schedule: Schedule) -> None:
    events = trace(tight, schedule)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["compute", "copies to the device", "copies to the host"]
    for event in events:
        if event["ph"] == "X":
            assert (
                names[event["tid"]]
                == {
                    "run": "compute",
                    "offload": "copies to the host",
                    "prefetch": "copies to the device",
                }[event["cat"]]
            )


def test_runs_on_the_host_are_a_thread(on_host: tuple[Instance, Schedule]) -> None:
    events = trace(*on_host)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    runs = {event["name"]: event for event in events if event["ph"] == "X"}
    assert names[runs["FP(a)"]["tid"]] == "compute"
    assert names[runs["OPT(a)"]["tid"]] == "on the host"
    assert "on" not in runs["FP(a)"]["args"]
    assert runs["OPT(a)"]["args"]["on"] == "host"


def test_the_counter_is_the_memory_curve(tight: Instance, schedule: Schedule) -> None:
    counters = [event for event in trace(tight, schedule)["traceEvents"] if event["ph"] == "C"]
    instants, levels = memory_curve(tight, schedule)
    assert [counter["ts"] * 1000 for counter in counters] == instants
    assert [sum(counter["args"].values()) for counter in counters] == levels


def test_what_is_carried_is_counted_apart_and_the_same_at_both_ends() -> None:
    instance = Workload("lenet", 4, "K40", steady=True, optimizer="adam").instance("32MiB")
    schedule = solve(instance, "modnn", memory="paged").schedule
    assert schedule is not None
    document = trace(instance, schedule)
    counters = [event["args"] for event in document["traceEvents"] if event["ph"] == "C"]
    assert [sum(counter.values()) for counter in counters] == memory_curve(instance, schedule)[1]
    kept = sum(instance.blocks[state.block].bytes for state in schedule.states if state.device)
    assert counters[0]["carried"] == counters[-2]["carried"] == kept > 0
    assert document["otherData"]["carried_bytes"] == carried_bytes(schedule) == kept
    assert any(counter["blocks"] for counter in counters)


def test_without_carried_blocks_none_are_counted(tight: Instance, schedule: Schedule) -> None:
    document = trace(tight, schedule)
    assert "carried_bytes" not in document["otherData"]
    assert all("carried" not in event["args"] for event in document["traceEvents"])
    assert carried_bytes(schedule) == 0


def test_workspaces_are_counted_apart(chain: Instance) -> None:
    from pebbler.heuristics.program.builder import ProgramBuilder

    builder = ProgramBuilder(chain)
    for k in range(len(chain.tasks)):
        builder.run(k, 1)
        builder.release_dead(k)
    counters = [e for e in trace(chain, builder.finish("fast"))["traceEvents"] if e["ph"] == "C"]
    assert {counter["args"]["workspaces"] for counter in counters} == {0, 2**20}


def test_the_document_is_json_and_the_same_every_time(tight: Instance, schedule: Schedule) -> None:
    first, second = (msgspec.json.encode(trace(tight, schedule)) for _ in range(2))
    assert first == second
    assert msgspec.json.decode(first)["otherData"]["makespan_ns"] == schedule.makespan_ns
