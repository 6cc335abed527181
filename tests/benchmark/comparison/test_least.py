"""The least link and the least budget: a checked schedule on one side, a proof on the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pebbler.benchmark.comparison import least as module
from pebbler.benchmark.comparison.least import Axis, format_value, least_value
from pebbler.benchmark.pictures.sizing import least_picture
from pebbler.heuristics.clock import OutOfTime
from pebbler.heuristics.methods import Answer, Limits, Method, Refusal
from pebbler.heuristics.papers.modnn import modnn
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, least_host_bytes, with_budget, with_host_memory
from pebbler.instances.transforms import with_link
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload
from pebbler.solver.flow.model import flow_bound
from pebbler.validate.bounds.certificate import Certificate, check_certificate
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

Toys = Callable[..., None]
Found = list[tuple[Instance, Schedule | Certificate]]


@pytest.fixture(scope="module")
def vgg() -> Instance:
    return Workload("vgg16", 64, "v100").instance("85%")


def at(instance: Instance, over: Axis, value: int) -> Instance:
    if over == "host-memory":
        return with_host_memory(instance, value)
    return with_budget(instance, value) if over == "budget" else with_link(instance, f"{value}")


@pytest.mark.parametrize("over", ["link", "budget"])
def test_both_sides_are_proven(over: Axis, vgg: Instance) -> None:
    kept: Found = []
    found = least_value(vgg, over, 0.05, "modnn", refine=False, on_found=lambda *both: kept.append(both))
    assert found.least is not None
    assert found.certified_impossible is not None
    assert found.certified_impossible <= (found.impossible or 0) < found.least
    (*_, (enough, schedule)) = [both for both in kept if isinstance(both[1], Schedule)]
    assert isinstance(schedule, Schedule)
    assert check(enough, schedule).valid
    assert enough == at(vgg, over, found.least)
    assert schedule.makespan_ns <= 1.05 * ideal_ns(vgg)
    (*_, (short, certificate)) = [both for both in kept if isinstance(both[1], Certificate)]
    assert isinstance(certificate, Certificate)
    assert check_certificate(short, certificate).valid
    assert short == at(vgg, over, found.certified_impossible)
    assert certificate.lower_bound_ns > 1.05 * ideal_ns(vgg)


def test_answers_are_monotone_and_drawn(vgg: Instance) -> None:
    found = least_value(vgg, "link", 0.1, "modnn", refine=False)
    answers = [point.answer for point in found.points]
    assert answers == sorted(answers, key=["no", "unknown", "yes"].index)
    assert {"no", "yes"} <= set(answers)
    assert least_picture(found).startswith(b"\x89PNG")
    assert format_value("link", found.least or 0) in str(found)
    assert "in exact arithmetic" in str(found)


def test_no_link_is_enough_where_only_slow_algorithms_fit(tight: Instance) -> None:
    found = least_value(tight, "link", 0.05, "modnn", refine=False)
    assert found.least is None
    assert found.impossible == max(point.value for point in found.points)
    assert found.stopped_by == "done"
    assert "no link was found" in str(found)


def test_where_every_method_refuses_the_reason_is_said(toys: Toys, chain: Instance) -> None:
    def refuses(*_: object) -> Answer:
        raise Refusal("not today")

    toys(refuses=refuses)
    found = least_value(chain, "link", 0.5, "refuses", refine=False)
    assert found.least is None
    assert found.points[-1].stopped_by == "not today"
    assert "at 1000.00 TB/s: not today" in " ".join(str(found).split())


def test_time_that_ends_while_a_method_is_loaded_ends_the_search(
    monkeypatch: pytest.MonkeyPatch, vgg: Instance
) -> None:
    def loads(*_: object, **__: object) -> None:
        raise OutOfTime("time limit")

    monkeypatch.setattr(module, "solve", loads)
    found = least_value(vgg, "link", 0.05, "modnn")
    assert (found.least, found.stopped_by) == (None, "time limit")
    assert found.certified_impossible is not None


def test_quick_methods_only_lead_near_the_answer(toys: Toys, vgg: Instance) -> None:
    """Upwards from what is proven too small, and not down from any link."""
    tried: dict[str, list[float]] = {"rule": [], "last": []}

    def noted(name: str) -> Method:
        def method(instance: Instance, limits: Limits) -> Answer:
            tried[name].append(float(instance.applied[-1].value or 0))
            return modnn(instance, limits)

        return method

    toys(rule=noted("rule"), last=noted("last"))
    found = least_value(vgg, "link", 0.05, "rule,last", refine=False)
    assert found.least is not None
    assert found.impossible is not None
    assert max(tried["rule"]) < 300 * found.least
    assert len(tried["rule"]) < 10
    assert found.least <= 1.1 * max(value for value in tried["last"] if value < found.least)


@pytest.mark.slow
def test_host_memory_is_compared_with_a_schedule_that_has_all_it_wants(toys: Toys) -> None:
    """Here such a schedule is far over the ideal, and prices of FLOW exclude more than what has no room."""

    def proven(instance: Instance, limits: Limits) -> Answer:
        bound = flow_bound(instance, range(len(instance.tasks)))
        assert bound is not None
        try:
            return Answer(modnn(instance, limits).schedule, certificate=bound.certificate)
        except Refusal as refusal:
            return Answer(None, str(refusal), certificate=bound.certificate)

    toys(proven=proven)
    instance, kept = Workload("vgg16", 64, "k40").instance("1.1xMmin"), list[Any]()
    found = least_value(
        instance, "host-memory", 0.01, "proven", refine=False, on_found=lambda *both: kept.append(both)
    )
    assert found.unlimited_ns is not None
    assert found.longest_ns == int(1.01 * found.unlimited_ns)
    assert found.unlimited_ns > 1.05 * ideal_ns(instance)
    least = least_host_bytes(instance)
    assert found.least_host_bytes == least > 0
    assert found.least is not None
    assert found.certified_impossible is not None
    assert least <= found.certified_impossible <= (found.impossible or 0) < found.least
    (*_, (enough, schedule)) = [both for both in kept if isinstance(both[1], Schedule)]
    assert enough == at(instance, "host-memory", found.least)
    assert check(enough, schedule).valid
    assert schedule.makespan_ns <= found.longest_ns
    assert schedule.host_peak_bytes == found.least  # with less, this schedule has no room
    (*_, (short, certificate)) = [both for both in kept if isinstance(both[1], Certificate)]
    assert short == at(instance, "host-memory", found.certified_impossible)
    assert check_certificate(short, certificate).valid
    assert certificate.lower_bound_ns > found.longest_ns
    answers = [point.answer for point in found.points]
    assert answers == sorted(answers, key=["no", "unknown", "yes"].index)
    bounds = [point.certified_lower_bound_ns for point in found.points]
    assert bounds == sorted(bounds, reverse=True)  # prices are prices at every size
    said = " ".join(str(found).split())
    assert f"with unlimited host memory {format_time(found.unlimited_ns)} (proven: " in said
    assert "of one with unlimited host memory" in said
    assert least_picture(found).startswith(b"\x89PNG")


def test_no_host_memory_is_enough_where_nothing_is_copied(toys: Toys, keep: Method, chain: Instance) -> None:
    toys(keep=keep)
    found = least_value(chain, "host-memory", 0.0, "keep", refine=False)
    assert (found.least, found.impossible, found.least_host_bytes) == (0, None, 0)
    assert "0 B is enough" in str(found)
    assert least_picture(found).startswith(b"\x89PNG")


def test_under_what_device_and_host_can_hold_nothing_works(toys: Toys, swap: Method, tight: Instance) -> None:
    toys(swap=swap)
    found = least_value(tight, "host-memory", 10.0, "swap", refine=False)
    least = least_host_bytes(tight)
    assert found.least is not None
    assert found.impossible == least - 1 < found.least
    assert "device and host have no room for what is wanted" in " ".join(str(found).split())


def test_without_a_schedule_there_is_nothing_to_compare_host_memory_with(toys: Toys, chain: Instance) -> None:
    def refuses(*_: object) -> Answer:
        raise Refusal("not today")

    toys(refuses=refuses)
    found = least_value(chain, "host-memory", 0.5, "refuses")
    assert (found.least, found.unlimited_ns, found.longest_ns) == (None, None, None)
    assert "no schedule was found with unlimited host memory" in str(found)
    assert "not today" in str(found)
    assert least_picture(found).startswith(b"\x89PNG")


def test_any_budget_that_fits_is_enough_where_copies_hide(toys: Toys, swap: Method, chain: Instance) -> None:
    toys(swap=swap)
    found = least_value(chain, "budget", 10.0, "swap", refine=False)
    assert found.least is not None
    assert found.least_budget_bytes <= found.least <= 1.005 * found.least_budget_bytes
    assert found.impossible == found.least_budget_bytes - 1
    assert "a single task has no room" in str(found)


def test_ctrl_c_keeps_what_is_known(toys: Toys, swap: Method, chain: Instance) -> None:
    calls: list[int] = []

    def cut(instance: Instance, limits: Limits) -> Answer:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return swap(instance, limits)

    toys(cut=cut)
    found = least_value(chain, "link", 2.0, "cut", refine=False)
    assert found.stopped_by == "interrupted"
    assert found.least is not None


def test_wrong_questions_are_refused(chain: Instance) -> None:
    with pytest.raises(BudgetError):
        least_value(with_budget(chain, 1), "link", 0.05, "modnn")
    with pytest.raises(PebblerError, match="no method 'magic'"):
        least_value(chain, "link", 0.05, "modnn,magic")


def test_values_read_well() -> None:
    assert [format_value("link", value) for value in (2 * 10**13, 12 * 10**9, 10**6, 5_000)] == [
        "20.00 TB/s",
        "12.00 GB/s",
        "1.00 MB/s",
        "5.00 kB/s",
    ]
    assert format_value("budget", 2**30) == format_value("host-memory", 2**30) == "1.00 GiB"
