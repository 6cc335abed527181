"""Methods as guests: whatever one does, the others' answers and the output are as without it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import force_setattr, replace

import pebbler
from pebbler.benchmark.comparison.compare import compare, compare_auto
from pebbler.benchmark.comparison.plan import planned
from pebbler.cli.main import main
from pebbler.heuristics.methods import Answer, Limits, Method, MethodError, MethodInfo, temporary_methods
from pebbler.instances.files import encode, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver import guests
from pebbler.solver.answers import Answers
from pebbler.solver.guests import Host
from pebbler.solver.result import Status
from pebbler.solver.solve import attempt, solve
from pebbler.validate.schedule import write_schedule

from .processes import alive, eventually

Toys = Callable[..., None]

PACKAGE = """
import os, sys, time
import msgspec
import pebbler

print("a guest says hello")


def kept(instance, limits):
    builder = pebbler.ProgramBuilder(instance, memory=limits.memory)
    try:
        for k in range(len(instance.tasks)):
            builder.run(k, algorithm=0)
            builder.release_dead(k)
    except pebbler.OutOfMemoryError as error:
        raise pebbler.Refusal(str(error)) from None
    return pebbler.Answer(builder.finish("modnn"))


def guest(name, **keys):
    return pebbler.register(name, name, "a test", **keys)


@guest("keeps")
def keeps(instance, limits):
    return kept(instance, limits)


@guest("leaves")
def leaves(instance, limits):
    sys.exit(0)


@guest("dies")
def dies(instance, limits):
    os._exit(0)


@guest("aborts")
def aborts(instance, limits):
    os.abort()


@guest("prints")
def prints(instance, limits):
    print("{ not JSON")
    os.write(1, b"nor this\\n")
    return kept(instance, limits)


@guest("raises")
def raises(instance, limits):
    raise ValueError("of no use")


@guest("says-no")
def says_no(instance, limits):
    return pebbler.Answer(None, infeasible=True)


@guest("boasts")
def boasts(instance, limits):
    return pebbler.Answer(None, lower_bound_ns=10**15)


@guest("spoils")
def spoils(instance, limits):
    instance.meta.clear()
    msgspec.structs.force_setattr(instance, "blocks", ())
    raise pebbler.Refusal("all is spoilt")


@guest("seven")
def seven(instance, limits):
    return 7


@guest("negative")
def negative(instance, limits):
    schedule = kept(instance, limits).schedule
    first, *others = schedule.residences
    force = msgspec.structs.replace(first, offset=-first.bytes)
    return pebbler.Answer(msgspec.structs.replace(schedule, residences=(force, *others)))


@guest("spends", transform=lambda i: msgspec.structs.replace(i, budget_bytes=2 * i.budget_bytes))
def spends(instance, limits):
    return kept(instance, limits)


@guest("plans-no-more", transform=lambda i: os._exit(1))
def plans_no_more(instance, limits):
    return kept(instance, limits)


@guest("renames", transform=lambda i: msgspec.structs.replace(i, name="mine"))
def renames(instance, limits):
    return kept(instance, limits)


@guest("plans-small-ones", transform=lambda i: i if i.made_from.sub_batch < 6 else os._exit(1))
def plans_small_ones(instance, limits):
    return kept(instance, limits)


@guest("in-twos", sub_batch=lambda workload, budget: 2)
def in_twos(instance, limits):
    return kept(instance, limits)


@guest("in-halves", sub_batch=lambda workload, budget: 0.5)
def in_halves(instance, limits):
    return kept(instance, limits)


