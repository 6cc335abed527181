"""The tables of a GPU's measurements, for a page of the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...instances.devices.caffe import find_layer
from ...instances.devices.device import find_device
from ...instances.errors import PebblerError, printable
from ...instances.profile import read_profile
from ...instances.units import format_size, format_time
from ..output.markdown import markdown
from ..report.streams import can_predict, predicted_layer
from .smoke import rates
from .stages import ARITHMETICS, COUNTS, PASSES, WAYS, is_complete, layers_of, read
from .steps import WAYS as STEP_WAYS
from .steps import answer_of, files_of, name_of
from .study import STEP_METHODS, Study

_ARITHMETICS = {"fp32": "single precision", "tf32": "TF32"}
"""Name of each arithmetic in the tables."""

_LONGEST = 120
"""Greatest number of characters of a reason in a table."""

NOTHING = "Nothing has been measured yet.\n"
"""Text of the page if nothing has been measured."""


def tables(study: Study) -> str:
    """Return the measurements as Markdown; a line says so if there are none."""
    parts = [
        _machine(study),
        _table("The smoke test:", ("check", "passed", "what came of it"), _smoke_rows(study)),
        _table(
            "Profiles:",
            ("network", "algorithms", "refused", "bits vary", "median spread", "largest copies", "complete"),
            _profile_rows(study),
        ),
        _table("Kernels:", ("network", "tasks", "kernels", "a launch"), _kernel_rows(study)),
        _table(
            "Schedules, executed, and torch under the same budgets:",
            ("network", "budget", "method", "predicted", "measured", "peak", "same bits", "energy", "host"),
            _run_rows(study),
        ),
        _table(
            "Layers on streams, measured (predicted):",
            ("layer", "pass", "GPU", "one stream", *(f"{n} streams" for n in COUNTS[1:]), "same bits"),
            _streams_rows(study),
        ),
        _table("Checks of torch on the GPU:", ("check", "passed", "what came of it"), _check_rows(study)),
        _table(
            "Training steps of torch, planned, and by torch's own means with its allocator limited to the "
            "same budget:",
            (
                "step",
                "budget",
                "by",
                "predicted",
                "operations",
                "whole step",
                "without restore",
                "allocated",
                "bits of eager torch",
            ),
            _step_rows(study),
        ),
        _table("What failed, and has not been measured since:", ("what", "why"), _failure_rows(study)),
    ]
    return "\n".join(part for part in parts if part) or NOTHING


def _table(title: str, header: Sequence[str], rows: Iterator[list[str]]) -> str:
    """Return a table with its title, or nothing without rows; missing cells are empty."""
    cells = [[cell.replace("|", "\\|") for cell in row] + [""] * (len(header) - len(row)) for row in rows]
    return f"{title}\n\n{markdown(header, cells)}" if cells else ""


def _machine(study: Study) -> str:
    """Return where the measurements were made."""
    path = study.path("machine.json")
    if not path.exists():
        return ""
    found = read(path)
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"{found['device']} ({format_size(found['memory_bytes'])}), {versions}; {found['machine']}, "
        f"Python {found['python']}; {found['date']}.\n"
    )


def _smoke_rows(study: Study) -> Iterator[list[str]]:
    path = study.path("smoke.json")
    if path.exists():
        for one in read(path)["checks"]:
            yield [one["check"], "yes" if one["passed"] else "**no**", one["sentence"]]


def _profile_rows(study: Study) -> Iterator[list[str]]:
    for network, batch in study.networks:
        path = study.path(network, batch, "profile.json")
        if path.exists():
            found = read_profile(path)
            refused, varying = (len(found.meta.get(key, ())) for key in ("not_measured", "not_deterministic"))
            yield [
                f"{network}, batch {batch}",
                str(sum(len(task.algorithms) for task in found.tasks)),
                str(refused),
                str(varying),
                f"{found.meta['median_spread']:.1%}" if "median_spread" in found.meta else "",
                rates(found),
                "yes" if is_complete(found) else "**no**",
            ]


def _kernel_rows(study: Study) -> Iterator[list[str]]:
    for network, batch in study.networks:
        path = study.path(network, batch, "kernels.json")
        if path.exists():
            found = read(path)
            count = sum(len(kernels) for kernels in found["tasks"].values())
            name = f"{network}, batch {batch}"
            yield [name, str(len(found["tasks"])), str(count), format_time(found["t_launch_ns"])]


def _run_rows(study: Study) -> Iterator[list[str]]:
    for network, batch in study.networks:
        for budget in study.budgets:
            name = [f"{network}, batch {batch}", budget]
            for method in study.methods:
                outcome, run = (
                    study.path(network, batch, budget, method, f"{word}.json") for word in ("solve", "run")
                )
                if run.exists():
                    yield [*name, method, *_run(read(run))]
                elif outcome.exists() and (found := read(outcome)).get("makespan_ns") is None:
                    reason = printable(found["stopped_by"], _LONGEST)
                    yield [*name, method, "", f"no schedule: {reason}"]
            for way in WAYS:
                for arithmetic in ARITHMETICS:
                    path = study.path(network, batch, budget, way, arithmetic, "torch.json")
                    if path.exists():
                        yield [*name, f"torch, {way}, {_ARITHMETICS[arithmetic]}", "", *_torch(path)]


def _run(found: dict[str, Any]) -> Iterator[str]:
    """Return the cells of an execution."""
    for word in ("predicted", "measured"):
        yield format_time(found[f"{word}_ns"])
    yield format_size(found["peak_bytes"])
    yield "yes" if found["identical_to_unbudgeted"] else "within tolerance" if found["right"] else "**WRONG**"
    yield "" if found["energy_j"] is None else f"{found['energy_j']:.4g} J"
    yield f"{format_time(found['host_ns_per_operation'])} an operation"


def _torch(path: Path) -> Iterator[str]:
    """Return the cells of a training with torch: the time and the peak."""
    found = read(path)
    times = found["times_ns"]
    yield format_time(round(statistics.median(times))) if times else found["status"]
    yield format_size(found["peak_bytes"])


def _streams_rows(study: Study) -> Iterator[list[str]]:
    """Return a layer's time on one stream, and its speed-ups, for every measured pass, beside predictions."""
    for name in layers_of(study):
        for direction in PASSES:
            path = study.path(name, direction, "streams.json")
            if not path.exists():
                continue
            found = read(path)
            shown = [{int(count): time for count, time in found["times_ns"].items()}]
            gpus = [found["device"]]
            if can_predict():
                device = find_device(study.device)
                try:
                    shown.append(predicted_layer(find_layer(name), direction, device, COUNTS))
                    gpus.append(device.name)
                except PebblerError as error:
                    gpus.append(f"not predicted: {error}")
            cells = [_beside(gpus), _beside([format_time(times[1]) for times in shown])]
            for count in COUNTS[1:]:
                cells.append(_beside([f"{times[1] / times[count]:.2f}" for times in shown]))
            yield [name, direction, *cells, "yes" if found["identical_to_one_stream"] else "**no**"]


