"""The results of a trial: text, a table of its operations, JSON, a picture and a trace."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from ...instances.units import format_size, format_time
from ...instances.workload import BATCH_NORM_NOTE
from ...validate.execution.executor import Timed
from ...validate.execution.trial import Trial, times
from ..output.machine import made_here
from ..output.table import format_table
from ..pictures.trace import trace


def told(trial: Trial) -> str:
    """Return the result as text."""
    width = max(len(word) for word, _ in _lines(trial)) + 1
    return "\n".join(f"{word + ':':<{width}} {text}" for word, text in _lines(trial))


def operations_table(trial: Trial) -> str:
    """Return a line for each operation of the first round: predicted and measured."""
    paged = trial.schedule.memory_model == "paged"
    rows = [
        (
            name,
            operation.stream,
            algorithm,
            format_time(predicted),
            format_time(_duration(timed)),
            _ratio(predicted, _duration(timed)),
            format_time(timed.start_ns),
            format_time(timed.host_ns),
            *([format_time(timed.mapping_ns)] if paged else []),
        )
        for operation, (name, predicted, timed), algorithm in zip(
            trial.schedule.operations, times(trial), _algorithms(trial), strict=True
        )
    ]
    header = ("operation", "stream", "algorithm", "predicted", "measured", "ratio", "start", "host")
    return format_table((*header, "mapping") if paged else header, rows, "lllrrrrr" + "r" * paged)


def slowest_table(trial: Trial, count: int = 10) -> str:
    """Return the operations that took longest, predicted and measured, and all others together."""
    ordered = sorted(times(trial), key=lambda one: -_duration(one[2]))
    rows = [
        (name, format_time(predicted), format_time(_duration(timed)), _ratio(predicted, _duration(timed)))
        for name, predicted, timed in ordered[:count]
    ]
    if others := ordered[count:]:
        predicted = sum(expected for _, expected, _ in others)
        measured = sum(_duration(timed) for _, _, timed in others)
        rows.append(
            (
                f"{len(others)} others",
                format_time(predicted),
                format_time(measured),
                _ratio(predicted, measured),
            )
        )
    return format_table(("operation", "predicted", "measured", "ratio"), rows, "lrrr")


def as_dict(trial: Trial, *, operations: bool = False) -> dict[str, Any]:
    """Return the result for ``--json``; `operations` adds a list of the operations."""
    causes = trial.causes()
    timed = [one for row in trial.median.rounds for one in row]
    found: dict[str, Any] = {
        "backend": trial.backend,
        "device": trial.device,
        "predicted_ns": trial.predicted_ns,
        "measured_ns": trial.measured_ns,
        "peak_bytes": trial.schedule.peak_bytes,
        "identical_to_unbudgeted": None if trial.reference_ns is None else trial.identical,
        "max_abs_error": trial.max_abs_error,
        "energy_j": trial.energy_j,
        "graph": trial.nodes is not None,
        "nodes": None if trial.nodes is None else sum(trial.nodes),
        "scheduled_ns": trial.scheduled_ns,
        "unbudgeted_ns": trial.reference_ns,
        "loss": trial.loss,
        "deterministic": trial.deterministic,
        "executions_ns": [one.measured_ns for one in trial.executions],
        "error_ns": None
        if causes is None
        else {
            "kernels": causes.kernels_ns,
            "copies": causes.copies_ns,
            "mapping": causes.mapping_ns,
            "launches": causes.launches_ns,
        },
        "host_ns": sum(one.host_ns for one in timed),
        "host_ns_per_operation": None if trial.nodes is not None else _median_host(trial),
        "mapping_ns": sum(one.mapping_ns for one in timed),
        "waiting_to_map_ns": sum(one.waiting_ns for one in timed),
    }
    if trial.nodes is None:
        found["streams_ns"] = {
            stream: {"predicted": predicted, "measured": measured}
            for stream, predicted, measured in _streams(trial)
        }
    if operations:
        found["operations"] = [
            {
                "id": operation.id,
                "name": name,
                "predicted_ns": predicted,
                "start_ns": one.start_ns,
                "end_ns": one.end_ns,
                "host_ns": one.host_ns,
                "mapping_ns": one.mapping_ns,
            }
            for operation, (name, predicted, one) in zip(trial.schedule.operations, times(trial), strict=True)
        ]
    return found


def picture(trial: Trial) -> bytes:
    """Draw the predicted streams above the measured ones and the memory, as PNG."""
    from ..pictures.schedule import timelines

    shown = "one iteration" if trial.instance.rounds == 1 else f"the first of {trial.instance.rounds} rounds"
    return timelines(
        trial.instance,
        {"predicted": trial.schedule, "measured": trial.measured()},
        f"{trial.instance.name} by {trial.schedule.method} on {trial.backend} ({trial.device}): {shown}",
        f"measured: {_shown(trial)}; memory by residences. {made_here()}.",
    )


def trial_trace(trial: Trial) -> dict[str, Any]:
    """Return the predicted and the measured timeline in the Trace Event Format."""
    return trace(trial.instance, trial.schedule, (f"measured on {trial.backend}", trial.measured()))


def _lines(trial: Trial) -> Iterator[tuple[str, str]]:
    instance, schedule = trial.instance, trial.schedule
    rounds = f"{instance.rounds} rounds of " if instance.rounds > 1 else ""
    yield "schedule", f"{instance.name} by {schedule.method}, {rounds}{len(schedule.operations)} operations"
    yield "device", f"{trial.device} ({trial.backend})"
    yield "predicted", _predicted(trial)
    fastest, slowest = trial.executions[0].measured_ns, trial.executions[-1].measured_ns
    yield (
        "measured",
        f"{format_time(trial.measured_ns)}, the median of {len(trial.executions)} "
        f"({format_time(fastest)} to {format_time(slowest)})",
    )
    if trial.reference_ns is not None:
        how = "measured, once" if trial.compared_with == "no budget" else "measured, the median"
        yield trial.compared_with, f"{format_time(trial.reference_ns)}, {how}"
    yield "difference", _difference(trial)
    if trial.nodes is None:
        for stream, predicted, measured in _streams(trial):
            yield f"on {stream}", f"{format_time(measured)}, and {format_time(predicted)} predicted"
    yield (
        "memory",
        f"{format_size(schedule.peak_bytes)} of {format_size(instance.budget_bytes)}, "
        f"{schedule.memory_model}",
    )
    yield "host", _host(trial)
    if trial.compared_with == "eager torch" and "eager_peak_bytes" in instance.meta:
        yield "eager peak", format_size(instance.meta["eager_peak_bytes"])
    if trial.energy_j is not None:
        yield "energy", f"{trial.energy_j:.4g} J an iteration"
    yield "numbers", f"loss {trial.loss:.6g}; {_numbers(trial)}"
    if instance.made_from.notes:
        yield "note", BATCH_NORM_NOTE


def _difference(trial: Trial) -> str:
    causes = trial.causes()
    if causes is None:
        return _signed(trial.measured_ns - trial.predicted_ns)
    parts = {"kernels": causes.kernels_ns, "copies": causes.copies_ns}
    if trial.schedule.memory_model == "paged":
        parts["mapping"] = causes.mapping_ns
    parts["launches and gaps"] = causes.launches_ns
    return ", ".join(f"{name} {_signed(ns)}" for name, ns in parts.items())


def _host(trial: Trial) -> str:
    timed = [one for row in trial.median.rounds for one in row]
    if trial.nodes is not None:
        launched = sum(one.host_ns for one in timed)
        return f"{format_time(launched)} an iteration, a launch of {sum(trial.nodes)} nodes for each round"
    text = f"{format_time(_median_host(trial))} an operation, the median"
    if trial.schedule.memory_model == "paged":
        mapping, waiting = sum(one.mapping_ns for one in timed), sum(one.waiting_ns for one in timed)
        text += f"; mapping pages {format_time(mapping)}, waiting until it can {format_time(waiting)}"
    return text


def _predicted(trial: Trial) -> str:
    """Return the predicted time; with the host's mappings or a graph's gaps, also the schedule's own time."""
    text = format_time(trial.predicted_ns)
    if trial.nodes is not None:
        if trial.graph_gap_change_ns is None:
            return f"{text}; without the launch gaps of graphs, which are unknown"
        text += ", with the launch gaps of graphs"
    elif trial.schedule.memory_model != "paged":
        return text
    elif trial.mapping_cost is None:
        text += "; what mapping pages costs is unknown and counts as 0"
    return f"{text}; the schedule alone {format_time(trial.scheduled_ns)}"


