"""Local search whose cost is the time of several GPUs that take turns."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from pebbler import Workload
from pebbler.heuristics.methods import Limits, find_method
from pebbler.heuristics.search.cluster import ClusterSearch
from pebbler.heuristics.spread import in_step, spread, weave_in_turn
from pebbler.heuristics.turns import RULES
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.instance import Instance
from pebbler.solver.solve import solve
from pebbler.validate.gpus.check import check_cluster
from pebbler.validate.gpus.program import cluster_of, one_gpu
from pebbler.validate.schedule import Schedule

GB = 10**9


def on(network: str, hardware: Mapping[str, int]) -> Instance:
    workload = Workload(network, 64, "k40")
    (instance,) = cluster_instances(workload, several_gpus(workload, **hardware), "1.05xMmin")
    return instance


def planned_by(instance: Instance, method: str) -> Schedule:
    planned = find_method(method).call(in_step(instance), Limits()).schedule
    assert planned is not None
    return planned


def searching(instance: Instance, seed: int = 0) -> ClusterSearch:
    search = ClusterSearch(instance, in_step(instance), seed, ())
    search.start([planned_by(instance, "modnn")])
    return search


def on_all(instance: Instance, search: ClusterSearch) -> Schedule:
    """The best program of a search as a schedule of all GPUs."""
    found = search.found("local-search")
    assert found is not None
    rule, largest_first = search.rule
    return weave_in_turn(instance, found, rule, largest_first=largest_first)


def done_by(schedule: Schedule, gpu: int) -> tuple[object, ...]:
    """What a GPU runs and copies, in the order of each stream, and where its blocks lie."""
    own = [one for one in schedule.operations if one.gpu == gpu and one.gradient is None]
    steps = sorted(
        (one.stream, one.start_ns, one.id, one.kind, one.task, one.block, one.algorithm) for one in own
    )
    stays = [(stay.block, stay.offset) for stay in schedule.residences if stay.gpu == gpu]
    return (*((step[0], *step[3:]) for step in steps), *sorted(stays, key=repr))


@pytest.mark.parametrize(
    ("network", "hardware"),
    [
        ("alexnet", {"gpus": 4}),
        ("alexnet", {"gpus": 3, "cores": 20}),
        ("alexnet", {"gpus": 4, "nvlink": 20 * GB}),
        ("alexnet", {"gpus": 4, "nodes": 2, "network": GB}),
        pytest.param("vgg16", {"gpus": 4}, marks=pytest.mark.slow),
    ],
)
def test_time_is_that_of_the_schedule_to_the_nanosecond(network: str, hardware: dict[str, int]) -> None:
    instance = on(network, hardware)
    search = searching(instance)
    seen = set()
    for _ in range(2):
        schedule = on_all(instance, search)
        assert check_cluster(instance, schedule).valid
        assert schedule.makespan_ns == search.cluster_ns
        seen.add(search.cluster_ns)
        search.descend(patience=200)
    assert len(seen) > 1


def test_gpus_may_have_programs_of_their_own() -> None:
    instance = on("alexnet", {"gpus": 2})
    apart = 0
    for seed in range(8):
        search = searching(instance, seed)
        search.descend(patience=200)
        schedule = on_all(instance, search)
        assert check_cluster(instance, schedule).valid
        assert schedule.makespan_ns == search.cluster_ns
        if done_by(schedule, 0) != done_by(schedule, 1):
            apart += 1
            break
    assert apart > 0


@pytest.mark.parametrize(
    "hardware", [{"gpus": 4}, {"gpus": 4, "nvlink": 20 * GB}, {"gpus": 4, "nodes": 2, "network": GB}]
)
def test_each_gpu_does_what_its_schedule_says(hardware: dict[str, int]) -> None:
    """All nodes have the same."""
    instance = on("alexnet", hardware)
    modnn, vdnn = (planned_by(instance, method) for method in ("modnn", "vdnn-dyn"))
    on_node = [modnn, vdnn, vdnn, modnn][: cluster_of(instance).node_gpus]
    for rule in RULES:
        joined = weave_in_turn(instance, on_node, rule, largest_first=False)
        assert check_cluster(instance, joined).valid
        alike = {
            id(one): weave_in_turn(instance, [one] * len(on_node), rule, largest_first=False)
            for one in (modnn, vdnn)
        }
        for gpu in range(4):
            assert done_by(joined, gpu) == done_by(alike[id(on_node[gpu % len(on_node)])], gpu)
        assert done_by(joined, 0) != done_by(joined, 1)


def test_many_gpus_do_the_same() -> None:
    instance = on("alexnet", {"gpus": 40})
    search = searching(instance)
    first = search.cluster_ns
    search.descend(patience=200)
    assert search.cluster_ns < first
    found = search.found("local-search")
    assert found is not None
    assert all(one is found[0] for one in found)


def test_time_with_one_copy_engine_without_gradients_and_with_a_wider_bus() -> None:
    plain = on("alexnet", {"gpus": 4, "nvlink": 20 * GB})
    cluster = cluster_of(plain)
    wider = replace(cluster, bus_bytes_per_second=2 * cluster.bus_bytes_per_second)
    for instance in (
        replace(plain, engines="single"),
        replace(plain, cluster=replace(cluster, gradients=())),
        replace(plain, cluster=wider),
    ):
        search = searching(instance)
        search.descend(patience=200)
        schedule = on_all(instance, search)
        assert check_cluster(instance, schedule).valid
        # two that share a wide bus may each be faster than planned for two; never slower
        assert schedule.makespan_ns <= search.cluster_ns
        if cluster_of(instance) is not wider:
            assert schedule.makespan_ns == search.cluster_ns


def test_a_search_is_repeatable_and_depends_on_its_seed() -> None:
    instance = on("alexnet", {"gpus": 2})
    times = []
    for seed in (0, 0, 1):
        search = searching(instance, seed)
        search.descend(patience=200)
        times.append((search.cluster_ns, search.programs))
    assert times[0] == times[1]
    assert len(set(times)) > 1


def test_search_on_all_gpus_is_shorter_than_the_rule_and_starts_from_it() -> None:
    instance = on("alexnet", {"gpus": 4})
    rule = find_method("modnn").call
    ruled = spread(instance, rule, Limits()).schedule
    search = searching(instance)
    first = search.cluster_ns
    search.descend(patience=200)
    assert ruled is not None
    assert search.cluster_ns < first
    assert search.cluster_ns < ruled.makespan_ns


def test_methods_that_search_do_so_on_all_gpus_unless_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance, calls = on("alexnet", {"gpus": 2}), []
    descend = ClusterSearch.descend

    def counted(search: ClusterSearch, deadline: float) -> None:
        calls.append(search)
        descend(search, deadline)

    monkeypatch.setattr(ClusterSearch, "descend", counted)
    for method, without, searched in (
        ("local-search", (), 1),
        ("flow", ("local-search",), 1),
        ("modnn", (), 1),
        ("flow", (), 2),
    ):
        result = solve(instance, method, time_limit=0.5, without=without)
        assert result.schedule is not None
        assert check_cluster(instance, result.schedule).valid
        assert len(calls) == searched, method
    solve(instance, "local-search", time_limit=0.5, memory="paged")
    assert solve(one_gpu(instance), "local-search", time_limit=0.5).schedule is not None
    assert len(calls) == 2


@pytest.mark.parametrize("step", ["start", "descend"])
def test_what_is_planned_remains_when_the_search_is_interrupted(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = on("alexnet", {"gpus": 4})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClusterSearch, step, interrupted)
    answer = spread(instance, find_method("modnn").call, Limits(), searches=True)
    assert answer.stopped_by == "interrupted"
    assert answer.schedule is not None
    assert check_cluster(instance, answer.schedule).valid
