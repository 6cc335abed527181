from __future__ import annotations

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.layers import layer_steps
from pebbler.heuristics.papers.layrub import CAFFE_WORKSPACE
from pebbler.instances.instance import Instance
from pebbler.instances.memory import fastest, ideal_ns, live_bytes, with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

MIB = 2**20
WITHOUT_OFFLOAD = ("caffe-rule", "tensorflow-rule", "mxnet-rule")
MIGRATING = ("geeps-rule", "save-on-cpu-rule")


@pytest.fixture(scope="module")
def resnet() -> Instance:
    return Workload("resnet34", 16, "K40").instance("4GiB")


@pytest.fixture(scope="module")
def vgg() -> Instance:
    return Workload("vgg16", 16, "K40").instance("8GiB")


def solve(instance: Instance, method: str) -> Schedule:
    schedule = find_method(method).call(instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def pool(instance: Instance, schedule: Schedule) -> int:
    return schedule.peak_bytes - instance.resident_bytes


@pytest.mark.parametrize("method", WITHOUT_OFFLOAD)
def test_systems_without_offload_copy_nothing(resnet: Instance, method: str) -> None:
    schedule = solve(resnet, method)
    assert {o.kind for o in schedule.operations} == {"run"}
    assert len(schedule.operations) == len(resnet.tasks)
    with pytest.raises(Refusal, match="no place for"):
        find_method(method).call(with_budget(resnet, resnet.resident_bytes + 100 * MIB), Limits())


def test_caffe_has_a_place_for_everything_all_the_time(vgg: Instance) -> None:
    schedule = solve(vgg, "caffe-rule")
    everything = sum(block.bytes for block in vgg.blocks)
    assert everything <= pool(vgg, schedule) <= everything + CAFFE_WORKSPACE + 512 * len(vgg.blocks)
    assert all(r.released_after == () for r in schedule.residences if r.block is not None)


def test_caffe_s_workspaces_are_small_and_tensorflow_s_are_what_there_is_room_for(vgg: Instance) -> None:
    assert {r.bytes <= CAFFE_WORKSPACE for r in solve(vgg, "caffe-rule").residences if r.block is None} == {
        True
    }
    assert solve(vgg, "tensorflow-rule").makespan_ns == ideal_ns(vgg)
    assert max(a.workspace_bytes for a in fastest(vgg)) > CAFFE_WORKSPACE


def test_memory_in_the_order_of_what_is_shared(resnet: Instance) -> None:
    """Best fit and static regions come near what is live; a place for everything does not."""
    lean = msgspec.structs.replace(
        resnet,
        tasks=tuple(msgspec.structs.replace(t, algorithms=t.algorithms[:1]) for t in resnet.tasks),
    )
    caffe, mxnet, tensorflow = (pool(lean, solve(lean, method)) for method in WITHOUT_OFFLOAD)
    least = max(live_bytes(lean))
    assert least <= mxnet < 1.3 * least < caffe
    assert least <= tensorflow < 1.3 * least


# --- GeePS ------------------------------------------------------------------------------------------------


def largest_layer(instance: Instance) -> int:
    return max(
        sum(instance.blocks[d].bytes for d in {d for k in unit.tasks for d in instance.tasks[k].blocks})
        for unit in layer_steps(instance)
    )


def test_geeps_stays_within_two_buffers_of_the_largest_layer(resnet: Instance) -> None:
    schedule = solve(resnet, "geeps-rule")
    largest = largest_layer(resnet)
    assert largest <= pool(resnet, schedule) <= 2.2 * largest


def test_geeps_offloads_gradients_too(resnet: Instance) -> None:
    schedule = solve(resnet, "geeps-rule")
    names = {resnet.blocks[o.block].name for o in schedule.operations if o.block is not None}
    assert any(name.startswith("dY") for name in names)
    assert any(name.startswith("Y") for name in names)


def test_geeps_refuses_a_pool_under_two_buffers(resnet: Instance) -> None:
    small = with_budget(resnet, resnet.resident_bytes + int(1.5 * largest_layer(resnet)))
    with pytest.raises(Refusal, match="two buffers of the largest layer take"):
        find_method("geeps-rule").call(small, Limits())


# --- torch's save_on_cpu ----------------------------------------------------------------------------------


def test_save_on_cpu_overlaps_nothing(resnet: Instance) -> None:
    schedule = solve(resnet, "save-on-cpu-rule")
    busy = sum(o.end_ns - o.start_ns for o in schedule.operations if o.kind != "prefetch")
    back = [(o.start_ns, o.end_ns) for o in schedule.operations if o.kind == "prefetch"]
    assert schedule.makespan_ns >= busy
    for o in schedule.operations:
        if o.kind == "run":
            assert all(end <= o.start_ns or start >= o.end_ns for start, end in back)


def test_save_on_cpu_copies_all_that_is_saved_once_out_and_for_every_layer_back(resnet: Instance) -> None:
    schedule = solve(resnet, "save-on-cpu-rule")
    out = [o.block for o in schedule.operations if o.kind == "offload"]
    back = [o.block for o in schedule.operations if o.kind == "prefetch"]
    assert len(set(out)) == len(out)
    assert set(out) <= set(back)
    assert len(back) > len(set(back))


@pytest.mark.parametrize("method", MIGRATING)
def test_migration_needs_a_fraction_of_the_memory(resnet: Instance, method: str) -> None:
    assert pool(resnet, solve(resnet, method)) < pool(resnet, solve(resnet, "caffe-rule")) / 4


@pytest.mark.parametrize("method", [*WITHOUT_OFFLOAD, *MIGRATING])
@pytest.mark.parametrize("graph", ["paper", "executable"])
def test_in_paged_memory(method: str, graph: str) -> None:
    instance = Workload("googlenet", 8, "K40", graph).instance("8GiB")  # type: ignore[arg-type]
    schedule = find_method(method).call(instance, Limits(memory="paged")).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()


def test_all_that_is_a_rule_says_so_and_stays_out_of_comparisons_that_do_not_name_it() -> None:
    for name in (*WITHOUT_OFFLOAD, *MIGRATING, "memonger-rule", "superneurons-rule", "knapsack-rule"):
        assert find_method(name).shown == "named"
