from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from pebbler.benchmark.comparison import compare as compare_module
from pebbler.benchmark.comparison.compare import compare, compare_auto, default_methods, figures_of
from pebbler.benchmark.comparison.plan import instances_of
from pebbler.benchmark.comparison.result import Comparison
from pebbler.benchmark.pictures.export import export
from pebbler.cli.main import main
from pebbler.heuristics.methods import Answer, Limits, Method
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.files import read_instance, sha256_of, write_instance
from pebbler.instances.instance import Algorithm, Instance, Link, Slowdown
from pebbler.instances.units import format_size
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import Bound, best_bound, certified_bound, compute_bound
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import certify, read_certificate, sealed
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel, read_schedule

Toys = Callable[..., None]
MS = 10**6
MIB = 2**20
SOLVE_KEYS = {
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


def test_figures_of_one_round(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    comparison = compare(chain)
    (row,) = comparison.rows
    assert row.figures is not None
    assert comparison.ideal_ns == 5 * MS
    assert row.figures.iteration_ns == row.figures.makespan_ns == 10 * MS
    assert row.figures.overhead == 1.0
    assert row.figures.stall_ns == 0
    assert row.figures.peak_bytes == 5 * MIB
    assert row.figures.offloaded_bytes == row.figures.prefetched_bytes == 0
    assert row.figures.optimality_gap == comparison.bound.gap(10 * MS)


def test_a_solver_s_word_stands_beside_what_is_proven(chain: Instance, toys: Toys, keep: Method) -> None:
    def claims(instance: Instance, limits: Limits) -> Answer:
        return replace(keep(instance, limits), lower_bound_ns=8 * MS, bound_by="a solver")

    toys(keep=keep)
    assert "certified gap" not in compare(chain).summary()
    toys(claims=claims)
    comparison = compare(chain)
    header, row, *notes = comparison.summary().splitlines()
    assert "certified gap" in header
    assert row.split()[5:7] == ["25.00%", "100.00%"]
    assert "lower bound:  8.000 ms (a solver, the solver's word); 5.000 ms in exact arithmetic" in notes
    figures = comparison.as_dict()
    assert (figures["certified"], figures["certified_lower_bound_ns"]) == (False, 5 * MS)


def test_figures_of_an_iteration_add_up_over_rounds(tight: Instance, toys: Toys, swap: Method) -> None:
    toys(swap=swap)
    last = msgspec.structs.replace(tight, name="last", rounds=1)
    (one,) = compare(tight).rows
    (three,) = compare([msgspec.structs.replace(tight, rounds=2), last]).rows
    assert one.figures is not None
    assert three.figures is not None
    assert one.figures.offloaded_bytes == one.figures.prefetched_bytes == MIB
    assert three.figures.iteration_ns == 3 * one.figures.iteration_ns
    assert three.figures.stall_ns == 3 * one.figures.stall_ns > 0
    assert three.figures.offloaded_bytes == 3 * MIB
    ideal = round(three.figures.iteration_ns / (1 + three.figures.overhead))
    assert figures_of(three.instances, three.schedules, ideal, three.bound) == three.figures
    assert three.figures.average_bytes == one.figures.average_bytes
    assert three.figures.pinned_bytes == one.figures.pinned_bytes
    assert three.figures.overhead == one.figures.overhead
    assert len(three.schedules) == 2


def test_a_refusal_is_a_row_with_its_reason(tight: Instance, toys: Toys, keep: Method, swap: Method) -> None:
    toys(keep=keep, swap=swap)
    refused, solved = compare(tight).rows
    assert refused.status == "unknown"
    assert refused.figures is None
    assert "no place for block 'D'" in refused.stopped_by
    assert solved.figures is not None


def test_a_failing_method_is_a_row_and_the_others_go_on(
    chain: Instance, toys: Toys, keep: Method, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(_: Instance, __: Limits) -> Answer:
        raise RuntimeError("out of ideas")

    toys(crash=crash, keep=keep)
    failed, solved = compare(chain).rows
    assert (failed.status, failed.stopped_by) == ("error", "RuntimeError: out of ideas")
    assert solved.figures is not None
    assert "method crash failed on chain-b4" in caplog.text


def test_an_invalid_schedule_is_loud_and_never_shown(
    chain: Instance, toys: Toys, liar: Method, caplog: pytest.LogCaptureFixture
) -> None:
    toys(liar=liar)
    (row,) = compare(chain).rows
    assert row.status == "error"
    assert row.schedules == ()
    assert row.figures is None
    assert "makespan" in row.stopped_by
    assert "this is a defect of the method" in caplog.text


def test_a_bound_that_a_method_proves_holds_for_every_row(tight: Instance, toys: Toys, swap: Method) -> None:
    def prove(instance: Instance, limits: Limits) -> Answer:
        schedule = swap(instance, limits).schedule
        assert schedule is not None
        return Answer(schedule, lower_bound_ns=schedule.makespan_ns, bound_by="toy proof")

    toys(swap=swap, prove=prove)
    assert compare(tight, ["swap"]).rows[0].status == "feasible"
    comparison = compare(tight)
    assert comparison.bound.bound_by == "toy proof"
    assert [row.status for row in comparison.rows] == ["optimal", "optimal"]
    assert [row.figures and row.figures.optimality_gap for row in comparison.rows] == [0.0, 0.0]


def test_the_bound_of_an_iteration_adds_up_over_rounds(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    twice = msgspec.structs.replace(chain, rounds=2)
    assert compare([twice, chain]).bound.lower_bound_ns == 3 * best_bound(chain).lower_bound_ns


def test_an_interruption_keeps_what_is_done(chain: Instance, toys: Toys, keep: Method) -> None:
    def interrupt(_: Instance, __: Limits) -> Answer:
        raise KeyboardInterrupt

    toys(first=keep, stop=interrupt, never=keep)
    comparison = compare(chain)
    assert comparison.interrupted
    assert [row.method for row in comparison.rows] == ["first"]
    assert "interrupted:" in comparison.summary()


def test_a_method_that_was_interrupted_ends_the_comparison(
    chain: Instance, toys: Toys, keep: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(instance: Instance, limits: Limits) -> Answer:
        return replace(keep(instance, limits), stopped_by="interrupted")

    toys(stopped=stopped, never=keep)
    monkeypatch.setattr(compare_module, "refine_bound", lambda *_, **__: pytest.fail("it went on"))
    comparison = compare(chain, time_limit=1.0)
    assert comparison.interrupted
    assert [(row.method, row.figures is not None) for row in comparison.rows] == [("stopped", True)]
    rounds = [chain, msgspec.structs.replace(chain, name="other", rounds=2)]
    comparison = compare(rounds, time_limit=1.0)
    assert comparison.interrupted
    assert [(row.method, row.status, row.figures) for row in comparison.rows] == [
        ("stopped", "unknown", None)
    ]


def test_limits_reach_the_method(chain: Instance, toys: Toys, keep: Method) -> None:
    seen: list[Limits] = []

    def spy(instance: Instance, limits: Limits) -> Answer:
        seen.append(limits)
        return keep(instance, limits)

    toys(spy=spy)
    roomy = msgspec.structs.replace(chain, budget_bytes=16 * MIB)
    comparison = compare(roomy, time_limit=2.5, seed=7, workers=2, memory="paged", refine=False)
    assert seen == [Limits(time_limit=2.5, seed=7, workers=2, memory="paged")]
    assert comparison.rows[0].schedules[0].memory_model == "paged"
    assert comparison.as_dict()["results"][0]["memory_model"] == "paged"


def test_progress_is_logged_a_line_a_method(
    tight: Instance, toys: Toys, keep: Method, swap: Method, caplog: pytest.LogCaptureFixture
) -> None:
    toys(keep=keep, swap=swap)
    with caplog.at_level(logging.INFO, logger="pebbler"):
        compare(tight)
    refused, solved = (record.getMessage() for record in caplog.records)
    assert refused.startswith("keep: no schedule: no place")
    assert solved.startswith("swap: 10.500 ms a round")


def test_wrong_questions_are_refused(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    with pytest.raises(PebblerError, match="there is no method 'kept'; did you mean keep"):
        compare(chain, ["keep", "kept"])
    with pytest.raises(PebblerError, match="nothing to compare"):
        compare(chain, [])
    with pytest.raises(PebblerError, match="nothing to compare"):
        compare([], ["keep"])
    with pytest.raises(BudgetError, match="under the minimum"):
        compare(msgspec.structs.replace(chain, budget_bytes=4 * MIB - 1))


def test_brute_force_is_left_out_unless_the_instance_is_tiny(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(keep=keep, **{"brute-force": keep})
    assert default_methods([chain]) == ("keep", "brute-force")
    assert default_methods([Workload("lenet", 4, "k40").instance("1GiB")]) == ("keep",)


def test_json_has_the_keys_of_the_contract(tight: Instance, toys: Toys, keep: Method, swap: Method) -> None:
    toys(keep=keep, swap=swap)
    document = compare(tight).as_dict()
    assert {"instance", "ideal_ns", "lower_bound_ns", "results"} <= set(document)
    assert document["instance"]["name"] == "chain-b4"
    assert document["instance"]["budget_bytes"] == document["instance"]["least_budget_bytes"] == 4 * MIB
    for result in document["results"]:
        assert set(result) >= SOLVE_KEYS | {"iteration_ns", "sub_batch", "rounds", "variant"}
        assert result["variant"] == "whole"
    refused, solved = document["results"]
    assert refused["iteration_ns"] is None
    assert solved["iteration_ns"] == 10.5 * MS
    msgspec.json.encode(document)


def test_the_table_says_what_was_asked_and_what_is_left_out(
    tight: Instance, toys: Toys, keep: Method, swap: Method
) -> None:
    toys(keep=keep, swap=swap)
    comparison = compare(tight)
    lines = comparison.summary().splitlines()
    header, solved, after = (line.split() for line in lines[:3])
    assert header[:4] == ["method", "status", "iteration", "overhead"]
    assert solved[:4] == ["swap", "feasible", "10.500", "ms"]
    assert after == []
    text = " ".join("\n".join(lines[3:]).split())
    for words in (
        f"no schedule: keep: {comparison.rows[0].stopped_by} instance:",
        "overhead: over the ideal. gap: over the lower bound",
        "budget: 4194304 bytes (4.00 MiB)",
        "the least possible is 4.00 MiB",
        "ideal: 5.000 ms",
        "in exact arithmetic",
        "tasks as they can be executed (graph executable), copies out and back at once (duplex)",
        "contiguous memory, tensors whole",
        "predicted by simulation, not measured",
    ):
        assert words in text


def test_notes_say_what_link_and_host_are_like(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    slow = Slowdown(offload=1, prefetch=1)
    host = Algorithm(name="there", duration_ns=5, workspace_bytes=0, on="host")
    first = chain.tasks[0]
    told = {
        instance.name: " ".join(compare(instance, ["keep"]).summary().split())
        for instance in (
            msgspec.structs.replace(chain, name="plain"),
            msgspec.structs.replace(chain, name="linked", link=Link(both_bytes_per_second=3 * 10**10)),
            msgspec.structs.replace(
                chain,
                name="slowed",
                tasks=(msgspec.structs.replace(first, slowdown_ppm=slow), *chain.tasks[1:]),
            ),
            msgspec.structs.replace(
                chain,
                name="hosted",
                tasks=(
                    msgspec.structs.replace(first, algorithms=(*first.algorithms, host)),
                    *chain.tasks[1:],
                ),
            ),
        )
    }
    for words, name, is_there in (
        ("(duplex) over a link of 30 GB/s for both,", "linked", True),
        ("copies do not slow compute down", "slowed", False),
        ("(fastest algorithms, no memory limit, nothing for what may run on the host)", "hosted", True),
    ):
        assert {one for one in told if (words in told[one]) == is_there} == {name}


def test_the_table_says_what_is_carried_on_the_device(chain: Instance, toys: Toys, keep: Method) -> None:
    instance = Workload("lenet", 4, "K40", steady=True).instance("64MiB")
    comparison = compare(instance, ["modnn"])
    (row,) = comparison.rows
    (schedule,) = row.schedules
    kept = sum(instance.blocks[state.block].bytes for state in schedule.states if state.device)
    assert comparison.as_dict()["results"][0]["carried_bytes"] == row.carried_bytes == kept > 0
    assert solve(instance, "modnn").as_dict()["carried_bytes"] == kept
    told = comparison.summary()
    assert re.search(rf"^modnn .* {re.escape(format_size(kept))} ", told, re.MULTILINE)
    assert "of 4 blocks, which a round finds where the one before has left them" in " ".join(told.split())
    toys(keep=keep)
    other = compare(chain, ["keep"])
    assert "carried" not in other.summary()
    assert "carried_bytes" not in other.as_dict()["results"][0]


def test_the_table_says_how_many_rounds_there_are(toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    workload = Workload("lenet", 10, "k40")
    text = compare(instances_of(workload, "1GiB", 4)).summary()
    assert "2 of 4 and 1 of 2 images" in text
    assert "a batch of 10, 2 rounds of lenet-b4" in text
    assert "rounds" not in compare(instances_of(workload, "1GiB")).summary().splitlines()[0]


def test_batch_norm_with_a_sub_batch_warns(toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    workload = Workload("resnet18", 4, "k40")
    assert "warning:" in compare(instances_of(workload, "2GiB", 2)).summary()
    assert "warning:" not in compare(instances_of(workload, "2GiB")).summary()


def test_instances_of_an_iteration_share_one_budget() -> None:
    first, last = instances_of(Workload("lenet", 10, "k40"), "90%", 4)
    assert (first.name, first.rounds, first.made_from.sub_batch) == ("lenet-b4", 2, 4)
    assert (last.name, last.rounds, last.made_from.sub_batch) == ("lenet-b2", 1, 2)
    assert first.budget_bytes == last.budget_bytes
    (whole,) = instances_of(Workload("lenet", 10, "k40"), "1GiB")
    assert (whole.name, whole.rounds) == ("lenet-b10", 1)


@pytest.fixture
def exported(tight: Instance, toys: Toys, keep: Method, swap: Method, tmp_path: Path) -> Comparison:
    toys(keep=keep, swap=swap)
    comparison = compare(tight)
    written = export(comparison, tmp_path)
    assert sorted(path.name for path in written) == sorted(path.name for path in tmp_path.iterdir())
    return comparison


@pytest.mark.usefixtures("unrendered")
def test_export_writes_files_that_pass_the_checker(exported: Comparison, tmp_path: Path) -> None:
    assert {path.name for path in tmp_path.iterdir()} == {
        "chain-b4.instance.json",
        "chain-b4.swap.schedule.json",
        "chain-b4.swap.png",
        "chain-b4.png",
    }
    file = tmp_path / "chain-b4.instance.json"
    instance = read_instance(file)
    assert instance == exported.instance
    schedule = read_schedule(tmp_path / "chain-b4.swap.schedule.json", instance)
    assert schedule.instance_sha256 == sha256_of(file)
    assert check(instance, schedule, instance_sha256=sha256_of(file)).valid


def require_the_same_again(exported: Comparison, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    export(compare(exported.instance), tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == []


@pytest.mark.usefixtures("unrendered")
def test_the_same_comparison_writes_the_same_bytes(exported: Comparison, tmp_path: Path) -> None:
    require_the_same_again(exported, tmp_path)


@pytest.mark.slow
def test_the_same_comparison_draws_the_same_bytes(exported: Comparison, tmp_path: Path) -> None:
    require_the_same_again(exported, tmp_path)


@pytest.mark.usefixtures("unrendered")
def test_a_name_cannot_lead_out_of_the_folder(
    chain: Instance, toys: Toys, keep: Method, tmp_path: Path
) -> None:
    toys(keep=keep)
    inside = tmp_path / "inside"
    inside.mkdir()
    export(compare(msgspec.structs.replace(chain, name="../../etc/x y")), inside)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert (inside / "-..-etc-x-y.instance.json").exists()


# --- methods that plan on an instance of their own --------------------------------------------------------


@pytest.fixture(scope="module")
def planners() -> Comparison:
    instances = instances_of(Workload("vgg16", 10, "k40"), "2GiB", 4)
    return compare(instances, ["vdnn-dyn", "layrub-hybrid", "layrub-inter", "memonger-rule"])


def test_a_planner_schedules_its_own_instances(planners: Comparison) -> None:
    names = {row.method: [instance.name for instance in row.instances] for row in planners.rows}
    assert names == {
        "vdnn-dyn": ["vgg16-b4", "vgg16-b2"],
        "layrub-hybrid": ["vgg16-b4-mask", "vgg16-b2-mask"],
        "layrub-inter": ["vgg16-b4-mask", "vgg16-b2-mask"],
        "memonger-rule": ["vgg16-b4-recompute", "vgg16-b2-recompute"],
    }
    for row in planners.rows:
        for instance, schedule in zip(row.instances, row.schedules, strict=True):
            assert instance.budget_bytes == planners.instance.budget_bytes
            assert check(instance, schedule).reasons == ()


def test_a_planner_s_gap_is_to_the_bound_of_its_own_instances(planners: Comparison) -> None:
    for row in planners.rows:
        own = sum(instance.rounds * best_bound(instance).lower_bound_ns for instance in row.instances)
        assert row.bound.lower_bound_ns == own
        assert row.figures is not None
        assert row.figures.optimality_gap == row.bound.gap(row.figures.iteration_ns)
    document = planners.as_dict()
    assert [result["variant"] for result in document["results"]] == ["whole", "mask", "mask", "recompute"]
    assert document["results"][0]["lower_bound_ns"] == document["lower_bound_ns"]
    assert document["results"][3]["lower_bound_ns"] == planners.rows[3].bound.lower_bound_ns


def test_the_table_names_the_instances_that_planners_made(planners: Comparison) -> None:
    text = " ".join(str(planners).split())
    assert "planned: layrub-hybrid, layrub-inter on vgg16-b4-mask, lower bound" in text
    assert "planned: memonger-rule on vgg16-b4-recompute, lower bound" in text
    assert "vdnn-dyn on" not in text


@pytest.mark.usefixtures("unrendered")
def test_files_of_planners_stand_beside_their_instances(planners: Comparison, tmp_path: Path) -> None:
    written = {path.name for path in export(planners, tmp_path)}
    assert "vgg16-b4-mask.instance.json" in written
    assert "vgg16-b4-mask.layrub-hybrid.schedule.json" in written
    assert "vgg16-b2-recompute.memonger-rule.schedule.json" in written


def test_a_planner_s_sub_batch_is_searched_on_its_own_instances() -> None:
    comparison = compare_auto(Workload("vgg16", 6, "k40"), "1600MiB", ["vdnn-all-m", "layrub-hybrid"])
    whole, masked = comparison.rows
    assert whole.variant == "whole"
    assert masked.variant == "mask"
    assert all(instance.name.endswith("-mask") for instance in masked.instances)
    assert whole.bound == comparison.bound
    assert masked.figures is not None
    assert masked.bound.lower_bound_ns <= masked.figures.iteration_ns


# --- answers that contradict each other -------------------------------------------------------------------


def boast(_instance: Instance, _limits: Limits) -> Answer:
    """Has no schedule, and a bound far too high."""
    return Answer(None, "done", 10**15, "a wrong proof")


def deny(_instance: Instance, _limits: Limits) -> Answer:
    """Says that there is none."""
    return Answer(None, "all was tried", infeasible=True)


@pytest.mark.parametrize("order", list(permutations(("boast", "deny", "keep"))))
def test_a_liar_is_an_error_and_nobody_else_whoever_comes_first(
    order: tuple[str, ...], chain: Instance, toys: Toys, keep: Method, caplog: pytest.LogCaptureFixture
) -> None:
    known: dict[str, Method] = {"boast": boast, "deny": deny, "keep": keep}
    toys(**{name: known[name] for name in order})
    comparison = compare(chain)
    rows = {row.method: row for row in comparison.rows}
    assert {name: str(row.status) for name, row in rows.items()} == {
        "boast": "error",
        "deny": "error",
        "keep": "feasible",
    }
    assert "is under the a wrong proof bound 1000000000000000" in rows["boast"].stopped_by
    assert "there was said to be none" in rows["deny"].stopped_by
    assert (comparison.bound.lower_bound_ns, comparison.bound.bound_by) == (5 * MS, "compute")
    assert rows["keep"].figures is not None
    assert rows["keep"].figures.optimality_gap == 1.0
    assert len(comparison.refuted) == len(comparison.as_dict()["refuted"]) == 2
    assert comparison.summary().count("warning:") == 2
    assert "method boast was wrong" in caplog.text


def test_without_a_schedule_a_word_stands(chain: Instance, toys: Toys) -> None:
    toys(boast=boast, deny=deny)
    comparison = compare(chain)
    assert [str(row.status) for row in comparison.rows] == ["unknown", "infeasible"]
    assert (comparison.bound.lower_bound_ns, comparison.bound.certified) == (10**15, False)
    assert comparison.refuted == ()


def test_a_solver_s_bound_that_is_too_high_falls(
    chain: Instance, toys: Toys, keep: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Bound(11 * MS, "flow-milp", False, compute_bound(chain).certificate)
    monkeypatch.setattr("pebbler.benchmark.comparison.compare.refine_bound", lambda *_, **__: wrong)
    toys(keep=keep)
    comparison = compare(chain, time_limit=1.0)
    assert [str(row.status) for row in comparison.rows] == ["feasible"]
    assert (comparison.bound.lower_bound_ns, comparison.bound.certified) == (5 * MS, True)
    assert "its makespan 10000000 is under the flow-milp bound 11000000" in comparison.refuted[0]


def test_rows_come_before_the_bound_is_refined_and_only_an_open_gap_is(
    chain: Instance, toys: Toys, keep: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def refine(instance: Instance, seconds: float, **options: object) -> Bound:
        seen.append(f"bound of {instance.name}, {seconds} s, {options['shortest_ns']}")
        return best_bound(instance)

    def meets(instance: Instance, limits: Limits) -> Answer:
        seen.append("row")
        found = keep(instance, limits)
        assert found.schedule is not None
        proven = found.schedule.makespan_ns if instance.name == "last" else None
        return replace(found, lower_bound_ns=proven, bound_by=None if proven is None else "a proof")

    monkeypatch.setattr("pebbler.benchmark.comparison.compare.refine_bound", refine)
    toys(meets=meets)
    last = msgspec.structs.replace(chain, name="last")
    compare([chain, last], time_limit=2.0)
    assert seen == ["row", "row", "bound of chain-b4, 2.0 s, 10000000"]


def test_ctrl_c_while_the_bound_is_refined_keeps_the_rows_and_the_best_bound(
    chain: Instance, toys: Toys, keep: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refine(*_: object, on_better: Callable[[Bound], None], **__: object) -> Bound:
        on_better(Bound(6 * MS, "flow-milp", False, compute_bound(chain).certificate))
        raise KeyboardInterrupt

    monkeypatch.setattr("pebbler.benchmark.comparison.compare.refine_bound", refine)
    toys(keep=keep)
    comparison = compare(chain, time_limit=2.0)
    assert comparison.interrupted
    assert [row.method for row in comparison.rows] == ["keep"]
    assert (comparison.bound.lower_bound_ns, comparison.bound.certified_ns) == (6 * MS, 5 * MS)


def test_a_lie_about_a_smaller_last_round_is_one(chain: Instance, toys: Toys, keep: Method) -> None:
    def about_the_last(instance: Instance, limits: Limits) -> Answer:
        return boast(instance, limits) if instance.name == "last" else keep(instance, limits)

    last = msgspec.structs.replace(chain, name="last")
    for names in (("keep", "liar"), ("liar", "keep")):
        toys(keep=keep, liar=about_the_last)
        comparison = compare([msgspec.structs.replace(chain, rounds=2), last], names)
        rows = {row.method: row for row in comparison.rows}
        assert (str(rows["liar"].status), rows["liar"].schedules) == ("error", ())
        assert comparison.bound.lower_bound_ns == 15 * MS
        assert rows["keep"].figures is not None
        assert rows["keep"].figures.iteration_ns == 30 * MS


@pytest.mark.parametrize("order", [("liar", "keep"), ("keep", "liar")])
def test_a_lie_neither_prunes_nor_bounds_the_search_of_others(
    order: tuple[str, ...], toys: Toys, keep: Method
) -> None:
    def liar(instance: Instance, limits: Limits) -> Answer:
        return replace(keep(instance, limits), lower_bound_ns=10**15, bound_by="a wrong proof")

    known: dict[str, Method] = {"liar": liar, "keep": keep, "boast": boast}
    toys(**known)
    workload = Workload("lenet", 6, "k40")
    (alone,) = compare_auto(workload, "1GiB", ["keep"]).rows
    for lie in ("liar", "boast"):
        comparison = compare_auto(workload, "1GiB", [lie if name == "liar" else name for name in order])
        rows = {row.method: row for row in comparison.rows}
        assert rows["keep"].figures == alone.figures
        assert rows["keep"].bound == alone.bound
        assert str(rows[lie].status) == "error"


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_a_bound_for_pages_is_held_against_paged_schedules_only(
    memory: MemoryModel, chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(
        keep=keep,
        pages=lambda *_: Answer(None, lower_bound_ns=10**15, bound_by="flow+pages"),
    )
    assert memory != "divisible"
    roomy = msgspec.structs.replace(chain, budget_bytes=64 * MIB)
    kept, pages = compare(roomy, memory=memory).rows
    assert str(kept.status) == "feasible"
    assert str(pages.status) == "error"
    told = "is for paged memory, not for contiguous" if memory == "contiguous" else "is under the flow+pages"
    assert told in pages.stopped_by


@pytest.fixture
def wrong_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compute bound that is certified, and a nanosecond above what `keep` reaches."""

    def certified(instance: Instance, *_: object, **__: object) -> Bound:
        certificate = certify(instance, "compute", "wrong")
        return certified_bound(sealed(msgspec.structs.replace(certificate, lower_bound_ns=10 * MS + 1)))

    for where in (
        "benchmark.comparison.compare",
        "benchmark.comparison.frontier",
        "solver.solve",
        "solver.answers",
    ):
        monkeypatch.setattr(f"pebbler.{where}.best_bound", certified)


@pytest.mark.usefixtures("wrong_proof")
@pytest.mark.parametrize("command", ["compare", "solve", "frontier"])
def test_a_proof_above_a_schedule_ends_with_both_files_and_no_figure(
    command: str,
    chain: Instance,
    toys: Toys,
    keep: Method,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    toys(keep=keep)
    file, folder = tmp_path / "chain.json", tmp_path / "out"
    write_instance(chain, file)
    folder.mkdir()
    options = {
        "compare": ["--out", str(folder)],
        "solve": ["--method", "keep", "-o", str(folder / "s.json")],
        "frontier": ["--method", "keep", "-o", str(folder)],
    }
    assert main([command, str(file), *options[command], "--json"]) == 3
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "a schedule of 10000000 ns by keep contradicts the wrong bound of 10000001 ns" in seen.err
    kept = {what: folder / f"chain-b4.contradiction.{what}.json" for what in ("instance", "schedule")}
    instance = read_instance(kept["instance"])
    schedule = read_schedule(kept["schedule"], instance)
    assert check(instance, schedule, instance_sha256=sha256_of(kept["instance"])).valid
    certificate = folder / "chain-b4.contradiction.certificate.json"
    assert read_certificate(certificate).lower_bound_ns == 10 * MS + 1
    assert f"both are kept as {folder / 'chain-b4.contradiction.*.json'}" in seen.err
    assert not any(path.suffix in (".png", ".csv") for path in folder.iterdir())