def _check_rows(study: Study) -> Iterator[list[str]]:
    for name in ("check-gpu.json", "check-steps.json", "check-oversubscribed.json"):
        path = study.path(name)
        if path.exists():
            for one in read(path)["checks"]:
                yield [one["check"], "yes" if one["passed"] else "**no**", one["sentence"]]


def _step_rows(study: Study) -> Iterator[list[str]]:
    """Return the rows of every step: by eager torch, planned, and in torch's ways."""
    for spec, batch in study.steps:
        name = name_of(spec)
        told = files_of(study, name, batch)["step"]
        if not told.exists():
            continue
        found = read(told)
        scratch = format_size(found["largest_scratch_bytes"])
        about = f"eager torch, recorded: {found['operators']} operators, the largest scratch {scratch}"
        peak = format_size(found["eager_peak_bytes"])
        yield [f"{name}, batch {batch}", "none", about, "", "", *_eager_time(study, name, batch), "", peak]
        for share in study.shares:
            row = [f"{name}, batch {batch}", f"{share}%"]
            for method in STEP_METHODS:
                yield from _planned_row(study, row, name, batch, share, method)
            for way in STEP_WAYS:
                path = study.path("step", name, batch, share, way, "torch.json")
                if path.exists():
                    one = read(path)
                    kept = one["activation_budget"]
                    by = f"torch, {way}" if kept is None else f"torch, {way} {kept}"
                    times = format_time(round(statistics.median(one["times_ns"]))) if one["times_ns"] else ""
                    yield [*row, by, "", "", times or one["status"], "", format_size(one["allocated_bytes"])]


def _eager_time(study: Study, name: str, batch: int) -> list[str]:
    """Return the median of the times of eager torch that were measured beside plans."""
    paths = [
        study.path("step", name, batch, share, method, "run.json")
        for share in study.shares
        for method in STEP_METHODS
    ]
    found = [time for path in paths if path.exists() if (time := read(path)["unbudgeted_ns"]) is not None]
    return [format_time(round(statistics.median(found))) if found else ""]


def _planned_row(
    study: Study, row: list[str], name: str, batch: int, share: int, method: str
) -> Iterator[list[str]]:
    """Return the row of a plan, if it was run or there is none."""
    run = study.path("step", name, batch, share, method, "run.json")
    _, outcome = answer_of(study, name, batch, share, method)
    if run.exists():
        found = read(run)
        whole = [found["times_ns"], found["times_without_restore_ns"]]
        times = [found["predicted_ns"], found["measured_ns"], *map(round, map(statistics.median, whole))]
        same = "yes" if found["identical_to_unbudgeted"] else "close" if found["right"] else "**no**"
        yield [
            *row,
            method,
            *map(format_time, times),
            format_size(found["held_bytes" if "held_bytes" in found else "allocated_bytes"]),
            same,
        ]
    elif outcome.exists() and (found := read(outcome)).get("makespan_ns") is None:
        yield [*row, method, "", f"no schedule: {printable(found['stopped_by'], _LONGEST)}"]


def _beside(texts: Sequence[str]) -> str:
    """Return a measured value with the prediction in brackets; without Numba, there is no prediction."""
    measured, *predicted = texts
    return " ".join((measured, *(f"({text})" for text in predicted)))


def _failure_rows(study: Study) -> Iterator[list[str]]:
    path = study.path("failures.json")
    if path.exists():
        for name, found in read(path).items():
            yield [name, found["sentence"]]
