"""The gate before every result: statuses, refusals, and nothing invalid gets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from pebbler.heuristics.methods import Answer, Limits, Method, Refusal, list_methods, register
from pebbler.heuristics.papers.network_wide import network_wide
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.transforms import in_pages
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.answers import Answers
from pebbler.solver.bounds import Bound, best_bound, certified_bound
from pebbler.solver.result import Result, Status
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import certify, sealed
from pebbler.validate.schedule import MemoryModel

MIB = 2**20
Toys = Callable[..., None]


def nothing(**keys: object) -> Method:
    """A method that finds no schedule."""
    return lambda _instance, _limits: Answer(None, **keys)  # type: ignore[arg-type]


def also(method: Method, **keys: object) -> Method:
    """A method that says something more with its schedule."""
    return lambda instance, limits: replace(method(instance, limits), **keys)  # type: ignore[arg-type]


def altered(method: Method, change: Callable[[Answer], Answer]) -> Method:
    return lambda instance, limits: change(method(instance, limits))


# --- status ---------------------------------------------------------------------------------------------


def test_feasible(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    result = solve(chain, "keep")
    assert (result.status, result.stopped_by) == (Status.FEASIBLE, "done")
    assert result.makespan_ns == 10_000_000
    assert result.lower_bound_ns == 5_000_000
    assert result.optimality_gap == 1.0
    assert (result.bound_by, result.certified) == ("compute", True)
    assert (result.memory_model, result.method, result.seed) == ("contiguous", "keep", 0)
    assert result.solve_seconds >= 0


def test_figures_of_the_schedule(tight: Instance, toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    result = solve(tight, "swap", seed=7)
    assert result.schedule is not None
    assert result.makespan_ns == result.schedule.makespan_ns
    assert result.peak_bytes == result.schedule.peak_bytes <= 4 * MIB
    assert result.offloaded_bytes == MIB  # A alone: B and C are used at once
    assert result.prefetched_bytes == MIB
    assert result.pinned_bytes == MIB
    assert result.seed == 7
    assert result.average_bytes is not None
    assert result.average_bytes < result.peak_bytes


def test_optimal_at_the_known_bound(chain: Instance, toys: Toys, keep: Method) -> None:
    slow = msgspec.structs.replace(
        chain,
        tasks=tuple(msgspec.structs.replace(task, algorithms=task.algorithms[:1]) for task in chain.tasks),
    )
    toys(keep=keep)
    result = solve(slow, "keep")
    assert (result.status, result.optimality_gap) == (Status.OPTIMAL, 0.0)


def test_optimal_at_the_method_s_own_bound(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(proof=also(keep, lower_bound_ns=10_000_000, bound_by="a proof"))
    result = solve(chain, "proof")
    assert (result.status, result.lower_bound_ns) == (Status.OPTIMAL, 10_000_000)
    assert (result.bound_by, result.certified) == ("a proof", False)


def test_a_bound_without_a_name_is_the_method_s(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(proof=also(keep, lower_bound_ns=9_000_000))
    result = solve(chain, "proof")
    assert (result.status, result.bound_by, result.certified) == (Status.FEASIBLE, "proof", False)
    assert result.certified_lower_bound_ns == 5_000_000


def test_a_bound_is_certified_by_its_certificate(chain: Instance, toys: Toys, keep: Method) -> None:
    known = Bound(0, "nothing", certified=False)
    toys(proof=also(keep, lower_bound_ns=5_000_000, certificate=certify(chain, "compute", "sums")))
    result = solve(chain, "proof", bound=known)
    assert (result.lower_bound_ns, result.bound_by, result.certified) == (5_000_000, "sums", True)
    assert result.bound.certificate == result.certificate
    toys(proof=also(keep, lower_bound_ns=6_000_000, certificate=certify(chain, "compute", "sums")))
    result = solve(chain, "proof", bound=known)
    assert (result.lower_bound_ns, result.bound_by, result.certified) == (6_000_000, "proof", False)
    assert result.certified_lower_bound_ns == 5_000_000
    assert "certified bound  5.000 ms" in str(result)


def test_a_certificate_for_paged_memory_bounds_no_contiguous_schedule(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(proof=also(keep, certificate=certify(in_pages(chain), "compute", "sums")))
    with pytest.raises(AssertionError, match="it is for paged memory, not for contiguous"):
        solve(chain, "proof")


def test_parts_inside_pages_are_refused_for_paged_memory_in_words_of_their_own() -> None:
    instance = tiny_instance(0)
    with pytest.raises(PebblerError, match=r"inside a page; paged memory needs parts that begin"):
        solve(instance, "modnn", memory="paged")
    with pytest.raises(PebblerError, match=r"inside a page; .*take contiguous memory"):
        best_bound(instance, memory="paged")


def test_a_bound_for_larger_pages_is_compared_with_no_schedule(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    chain = with_budget(chain, 64 * PAGE_BYTES)
    larger = certify(in_pages(chain, 2 * PAGE_BYTES), "compute", "sums")
    toys(proof=also(keep, certificate=larger))
    with pytest.raises(AssertionError, match=f"for pages of {2 * PAGE_BYTES} bytes, and schedules may have"):
        solve(chain, "proof", memory="paged")
    with pytest.raises(PebblerError, match=f"for pages of {2 * PAGE_BYTES} bytes, and schedules may have"):
        Answers(chain, "paged").claim(certified_bound(larger))


def test_a_budget_may_be_too_small_for_whole_pages() -> None:
    instance = Workload("lenet", 64, "k40").instance("1.05xMmin")
    assert solve(instance, "modnn").schedule is not None
    paged = solve(instance, "modnn", memory="paged")
    assert paged.status is Status.INFEASIBLE
    assert paged.stopped_by.startswith("in pages of 2.00 MiB, task 'BP1(pool1)' needs 12.00 MiB of blocks")


def test_a_certificate_that_proves_less_is_a_defect_of_the_method(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    honest = certify(chain, "compute", "sums")
    false = sealed(msgspec.structs.replace(honest, lower_bound_ns=honest.lower_bound_ns + 1))
    toys(proof=also(keep, certificate=false))
    with pytest.raises(
        AssertionError, match="method proof on chain-b4: its certificate is wrong: its figures prove"
    ):
        solve(chain, "proof")


def test_a_weaker_bound_of_the_method_is_not_shown(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(proof=also(keep, lower_bound_ns=3, bound_by="a poor proof"))
    assert solve(chain, "proof").bound_by == "compute"


def test_a_method_may_prove_that_there_is_none(chain: Instance, toys: Toys) -> None:
    toys(none=nothing(infeasible=True, stopped_by="every program was tried"))
    result = solve(chain, "none")
    assert (result.status, result.stopped_by) == (Status.INFEASIBLE, "every program was tried")
    assert result.schedule is None


def test_a_time_limit_is_not_a_proof(chain: Instance, toys: Toys) -> None:
    toys(none=nothing(stopped_by="time limit"))
    assert solve(chain, "none").status == Status.UNKNOWN


def test_a_refusal_is_unknown_with_its_reason(chain: Instance, toys: Toys) -> None:
    def refuse(_instance: Instance, _limits: Limits) -> Answer:
        raise Refusal("no place for block 'A'")

    toys(refuse=refuse)
    result = solve(chain, "refuse")
    assert (result.status, result.stopped_by) == (Status.UNKNOWN, "no place for block 'A'")
    figures = result.as_dict()
    for name in ("makespan_ns", "optimality_gap", "peak_bytes", "average_bytes", "pinned_bytes"):
        assert figures[name] is None
    assert figures["lower_bound_ns"] == 5_000_000


def test_a_method_gets_its_limits(chain: Instance, toys: Toys, keep: Method) -> None:
    seen: list[Limits] = []

    def method(instance: Instance, limits: Limits) -> Answer:
        seen.append(limits)
        return keep(instance, limits)

    toys(m=method)
    first = solve(chain, "m", time_limit=2.5, seed=3, workers=4)
    solve(chain, "m", warm_start=first.schedule)
    assert seen == [Limits(2.5, 3, 4, "contiguous", None), Limits(warm_start=first.schedule)]


def test_a_known_bound_is_used_as_it_is(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    result = solve(chain, "keep", bound=Bound(9_999_999, "flow", certified=False))
    assert (result.lower_bound_ns, result.bound_by, result.certified) == (9_999_999, "flow", False)
    assert result.status == Status.FEASIBLE


# --- the gate -------------------------------------------------------------------------------------------


def test_an_invalid_schedule_does_not_pass(chain: Instance, toys: Toys, liar: Method) -> None:
    toys(liar=liar)
    with pytest.raises(AssertionError, match="method keep on chain-b4: makespan_ns is 9999999, simulated"):
        solve(chain, "liar")


def test_a_schedule_that_races_does_not_pass(tight: Instance, toys: Toys, swap: Method) -> None:
    def race(answer: Answer) -> Answer:
        assert answer.schedule is not None
        operations = tuple(msgspec.structs.replace(o, after=()) for o in answer.schedule.operations)
        return replace(answer, schedule=msgspec.structs.replace(answer.schedule, operations=operations))

    toys(race=altered(swap, race))
    with pytest.raises(AssertionError, match="method swap on chain-b4: "):
        solve(tight, "race")


def test_a_schedule_under_the_bound_of_its_method_does_not_pass(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(boast=also(keep, lower_bound_ns=10_000_001, bound_by="a wrong proof"))
    with pytest.raises(AssertionError, match="10000000 is under the a wrong proof bound 10000001"):
        solve(chain, "boast")


def test_a_word_above_the_schedule_falls_and_the_method_is_not_blamed(
    chain: Instance, toys: Toys, keep: Method, caplog: pytest.LogCaptureFixture
) -> None:
    toys(keep=keep)
    result = solve(chain, "keep", bound=Bound(10_000_001, "flow", certified=False))
    assert (result.status, result.makespan_ns) == (Status.FEASIBLE, 10_000_000)
    assert (result.lower_bound_ns, result.bound_by, result.certified) == (5_000_000, "compute", True)
    assert "10000000 is under the flow bound 10000001" in caplog.text
    assert "a solver was wrong" in caplog.text


def test_a_schedule_for_another_instance_does_not_pass(chain: Instance, toys: Toys, keep: Method) -> None:
    other = msgspec.structs.replace(chain, name="other")
    toys(swapped=lambda _instance, limits: keep(other, limits))
    with pytest.raises(AssertionError, match="for instance 'other', not for 'chain-b4'"):
        solve(chain, "swapped")


def test_a_schedule_over_the_budget_does_not_pass(
    chain: Instance, tight: Instance, toys: Toys, keep: Method
) -> None:
    toys(greedy=lambda _instance, limits: keep(chain, limits))
    with pytest.raises(AssertionError, match="of a pool of 3145728"):
        solve(tight, "greedy")


@pytest.mark.parametrize("given", ["divisible", "paged"])
def test_another_memory_model_is_no_solution(
    given: MemoryModel, chain: Instance, toys: Toys, keep: Method
) -> None:
    roomy = with_budget(chain, 64 * MIB)
    asked = cast(Limits, SimpleNamespace(memory=given))
    toys(other=lambda instance, _: keep(instance, asked))
    with pytest.raises(AssertionError, match=f"its memory model is {given}, not contiguous"):
        solve(roomy, "other")


def test_pages_on_request(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    result = solve(with_budget(chain, 64 * MIB), "keep", memory="paged")
    assert result.memory_model == "paged"
    assert result.schedule is not None
    assert result.schedule.memory_model == "paged"


def test_other_errors_of_a_method_are_not_hidden(chain: Instance, toys: Toys) -> None:
    def broken(_instance: Instance, _limits: Limits) -> Answer:
        raise KeyError("oops")

    toys(broken=broken)
    with pytest.raises(KeyError, match="oops"):
        solve(chain, "broken")


# --- wrong usage ----------------------------------------------------------------------------------------


def test_a_budget_under_the_minimum(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    solve(with_budget(chain, 8 * MIB), "keep")
    with pytest.raises(BudgetError, match="task 'BP\\(c\\)' needs"):
        solve(with_budget(chain, 4 * MIB - 1), "keep")


def test_an_unknown_method_is_answered_with_close_names(chain: Instance) -> None:
    with pytest.raises(PebblerError, match=r"there is no method 'vdnn-conv-n'; did you mean .*vdnn-conv-m"):
        solve(chain, "vdnn-conv-n")
    with pytest.raises(PebblerError, match=r"there is no method 'xyzzy'; there are .*network-wide, "):
        solve(chain, "xyzzy")


def test_an_unknown_method_comes_before_the_budget(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    with pytest.raises(PebblerError, match="there is no method 'keeps'; did you mean keep"):
        solve(with_budget(chain, 0), "keeps")


def test_a_name_is_registered_by_one_module(toys: Toys, keep: Method) -> None:
    toys()
    register("new", "summary", "source")(keep)
    assert [(info.name, info.call) for info in list_methods()] == [("new", keep)]
    with pytest.raises(PebblerError, match="method 'new' is registered already"):
        register("new", "summary", "source")(network_wide)
    assert [(info.name, info.call) for info in list_methods()] == [("new", keep)]


# --- what is shown --------------------------------------------------------------------------------------


def test_all_figures_of_the_contract_by_name(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    assert set(solve(chain, "keep").as_dict()) == {
        "status",
        "stopped_by",
        "makespan_ns",
        "lower_bound_ns",
        "optimality_gap",
        "bound_by",
        "certified",
        "certified_lower_bound_ns",
        "peak_bytes",
        "average_bytes",
        "offloaded_bytes",
        "prefetched_bytes",
        "pinned_bytes",
        "memory_model",
        "method",
        "solve_seconds",
        "seed",
    }


def test_figures_go_into_json(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    figures = msgspec.json.decode(msgspec.json.encode(solve(chain, "keep").as_dict()))
    assert figures["status"] == "feasible"
    assert figures["certified"] is True


def test_as_text(tight: Instance, toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    text = str(solve(tight, "swap"))
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert rows["status"] == "feasible (done)"
    assert rows["makespan"].endswith("ms")
    assert rows["offloaded"] == "1.00 MiB"
    assert "certified)" in text
    column = {len(line) - len(line[16:].lstrip()) for line in text.splitlines()}
    assert column == {17}


def test_as_text_without_a_schedule(chain: Instance, toys: Toys) -> None:
    toys(none=nothing(stopped_by="time limit"))
    text = str(solve(chain, "none"))
    assert "no schedule (time limit)" in text
    assert "5.000 ms (compute, certified)" in text
    assert "makespan" not in text
    assert "None" not in text


class Cells(HTMLParser):
    """Texts of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(result: Result) -> Cells:
    cells = Cells()
    cells.feed(result._repr_html_())
    return cells


