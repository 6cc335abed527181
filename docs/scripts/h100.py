"""Hold the cost model's H100 against what an H100 measured, and draw pictures of that day.

``python docs/scripts/h100.py`` reads ``docs/data/gpu``, writes a table of tasks to ``docs/costs.md``, one
of copies and a sentence on paged memory to ``docs/gpu.md``, and draws ``docs/images/h100-*.png``. Nothing of
the model was fitted to these times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from matplotlib import style
from matplotlib.figure import Figure

from pebbler.benchmark.gpu.study import METHODS, STEP_METHODS
from pebbler.benchmark.output.drawing import footnote, png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.output.series import COLOURS, GREY
from pebbler.benchmark.pictures.schedule import timelines
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Instance
from pebbler.instances.origin import MappingTimes
from pebbler.instances.profile import read_profile
from pebbler.instances.transforms import with_shared_link
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.execution.mapping import mappings_ns, simulate_issued
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.schedule import read_schedule
from pebbler.validate.simulate import nominal_ns, simulate

DATA = Path("docs/data/gpu")
PAGE = Path("docs/costs.md")
MARKS = "<!-- begin h100 -->\n", "<!-- end of h100 -->"
COPIES = Path("docs/gpu.md"), "<!-- begin copies -->\n", "<!-- end of copies -->"
PAGED = Path("docs/gpu.md"), "<!-- begin paged -->\n", "<!-- end of paged -->"
LONG_NS = 500_000
"""Least time of a copy that is looked at."""
NETWORKS = (("alexnet", 128), ("vgg16", 128), ("resnet50", 128))
IMAGES = Path("docs/images")
WHERE = "One NVIDIA H100 80 GB, PCIe 5.0 x16, CUDA 13.0, 2026-11-26."
STEPS_WHERE = "H100 80 GB, PCIe 5.0 x16, CUDA 13.0, torch 2.11, 2026-11-27."
MODELS = {
    "gpt2-8": "GPT-2 small, 8 texts",
    "llama-4": "4 blocks of Llama, 4 texts",
    "vit_b-64": "ViT-B/16, 64 images",
    "resnet50-64": "ResNet-50, 64 images",
    "unet-16": "U-Net, 16 images",
    "lstm-64": "LSTM, 64 texts",
}
PLANS = {"flow": "plan of flow", "flow-recompute": "plan of flow-recompute", "modnn": "plan of modnn"}
WAYS = {
    "checkpoint": "torch, checkpoints",
    "save_on_cpu": "torch, save_on_cpu",
    "activation_budget": "torch, compiled with a budget",
    "plain": "torch, as it is",
}
HEADER = ("network", "tasks", "number", "measured", "model", "measured / model", "mean of abs(ln)")


def fastest(instance: Instance) -> dict[str, int]:
    """Return the time of each task with its fastest algorithm, in nanoseconds."""
    return {task.name: min(one.duration_ns for one in task.algorithms) for task in instance.tasks}


def rows() -> Iterator[list[str]]:
    """Return a row for each pass of the convolutions of a network, for its other tasks, and for all."""
    for network, batch in NETWORKS:
        profile = read_profile(DATA / f"{network}-{batch}-profile.json")
        measured = fastest(Workload(network, batch, profile.machine.device, profile=profile).round(batch, 1))
        modelled = Workload(network, batch, "H100").round(batch, 1)
        model = fastest(modelled)
        groups: dict[str, list[str]] = defaultdict(list)
        for task in modelled.tasks:
            kind = (
                f"convolutions, {task.name.partition('(')[0]}" if len(task.algorithms) > 1 else "all others"
            )
            groups[kind].append(task.name)
        groups["all"] = list(model)
        for kind, names in groups.items():
            ours, theirs = (sum(times[name] for name in names) for times in (measured, model))
            apart = sum(abs(log(measured[name] / model[name])) for name in names) / len(names)
            yield [
                f"{network}, batch {batch}",
                kind,
                str(len(names)),
                f"{ours / 1e6:.2f} ms",
                f"{theirs / 1e6:.2f} ms",
                f"{ours / theirs:.2f}",
                f"{apart:.2f}",
            ]


def read(name: str) -> dict[str, Any]:
    """Return a result of the day."""
    found: dict[str, Any] = msgspec.json.decode((DATA / name).read_bytes())
    return found


def copies() -> Iterator[list[str]]:
    """Return a row for each run: its time, and how much longer copies took than in the profile (median).

    Differences are from the prediction: with a link that both directions share, and as measured.
    """
    for file in sorted(DATA.glob("*-run.json")):
        name, result = file.name.removesuffix("-run.json"), read(file.name)
        operations, predicted = result["operations"], result["scheduled_ns"]
        long = [
            (one, one["name"].split()[0])
            for one in operations
            if one["name"].startswith(("offload", "prefetch")) and one["predicted_ns"] > LONG_NS
        ]
        ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        for one, direction in long:
            took = one["end_ns"] - one["start_ns"]
            against = sum(overlap(one, other) for other, its in long if its != direction)
            beside = "both" if against > took / 10 else "alone"
            ratios[direction, beside].append(took / one["predicted_ns"])
        yield [
            name,
            f"{shared_ns(name) / predicted - 1:+.1%}",
            f"{result['measured_ns'] / predicted - 1:+.1%}",
            *(
                f"{median(found):.2f} ({len(found)})" if found else ""
                for direction in ("offload", "prefetch")
                for found in (ratios[direction, beside] for beside in ("alone", "both"))
            ),
        ]


def shared_ns(run: str) -> int:
    """Return the time of a run's iteration with a link that both directions share, as it was measured."""
    problem, method = next(
        (run.removesuffix(f"-{method}"), method)
        for method in (*METHODS, *STEP_METHODS)
        if run.endswith(f"-{method}")
    )
    profile = read_profile(DATA / f"{problem.rpartition('-')[0]}-profile.json")
    instance = read_instance(DATA / f"{problem}-instance.json")
    schedule = read_schedule(DATA / f"{problem}-{method}-schedule.json", instance)
    assert profile.both_bandwidth is not None
    return max(simulate(with_shared_link(instance, profile.both_bandwidth), schedule)[1])


