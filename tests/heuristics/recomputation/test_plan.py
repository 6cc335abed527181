from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.layers import layer_steps
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.heuristics.program.sketch import Sketch
from pebbler.heuristics.recomputation.plan import Policy, Recomputation, restorable, turn, used_later
from pebbler.heuristics.recomputation.rules import planned
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.networks.kinds import described_kind
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.units import LARGEST
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

RULES = ("memonger-rule", "superneurons-rule", "knapsack-rule")


def chain(depth: int, pool: int = 1000) -> Instance:
    """F1 makes Y1, Fi reads Y(i-1) and makes Yi; Bi reads Yi and the gradient behind it; no copies."""
    blocks = [f"Y{i}" for i in range(1, depth + 1)] + [f"G{i}" for i in range(1, depth + 1)]
    tasks = [((i - 2,) if i > 1 else (), i - 1) for i in range(1, depth + 1)]
    tasks += [((i - 1, depth + i) if i < depth else (i - 1,), depth + i - 1) for i in range(depth, 0, -1)]
    layers = [
        {"name": str(i), "kind": "conv", "forward": [i - 1], "backward": [2 * depth - i]}
        for i in range(1, depth + 1)
    ]
    return Instance(
        name="chain",
        engines="duplex",
        budget_bytes=pool,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(Block(name=name, bytes=1, offload_ns=None, prefetch_ns=None) for name in blocks),
        tasks=tuple(
            Task(
                name=f"{'F' if k < depth else 'B'}{output % depth + 1}",
                inputs=inputs,
                outputs=(output,),
                algorithms=(Algorithm(name="only", duration_ns=1, workspace_bytes=0),),
                recomputable=k < depth,
            )
            for k, (inputs, output) in enumerate(tasks)
        ),
        meta={"layers": layers},
    )


def with_update(instance: Instance, at: int) -> Instance:
    """The same, where F1 reads weights that a task at that position updates."""
    weights = len(instance.blocks)
    first, *rest = instance.tasks
    update = Task(name="U", inputs=(), outputs=(), updates=(weights,), algorithms=first.algorithms)
    return msgspec.structs.replace(
        instance,
        blocks=(
            *instance.blocks,
            Block(name="W", bytes=1, offload_ns=None, prefetch_ns=None, initially="device"),
        ),
        tasks=(msgspec.structs.replace(first, inputs=(weights,)), *rest[: at - 1], update, *rest[at - 1 :]),
        layers=msgspec.UNSET,
    )


def issued(instance: Instance, policy: Policy) -> Schedule:
    builder = ProgramBuilder(instance)
    Recomputation(builder, policy, LARGEST).all()
    schedule = builder.finish("recomputation")
    assert check(instance, schedule).reasons == ()
    return schedule


def runs(instance: Instance, schedule: Schedule) -> list[str]:
    return [instance.tasks[o.task].name for o in schedule.operations if o.task is not None]


def test_nothing_is_dropped_by_default() -> None:
    instance = chain(4)
    assert runs(instance, issued(instance, Policy())) == ["F1", "F2", "F3", "F4", "B4", "B3", "B2", "B1"]


def test_what_is_dropped_is_made_again_from_what_is_there() -> None:
    instance = chain(4)
    found = runs(instance, issued(instance, Policy(frozenset({1, 2}))))
    assert found == ["F1", "F2", "F3", "F4", "B4", "F2", "F3", "B3", "B2", "B1"]


def test_what_reads_weights_is_made_again_before_they_are_updated() -> None:
    at_the_end, too_early = with_update(chain(4), 8), with_update(chain(4), 6)
    assert restorable(at_the_end) >= {0, 1}
    assert 0 not in restorable(too_early)
    found = runs(at_the_end, issued(at_the_end, Policy(frozenset({0}))))
    assert found == ["F1", "F2", "F3", "F4", "B4", "B3", "B2", "F1", "B1", "U"]


def test_what_was_made_again_stays_until_its_last_use() -> None:
    counts = Counter(runs(chain(9), issued(chain(9), Policy(frozenset(range(1, 8))))))
    assert {counts[f"F{i}"] for i in range(2, 9)} == {2}


def test_the_backward_pass_starts_behind_the_layers_or_where_most_is_live() -> None:
    instance = chain(5)
    assert turn(instance) == 5
    assert turn(msgspec.structs.replace(instance, layers=msgspec.UNSET)) == 6


def test_only_what_nobody_changes_can_be_made_again() -> None:
    instance = chain(4)
    assert used_later(instance, restorable(instance)) == {0, 1, 2, 3}
    tasks = list(instance.tasks)
    tasks[2] = msgspec.structs.replace(tasks[2], inputs=(), updates=(1,))  # F3 overwrites Y2
    changed = msgspec.structs.replace(instance, tasks=tuple(tasks))
    assert restorable(changed) == {0, 3}
    tasks[3] = msgspec.structs.replace(tasks[3], recomputable=False)
    assert restorable(msgspec.structs.replace(instance, tasks=tuple(tasks))) == {0}


