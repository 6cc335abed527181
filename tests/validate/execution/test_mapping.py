"""The host's part of an execution in paged memory: waits and mappings, worked by hand and on real plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from msgspec import UNSET

from pebbler import solve
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.origin import MappingTimes
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.executor import Executor
from pebbler.validate.execution.mapping import mappings_ns, simulate_issued
from pebbler.validate.execution.plan import Mapped, Place, Plan, Step, plan
from pebbler.validate.execution.profiling.profiler import profile
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.schedule import Operation, Schedule
from pebbler.validate.simulate import nominal_ns, simulate


def step(number: int, stream: str, waits: tuple[int, ...] = (), maps: tuple[Mapped, ...] = ()) -> Step:
    kind, block = ("move", 0) if stream == "compute" else ("offload", 0)
    operation = Operation(id=number, stream=stream, kind=kind, block=block, start_ns=0, end_ns=0)  # type: ignore[arg-type]
    return Step(operation, str(number), waits, maps)


def of_steps(*steps: Step) -> Plan:
    return Plan(1, 1, {}, 4, 1, (), (), {}, (), steps)


def solved(network: str, batch: int, memory: str) -> tuple[Instance, Schedule, Plan]:
    instance = Workload(network, batch, "K40").instance("1.5xMmin" if memory == "contiguous" else "64MiB")
    schedule = solve(instance, "vdnn-all-m", memory=memory).schedule  # type: ignore[arg-type]
    assert schedule is not None
    return instance, schedule, plan(instance, schedule, rebuild(instance))


def test_the_host_waits_for_users_and_maps_before_it_issues_what_follows() -> None:
    place = Place("tensor", 0)
    found = simulate_issued(
        of_steps(
            step(0, "compute"),  # 0 to 10
            step(1, "d2h", waits=(0,)),  # 10 to 30
            step(2, "compute", maps=(Mapped(place, (1, 2), after=(0,)),)),  # waits to 10, maps to 17
            step(3, "d2h"),  # its stream is free at 30
            step(4, "compute", maps=(Mapped(place, (3,), after=(1, 2)),)),  # waits to 30, maps to 34
        ),
        (10, 20, 5, 1, 2),
        (0, 0, 7, 0, 4),
    )
    assert found == ([0, 10, 17, 30, 34], [10, 30, 22, 31, 36])


def test_a_mapping_costs_its_call_and_the_pages_that_change() -> None:
    tensor, other, workspace = Place("tensor", 0), Place("other", 0), Place("workspace 4-5", 0)
    begin = (Mapped(other, (6,), ()),)
    maps = (
        (Mapped(tensor, (1, 2), ()), Mapped(workspace, (4, 5), ())),  # where (3, 2) was; as before
        (Mapped(tensor, (3, 2), ()),),  # where (1, 2) was
        (Mapped(other, (7,), ()), Mapped(other, (6,), ())),  # there and back
        (),
    )
    steps = [step(number, "compute", maps=mapped) for number, mapped in enumerate(maps)]
    settled = replace(of_steps(*steps), maps=begin)
    assert mappings_ns(settled, MappingTimes(call_ns=100, page_ns=10)) == [110, 110, 220, 0]
    assert mappings_ns(settled, None) == [0] * 4


class Recording(CpuBackend):
    """A backend that notes what is asked of its memory, and at which address each page is."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, int] = {}
        self.changed: list[int] = []

    def map(self, address: int, pages: Sequence[int]) -> None:
        super().map(address, pages)
        wanted = {address + k * PAGE_BYTES: page for k, page in enumerate(pages)}
        self.changed.append(sum(self.there.get(at) != page for at, page in wanted.items()))
        self.there |= wanted


def test_what_is_predicted_is_mapped_in_every_execution_but_the_first() -> None:
    instance, _, settled = solved("cifar10_quick", 64, "paged")
    device = Recording()
    with Executor(device, settled, instance.rounds) as executor:
        executor.load(initial(rebuild(instance).graph.network, 64, 0, None))
        found = []
        for _ in range(3):
            device.changed.clear()
            executor.run()
            calls = iter(device.changed[len(settled.maps) :])  # the others come before the round
            found.append([sum(next(calls) for _ in one.maps) for one in settled.steps])
    predicted = mappings_ns(settled, MappingTimes(call_ns=0, page_ns=1))
    assert found[1] == found[2] == predicted
    assert sum(found[0]) > sum(predicted) > 0


@pytest.mark.parametrize("network", ["lenet", "resnet56:depth=8"])
def test_in_contiguous_memory_the_host_changes_nothing(network: str) -> None:
    instance, schedule, settled = solved(network, 4, "contiguous")
    nominal = [nominal_ns(instance, operation) for operation in schedule.operations]
    issued = simulate_issued(settled, nominal, [0] * len(nominal))
    assert issued == simulate(instance, schedule)
    assert max(issued[1]) == schedule.makespan_ns


def test_in_paged_memory_every_mapping_is_charged() -> None:
    instance, schedule, settled = solved("cifar10_quick", 64, "paged")
    nominal = [nominal_ns(instance, operation) for operation in schedule.operations]
    free = simulate_issued(settled, nominal, [0] * len(nominal))
    assert max(free[1]) >= schedule.makespan_ns
    cost = MappingTimes(call_ns=10**7, page_ns=10**6)
    mappings = mappings_ns(settled, cost)
    charged = simulate_issued(settled, nominal, mappings)
    assert sum(mappings) > 0
    assert max(charged[1]) >= sum(mappings)
    assert max(charged[1]) <= max(free[1]) + sum(mappings)


def test_the_cost_comes_from_the_instance_or_is_unknown() -> None:
    instance = Workload("lenet", 1, "K40").instance("2xMmin")
    assert instance.made_from.mapping is None
    for wrong in ({"call_ns": -1, "page_ns": 0}, {"call_ns": 1}, [1, 2], {"call_ns": 1, "page_ns": "2"}):
        with pytest.raises(PebblerError, match=r"meta\.mapping of lenet-b1 is no cost of mapping pages"):
            msgspec.structs.replace(instance, origin=UNSET, layers=UNSET, meta={"mapping": wrong})


@pytest.mark.slow  # tests of the command have the same
def test_a_profile_measures_it_and_the_instance_has_it() -> None:
    measured = profile("lenet", 1, CpuBackend, repeat=1)
    assert measured.mapping is not None
    assert measured.mapping.page_ns > 0
    instance = Workload("lenet", 1, measured.machine.device, profile=measured).instance("2xMmin")
    assert instance.made_from.mapping == measured.mapping