def paged() -> str:
    """Return what mappings cost in AlexNet's iteration, as predicted and if all were made in every one."""
    instance = read_instance(DATA / "alexnet-128-1.25xMmin-instance.json")
    schedule = solve(instance, "modnn", memory="paged").schedule
    cost = instance.made_from.mapping
    assert schedule is not None
    assert cost is not None
    settled = plan(instance, schedule, rebuild(instance))
    durations = [nominal_ns(instance, operation) for operation in schedule.operations]

    def predicted(mappings: Sequence[int]) -> str:
        return format_time(max(simulate_issued(settled, durations, mappings)[1]))

    made = [[len(one.pages) for one in step.maps] for step in settled.steps]
    calls, pages = (
        sum(mappings_ns(settled, MappingTimes(call_ns=call, page_ns=1 - call))) for call in (1, 0)
    )
    always = [sum(cost.call_ns + cost.page_ns * count for count in counts) for counts in made]
    return (
        f"AlexNet by `modnn` has {sum(map(len, made))} mappings of {sum(map(sum, made))} pages, and {calls} "
        f"of {pages} pages after the first iteration: predicted {predicted(mappings_ns(settled, cost))}, or "
        f"{predicted(always)} if all were made in every iteration.\n"
    )


def overlap(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Return for how many nanoseconds two operations ran at once."""
    return int(max(0, min(one["end_ns"], other["end_ns"]) - max(one["start_ns"], other["start_ns"])))


def iteration() -> bytes:
    """Draw VGG-16's iteration by ``flow`` as it was predicted, and as it was measured."""
    name = "vgg16-128-1.25xMmin"
    instance = read_instance(DATA / f"{name}-instance.json")
    schedule = read_schedule(DATA / f"{name}-flow-schedule.json", instance)
    times = {one["id"]: one for one in read(f"{name}-flow-run.json")["operations"]}
    ran = tuple(
        msgspec.structs.replace(
            one,
            start_ns=times[one.id]["start_ns"],
            end_ns=max(times[one.id]["end_ns"], times[one.id]["start_ns"]),
        )
        for one in schedule.operations
    )
    measured = msgspec.structs.replace(schedule, operations=ran, makespan_ns=max(one.end_ns for one in ran))
    return timelines(
        instance,
        {"predicted": schedule, "measured": measured},
        "VGG-16, 128 images, in 1.25 times the least memory, by flow: one iteration",
        f"Times of operations from CUDA events; memory by residences. {WHERE}",
    )


def steps() -> bytes:
    """Draw the time of whole steps by plans and by torch's own means, as multiples of eager torch's."""
    with style.context(["default"]):
        figure = Figure(figsize=(11, 9), layout="constrained")
        for axes, (model, title) in zip(
            figure.subplots(2, 3, sharex=True, sharey=True).flat, MODELS.items(), strict=True
        ):
            bars = list(bars_of(model))
            for place, (name, ratio, told) in enumerate(bars):
                colour = GREY if place == 0 else COLOURS[0] if "plan" in name else COLOURS[1]
                axes.barh(place, ratio, color=colour)
                axes.text(ratio, place, f" {told}", va="center", fontsize=8)
            axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
            axes.set_title(title, fontsize=11)
            axes.set_xlim(0, 6.5)
            axes.spines[["top", "right"]].set_visible(False)
        axes.invert_yaxis()
        figure.supxlabel("a whole step, in times of eager torch's with all memory", fontsize=10)
        footnote(
            figure,
            "Shares are of the peak of eager torch; torch's allocator was limited to them, and plans had "
            "them for pool and scratch, without copies to undo a step. GiB are what torch's allocator gave "
            f"out, or a plan's budget. {STEPS_WHERE}",
        )
        return png(figure)


def bars_of(model: str) -> Iterator[tuple[str, float, str]]:
    """Return the bars of a model: a name, multiples of eager torch's time, and what stands beside it."""
    runs = [read(path.name) for path in sorted(DATA.glob(f"step-{model}-*-run.json"))]
    eager = median(run["unbudgeted_ns"] for run in runs)
    peak = read(f"step-{model}-step.json")["eager_peak_bytes"] / 2**30
    yield "eager torch", 1.0, f"{eager / 1e6:.0f} ms, {peak:.1f} GiB"
    for share in (75, 50):
        for way, title in {**PLANS, **WAYS}.items():
            name = f"step-{model}-{share}-{way}"
            plan_file, run_file, torch_file = (
                DATA / f"{name}-{what}.json" for what in ("solve", "run", "torch")
            )
            time, told = None, "not run"
            if run_file.exists() or torch_file.exists():
                found = read((run_file if way in PLANS else torch_file).name)
                times = found["times_without_restore_ns" if way in PLANS else "times_ns"]
                time = median(times) if times else None
                size = found["budget_bytes" if way in PLANS else "allocated_bytes"]
                told = f"{size / 2**30:.1f} GiB" if times else "out of memory"
            elif plan_file.exists() and read(plan_file.name)["makespan_ns"] is None:
                told = "no schedule"
            yield f"{share}%: {title}", (time or 0) / eager, f"{time / 1e6:.0f} ms, {told}" if time else told


if __name__ == "__main__":
    publish(markdown(HEADER, list(rows())), PAGE, *MARKS)
    header = (
        "run",
        "with a shared link",
        "measured",
        "offloads",
        "beside prefetches",
        "prefetches",
        "beside offloads",
    )
    publish(markdown(header, list(copies())), *COPIES)
    publish(paged(), *PAGED)
    (IMAGES / "h100-vgg16.png").write_bytes(iteration())
    (IMAGES / "h100-steps.png").write_bytes(steps())