def test_an_input_of_what_is_made_again_stays_as_long_as_it_is_needed() -> None:
    """Y1 is used by nobody backward and cannot be made again, but Y2 is made of it when B2 asks."""
    instance = chain(3)
    tasks = list(instance.tasks)
    tasks[0] = msgspec.structs.replace(tasks[0], recomputable=False)
    tasks[5] = msgspec.structs.replace(tasks[5], inputs=(4,))
    changed = msgspec.structs.replace(instance, tasks=tuple(tasks))
    found = runs(changed, issued(changed, Policy(frozenset({1}))))
    assert found == ["F1", "F2", "F3", "B3", "F2", "B2", "B1"]


def test_any_choice_of_what_is_dropped_gives_a_valid_program() -> None:
    rng = Random(3)
    for name in ("googlenet", "resnet34", "caffenet"):
        instance = with_recomputation(Workload(name, 2, "K40").instance("12GiB"))
        choices = sorted(used_later(instance, restorable(instance)))
        for _ in range(5):
            some = rng.sample(choices, rng.randint(0, len(choices)))
            hosted = frozenset(d for d in some if rng.random() < 0.3)
            policy = Policy(frozenset(some) - hosted, hosted)
            issued(instance, policy)


def test_a_sketch_needs_as_many_bytes_as_the_program() -> None:
    instance = with_recomputation(Workload("resnet34", 2, "K40").instance("12GiB"))
    policy = Policy(frozenset(used_later(instance, restorable(instance))))
    sketch = Sketch(instance)
    Recomputation(sketch, policy, 0).all()
    builder = ProgramBuilder(instance, memory="divisible")
    Recomputation(builder, policy, 0).all()
    assert sketch.lifetimes() == builder.lifetimes()
    assert sketch.placements() == builder.placements()
    with pytest.raises(Exception, match="a sketch has no schedule"):
        sketch.finish("sketch")


# --- the rules ------------------------------------------------------------------------------------------


def solve(instance: Instance, method: str) -> Schedule:
    schedule = find_method(method).call(instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def test_memonger_takes_the_square_root_of_the_memory_for_one_more_forward_pass() -> None:
    peaks = {depth: solve(chain(depth), "memonger-rule").peak_bytes for depth in (16, 64, 144)}
    assert all(peak <= 2 * depth**0.5 + 4 for depth, peak in peaks.items())
    counts = Counter(runs(chain(64), solve(chain(64), "memonger-rule")))
    assert max(counts.values()) == 2
    assert 50 <= sum(counts[f"F{i}"] == 2 for i in range(1, 65)) < 64


def test_the_knapsack_makes_nothing_again_where_everything_fits_and_less_the_more_fits() -> None:
    computed = [
        len(runs(x, solve(x, "knapsack-rule"))) for x in (chain(36, pool) for pool in (14, 20, 30, 100))
    ]
    assert computed[-1] == 72
    assert computed == sorted(computed, reverse=True)
    assert computed[0] > computed[1] > computed[2] > computed[3]


def test_the_knapsack_keeps_what_takes_longest_to_make() -> None:
    instance = chain(16, 13)
    slow = {5, 6, 9, 10}
    tasks = [
        msgspec.structs.replace(
            task, algorithms=(Algorithm(name="only", duration_ns=100 if k in slow else 1, workspace_bytes=0),)
        )
        for k, task in enumerate(instance.tasks)
    ]
    changed = msgspec.structs.replace(instance, tasks=tuple(tasks))
    counts = Counter(runs(changed, solve(changed, "knapsack-rule")))
    assert all(counts[f"F{k + 1}"] == 1 for k in slow)
    assert max(counts.values()) == 2


def test_superneurons_does_only_what_the_budget_asks_for() -> None:
    roomy = planned(Workload("resnet50", 8, "K40").instance("12GiB"))
    kind = {k: described_kind(unit.kind) for unit in layer_steps(roomy) for k in unit.tasks}
    assert {o.kind for o in solve(roomy, "superneurons-rule").operations} == {"run"}
    seen = []
    for mib in (400, 145):
        instance = with_budget(roomy, roomy.resident_bytes + mib * 2**20)
        schedule = solve(instance, "superneurons-rule")
        counts = Counter(o.task for o in schedule.operations if o.task is not None)
        again = [k for k, count in counts.items() if count > 1]
        assert not any(kind[k].expensive or kind[k].name == "add" for k in again)
        seen.append((any(o.kind == "offload" for o in schedule.operations), bool(again)))
    assert seen == [(True, False), (True, True)]


@pytest.mark.parametrize("method", RULES)
def test_rules_refuse_with_a_reason(method: str) -> None:
    with pytest.raises(Refusal, match=r"no place for|too much"):
        find_method(method).call(chain(30, 5), Limits())


@pytest.mark.parametrize("method", ["memonger-rule", "knapsack-rule"])
def test_what_may_not_run_twice_is_not_recomputed(method: str) -> None:
    instance = Workload("lenet", 4, "K40").instance("1GiB")
    with pytest.raises(Refusal, match="nothing can be computed again"):
        find_method(method).call(instance, Limits())
    again = planned(instance)
    assert again.name == "lenet-b4-recompute"
    assert planned(again) is again
    solve(again, method)