@guest("hangs", shown="named")
def hangs(instance, limits):
    with open(os.environ["GUEST_PID"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""
ANSWERS = {
    "keeps": ("feasible", "done"),
    "leaves": ("error", "called sys.exit(0)"),
    "dies": ("error", "it ended with exit status 0"),
    "aborts": ("error", "it ended with signal 6"),
    "prints": ("feasible", "done"),
    "raises": ("error", "ValueError: of no use"),
    "says-no": ("error", "there was said to be none"),
    "boasts": ("error", "is under the boasts bound 1000000000000000"),
    "spoils": ("unknown", "all is spoilt"),
    "seven": ("error", "returned an object of type int, not an Answer"),
    "negative": ("error", "expected `int` >= 0"),
    "spends": ("error", "changes budget_bytes from 8388608 to 16777216"),
    "plans-no-more": ("error", "it ended with exit status 1"),
    "renames": ("feasible", "done"),
}
FEW = ("dies", "prints", "renames")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package of guests beside our own methods."""
    place = tmp_path / "site"
    info = place / "guest_package-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "guest_package.py").write_text(PACKAGE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pebbler.methods]\nmine = guest_package\n")
    monkeypatch.syspath_prepend(place)
    importlib.invalidate_caches()
    with temporary_methods():
        yield
    sys.modules.pop("guest_package", None)


@pytest.mark.usefixtures("installed", "unrendered")
@pytest.mark.parametrize("some", [FEW, pytest.param(tuple(ANSWERS), marks=pytest.mark.slow)], ids=len)
def test_guests_leave_the_other_rows_and_the_output_right(
    some: tuple[str, ...], chain: Instance, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chain.instance.json"
    write_instance(chain, file)
    before = file.read_bytes()
    names = ["network-wide", *some, "modnn"]
    status = main(
        ["compare", str(file), "--methods", ",".join(names), "--out", str(tmp_path / "out"), "--json"]
    )
    seen = capfd.readouterr()
    document = json.loads(seen.out)
    rows = {row["method"]: row for row in document["results"]}
    assert status == 0
    assert list(rows) == names
    for name in some:
        how, why = ANSWERS[name]
        assert rows[name]["status"] == how, rows[name]
        assert why in rows[name]["stopped_by"]
        assert (rows[name]["makespan_ns"] is None) == (how != "feasible")
    assert "{ not JSON" in seen.err
    assert "nor this" in seen.err
    assert file.read_bytes() == before
    command = ["compare", str(file), "--methods", "network-wide,modnn", "--out", str(tmp_path / "alone")]
    assert main([*command, "--json"]) == 0
    alone = json.loads(capfd.readouterr().out)
    assert document["lower_bound_ns"] == alone["lower_bound_ns"]
    for row in alone["results"]:
        assert {**rows[row["method"]], "solve_seconds": 0} == {**row, "solve_seconds": 0}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert "chain-b4.prints.schedule.json" in written
    assert "mine.renames.schedule.json" in written
    assert not any("boasts" in name or "negative" in name for name in written)
    schedule = json.loads((tmp_path / "out" / "chain-b4.prints.schedule.json").read_text())
    assert schedule["method"] == "prints"


@pytest.mark.usefixtures("installed", "unrendered")
@pytest.mark.parametrize(
    ("method", "status"),
    [
        pytest.param("dies", 3, marks=pytest.mark.landing),
        *(
            pytest.param(name, status, marks=pytest.mark.slow)
            for name, status in {"spoils": 1, "keeps": 0, "raises": 3, "negative": 3}.items()
        ),
    ],
)
def test_a_defect_has_another_status_than_no_schedule(
    method: str, status: int, chain: Instance, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "chain.instance.json", tmp_path / "s.json"
    write_instance(chain, file)
    assert main(["solve", str(file), "--method", method, "-o", str(output), "--json"]) == status
    found = json.loads(capfd.readouterr().out)
    assert found["status"] == {0: "feasible", 1: "unknown", 3: "error"}[status]
    assert output.exists() == (status == 0)
    assert main(["compare", str(file), "--methods", method, "--out", str(tmp_path / "o")]) == status
    command = ["frontier", str(file), "--method", method, "--points", "2", "-o", str(tmp_path / "f")]
    assert main(command) == status


@pytest.mark.usefixtures("installed")
def test_a_guest_that_ignores_its_time_limit_is_killed(
    chain: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other row is of a method here, which nobody kills, however slowly processes start."""
    monkeypatch.setattr(guests, "GRACE", 1.0)
    monkeypatch.setenv("GUEST_PID", str(tmp_path / "pid"))
    hung, other = compare(chain, ["hangs", "network-wide"], time_limit=1.0, refine=False).rows
    assert (hung.status, hung.figures) == ("error", None)
    assert "it was killed after 2 s, 1 s over its time limit" in hung.stopped_by
    assert other.figures is not None
    pid = int((tmp_path / "pid").read_text())
    assert eventually(lambda: not alive(pid))


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_guests_choose_sub_batches() -> None:
    workload = Workload("lenet", 6, "k40")
    names = ["in-twos", "in-halves", "renames", "spends", "plans-small-ones", "dies", "modnn"]
    twos, halves, renamed, spends, small, dies, modnn = compare_auto(workload, "1GiB", names).rows
    assert twos.figures is not None
    assert [instance.name for instance in twos.instances] == ["lenet-b2"]
    assert "chose a sub-batch of 0.5, which is not within 1 and the batch of 6" in halves.stopped_by
    assert (spends.status, small.status, dies.status) == ("error", "error", "error")
    assert modnn.figures is not None
    assert renamed.figures is not None
    assert renamed.planned


# --- what a method may do to what it is given -------------------------------------------------------------


def test_a_method_cannot_change_what_it_is_given(chain: Instance, toys: Toys, keep: Method) -> None:
    def spoil(instance: Instance, limits: Limits) -> Answer:
        answer = keep(instance, limits)
        instance.meta["mine"] = []
        instance.meta.clear()
        force_setattr(instance.blocks[0], "bytes", 1)
        if limits.warm_start is not None:
            force_setattr(limits.warm_start, "makespan_ns", 1)
        return answer

    toys(spoil=spoil, keep=keep)
    before = encode(chain)
    start = solve(chain, "keep").schedule
    assert start is not None
    kept = encode(start)
    assert solve(chain, "spoil", warm_start=start).makespan_ns == 10_000_000
    assert (encode(chain), encode(start)) == (before, kept)


def test_prints_of_a_method_go_to_standard_error(
    chain: Instance, toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(instance: Instance, limits: Limits) -> Answer:
        print("look at me")
        return keep(instance, limits)

    toys(talk=talk)
    solve(chain, "talk")
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "look at me" in seen.err


def test_leaving_is_a_defect(chain: Instance, toys: Toys) -> None:
    def leave(_instance: Instance, _limits: Limits) -> Answer:
        sys.exit("done here")

    toys(leave=leave)
    with pytest.raises(MethodError, match=r"method leave called sys.exit\('done here'\)"):
        solve(chain, "leave")


WRONG = {
    "lower_bound_ns": [-1, 1.5, "5", True, 10**30, float("nan")],
    "bound_by": [1, b"x"],
    "stopped_by": [None, 3],
    "infeasible": [1, "no"],
    "schedule": [7, "x"],
    "certificate": [{}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in WRONG.items() for value in some])
def test_an_answer_of_wrong_kinds_is_a_defect(
    name: str, value: Any, chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(wrong=lambda instance, limits: dataclasses.replace(keep(instance, limits), **{name: value}))
    result = attempt(Answers(chain, "contiguous"), "wrong")
    assert (result.status, result.schedule) == (Status.ERROR, None)
    assert result.stopped_by.startswith("method wrong")
    assert "\n" not in result.stopped_by


def test_a_schedule_is_read_as_a_file_is(chain: Instance, toys: Toys, keep: Method) -> None:
    def altered(**changes: object) -> Method:
        def method(instance: Instance, limits: Limits) -> Answer:
            schedule = keep(instance, limits).schedule
            assert schedule is not None
            first, *others = schedule.residences
            return Answer(replace(schedule, residences=(replace(first, **changes), *others)))

        return method

    toys(negative=altered(offset=-(2**20)), text=altered(offset="0"), none=altered(acquired_by=99))
    for name in ("negative", "text"):
        with pytest.raises(
            MethodError,
            match=f"method {name} made a document that breaks a rule of its format: residence, 'offset'",
        ):
            solve(chain, name)
    with pytest.raises(MethodError, match=r"method none made a document that breaks a rule .* operation 99"):
        solve(chain, "none")


def test_a_task_that_does_not_exist_is_a_defect_and_no_wrong_usage(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    def method(instance: Instance, limits: Limits) -> Answer:
        schedule = keep(instance, limits).schedule
        assert schedule is not None
        *others, last = schedule.operations
        return Answer(replace(schedule, operations=(*others, replace(last, task=99))))

    toys(far=method)
    with pytest.raises(MethodError, match=r"method far.*task 99 is out of range"):
        solve(chain, "far")


def test_a_warm_start_refutes_whoever_says_more(
    chain: Instance, tmp_path: Path, toys: Toys, keep: Method
) -> None:
    toys(
        keep=keep,
        boast=lambda *_: Answer(None, lower_bound_ns=10_000_001, bound_by="a proof"),
        none=lambda *_: Answer(None, infeasible=True),
    )
    start = solve(chain, "keep").schedule
    assert start is not None
    for name in ("boast", "none"):
        assert solve(chain, name).schedule is None
        with pytest.raises(MethodError, match=f"method {name} on chain-b4: a schedule by keep passed"):
            solve(chain, name, warm_start=start)
    file = tmp_path / "i.json"
    write_instance(chain, file)
    write_schedule(start, tmp_path / "s.json")
    command = ["solve", str(file), "--method", "boast", "-o", str(tmp_path / "o.json")]
    assert main(command) == 1
    assert main([*command, "--warm-start", str(tmp_path / "s.json")]) == 3


def test_what_cannot_tell_what_it_is_is_told_by_its_kind(chain: Instance, toys: Toys) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("nothing to say")

    def silent(_instance: Instance, _limits: Limits) -> Answer:
        raise SilentError

    def loud(_instance: Instance, _limits: Limits) -> Answer:
        raise RuntimeError("one\ntwo")

    toys(silent=silent, loud=loud)
    assert [row.stopped_by for row in compare(chain).rows] == ["SilentError", "RuntimeError: one two"]


# --- transforms -------------------------------------------------------------------------------------------


def info(name: str, method: Method, transform: Callable[[Instance], Any]) -> MethodInfo:
    return MethodInfo(name, name, "tests", method, transform=transform)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"budget_bytes": 2**30}, "changes budget_bytes from 8388608 to 1073741824"),
        ({"resident_bytes": 0}, "changes resident_bytes"),
        ({"rounds": 2}, "changes rounds"),
        ({"engines": "single"}, "changes engines"),
        ({"alignment_bytes": 1}, "changes alignment_bytes"),
        ({"meta": {"mine": 1}}, "another instance that has the same name, chain-b4"),
        ({"budget_bytes": "much"}, "breaks a rule of its format: instance .*budget_bytes"),
    ],
)
def test_a_transform_keeps_the_iteration(
    change: dict[str, Any], why: str, chain: Instance, keep: Method
) -> None:
    with pytest.raises(MethodError, match=why):
        planned(info("bends", keep, lambda i: replace(i, **change)), [chain])


def test_a_transform_keeps_the_work(chain: Instance, keep: Method) -> None:
    first, *others = chain.tasks
    quick = replace(first, algorithms=(replace(first.algorithms[0], duration_ns=1),))
    for tasks in ((quick, *others), chain.tasks[:-1], (replace(first, name="x"), *others)):
        with pytest.raises(MethodError, match="changes its work"):
            planned(info("bends", keep, lambda i, tasks=tasks: replace(i, name="x", tasks=tasks)), [chain])  # type: ignore[misc]
    (changed,) = planned(info("fine", keep, with_recomputation), [chain])
    assert changed == with_recomputation(chain)


def test_transforms_of_our_own_keep_the_iteration() -> None:
    instance = Workload("vgg16", 64, "k40").instance("6GiB")
    ours = [info for info in pebbler.list_methods() if info.transform is not None]
    assert len(ours) > 5
    for method in ours:
        with Host(method) as host:
            assert host.transform(instance).name != instance.name


def test_every_row_on_another_instance_is_listed_and_a_bad_transform_costs_its_row(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(keep=keep)
    entries = {info.name: info for info in pebbler.list_methods()}
    for name, transform in (
        ("other", lambda i: replace(i, name="other-name")),
        ("again", lambda i: replace(i, name="other-name", meta={"mine": 1})),
        ("bends", lambda i: replace(i, rounds=9)),
        ("leaves", lambda _: sys.exit(1)),
        ("breaks", lambda _: None),
    ):
        entries[name] = info(name, keep, transform)
    with temporary_methods(entries.values()):
        comparison = compare(chain)
    rows = {row.method: row for row in comparison.rows}
    assert {name: row.planned for name, row in rows.items()} == {
        **dict.fromkeys(("keep", "again", "bends", "leaves", "breaks"), False),
        "other": True,
    }
    assert {name for name, row in rows.items() if row.status == "error"} == {
        *("again", "bends", "leaves", "breaks")
    }
    assert "two different instances have the name 'other-name'" in rows["again"].stopped_by
    assert "planned: other on other-name, lower bound 5.000 ms" in " ".join(comparison.summary().split())