def test_as_html(tight: Instance, toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    result = solve(tight, "swap")
    cells = parsed(result)
    assert set(cells.tags) == {"table", "tr", "th", "td"}
    assert cells.tags.count("tr") == len(str(result).splitlines())
    assert cells.texts[:4] == ["method", "swap", "status", "feasible (done)"]


def test_names_are_text_in_html(chain: Instance, toys: Toys) -> None:
    toys(none=nothing(stopped_by="no place for block '<b>&lt;'"))
    cells = parsed(solve(chain, "none"))
    assert set(cells.tags) == {"table", "tr", "th", "td"}
    assert "no schedule (no place for block '<b>&lt;')" in "".join(cells.texts)


# --- real methods ---------------------------------------------------------------------------------------

QUICK = ("network-wide", "vdnn-all-m", "vdnn-all-p", "vdnn-conv-m", "vdnn-conv-p")


@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("budget", [8 * MIB, 5 * MIB])
def test_same_input_same_bytes(method: str, budget: int, chain: Instance) -> None:
    instance = with_budget(chain, budget)
    first, second = solve(instance, method, seed=5), solve(instance, method, seed=5)
    assert (first.schedule is None) == (second.schedule is None)
    if first.schedule is not None and second.schedule is not None:
        assert encode(first.schedule) == encode(second.schedule)
    keys = set(first.as_dict()) - {"solve_seconds"}
    assert {key: first.as_dict()[key] for key in keys} == {key: second.as_dict()[key] for key in keys}


def test_exhaustive_search_gives_the_same_bytes_twice(tight: Instance) -> None:
    first, second = (solve(tight, "brute-force") for _ in range(2))
    assert first.schedule is not None
    assert second.schedule is not None
    assert encode(first.schedule) == encode(second.schedule)
    assert first.status == Status.OPTIMAL
    assert first.makespan_ns == first.lower_bound_ns >= best_bound(tight).lower_bound_ns


def fixed(**keys: object) -> Instance:
    """Y is made from X; one of them can never be where the instance wants it."""
    blocks = {
        "x": {"initially": "device", "offload_ns": 1, "prefetch_ns": 1},
        "y": {"offload_ns": 1, "prefetch_ns": 1},
    }
    for name, more in keys.items():
        blocks[name] |= more  # type: ignore[operator]
    run = Algorithm(name="a", duration_ns=5, workspace_bytes=0)
    return Instance(
        name="fixed",
        engines="duplex",
        budget_bytes=4096,
        resident_bytes=0,
        blocks=tuple(Block(name=name, bytes=8, **more) for name, more in blocks.items()),  # type: ignore[arg-type]
        tasks=(Task(name="t", inputs=(0,), outputs=(1,), algorithms=(run,)),),
    )


IMPOSSIBLE = (
    fixed(y={"finally_": "host", "offload_ns": None}),
    fixed(x={"initially": "host", "prefetch_ns": None}),
)


@pytest.mark.parametrize("instance", IMPOSSIBLE)
def test_exhaustive_search_proves_that_there_is_no_schedule(instance: Instance) -> None:
    result = solve(instance, "brute-force")
    assert (result.status, result.schedule) == (Status.INFEASIBLE, None)


@pytest.mark.parametrize("instance", IMPOSSIBLE)
@pytest.mark.parametrize("method", QUICK)
def test_a_heuristic_refuses_what_has_no_schedule(method: str, instance: Instance) -> None:
    assert solve(instance, method).status == Status.UNKNOWN