def _shown(trial: Trial) -> str:
    count = len(trial.executions)
    return "one execution" if count == 1 else f"the median of {count} executions"


def _numbers(trial: Trial) -> str:
    if trial.compared_with == "eager torch":
        if trial.reference_ns is None:
            return "not compared with eager torch"
        if trial.identical:
            return "losses, parameters, buffers and states have the same bits as eager torch's"
        return (
            f"WRONG: they are not those of eager torch, from which one differs by {trial.max_abs_error:.3g}"
        )
    other = "in poisoned memory; not compared with a run without a budget"
    if trial.reference_ns is not None:
        other = "without a budget"
    carries = bool(trial.instance.carried)
    if trial.identical:
        told = "losses, gradients and what is carried" if carries else "losses and gradients"
        return f"{told} have the same bits as {other}"
    what = "a gradient or what is carried" if carries else "a gradient"
    error = f"{what} differs by {trial.max_abs_error:.3g} from that {other}"
    if trial.right:
        return f"{error}, within tolerance: the device's kernels are not deterministic"
    return f"WRONG: {error}"


def _algorithms(trial: Trial) -> list[str]:
    return [
        ""
        if operation.task is None or operation.algorithm is None
        else trial.instance.tasks[operation.task].algorithms[operation.algorithm].name
        for operation in trial.schedule.operations
    ]


def _median_host(trial: Trial) -> int:
    return int(statistics.median(one.host_ns for row in trial.median.rounds for one in row))


def _streams(trial: Trial) -> Iterator[tuple[str, int, int]]:
    """Yield the streams with the sums of the predicted and of the measured times of their operations."""
    sums: dict[str, list[int]] = {}
    for operation, (_, predicted, timed) in zip(trial.schedule.operations, times(trial), strict=True):
        total = sums.setdefault(operation.stream, [0, 0])
        total[0] += predicted
        total[1] += _duration(timed)
    for stream, (predicted, measured) in sums.items():
        yield stream, predicted, measured


def _ratio(predicted: int, measured: int) -> str:
    return f"{measured / predicted:.2f}" if predicted else ""


def _duration(timed: Timed) -> int:
    return timed.end_ns - timed.start_ns


def _signed(ns: int) -> str:
    return ("-" if ns < 0 else "+") + format_time(abs(ns))
