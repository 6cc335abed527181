"""The page of a report: one HTML file with runs to filter, timelines to open, and the exhibits."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import msgspec

from ...instances.files import read_instance
from ...instances.instance import Instance
from ...validate.schedule import Schedule, read_schedule
from ..output.usage import memory_use
from ..sweeps.evaluation import Evaluation
from ..sweeps.jobs import Found
from ..sweeps.results import Results, Run
from .exhibits import Exhibit


def page(
    evaluation: Evaluation,
    shown: Sequence[tuple[Exhibit, bytes]],
    conditions: str,
    results: Results,
    *,
    most_operations: int = 150_000,
) -> str:
    """Return the page, which loads no other file.

    Parameters
    ----------
    evaluation
        The runs.
    shown
        Exhibits with their pictures as SVG.
    conditions
        The conditions of all figures.
    results
        The results file, beside which the schedules are.
    most_operations
        Greatest total number of operations whose timelines the page has, the shortest schedules first.
    """
    timelines, left_out = _timelines(evaluation, results, most_operations)
    data = {
        "runs": [_row(evaluation, run, timelines) for run in evaluation.runs],
        "timelines": timelines,
    }
    template = resources.files(__package__).joinpath("report.html").read_text("utf-8")
    title = escape(heading(evaluation, results.titles()))
    parts = {
        "title": title,
        "heading": title,
        "conditions": escape(conditions),
        "left-out": escape(left_out),
        "exhibits": "\n".join(_exhibit(exhibit, picture) for exhibit, picture in shown),
        # "</script" and "<!--" mean something to the parser of the page, whatever the script holds
        "data": msgspec.json.encode(data).decode().replace("<", "\\u003c"),
    }
    for name, text in parts.items():
        before, after = template.split(f"<!-- {name} -->")
        template = before + text + after
    return template


def heading(evaluation: Evaluation, titles: Sequence[str]) -> str:
    """Return the title of a report: those of its configurations, or else what was run."""
    if titles:
        return "; ".join(titles)
    return (
        f"{_several(len(evaluation.settings), 'setting')} on {_several(len(evaluation.problems), 'problem')}"
    )


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _row(evaluation: Evaluation, run: Run, timelines: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a run in the page's table."""
    found, about, bound = run.found, run.about, evaluation.bound(run)
    return {
        "problem": about.problem,
        "network": about.network or "",
        "device": about.device or "",
        "graph": about.graph or "",
        "engines": about.engines,
        "tasks": about.tasks,
        "budget": about.budget_bytes,
        "setting": evaluation.settings[run.setting],
        "method": run.setting.method,
        "memory": run.setting.memory_model,
        "seed": run.seed,
        "status": found.status,
        "why": found.stopped_by,
        "iteration": found.iteration_ns,
        "gap": None if found.iteration_ns is None or bound is None else evaluation.gap(run),
        "bound": None if bound is None else bound.lower_bound_ns,
        "by": "" if bound is None else bound.bound_by + ("" if bound.certified else " (not certified)"),
        "peak": found.peak_bytes,
        "moved": None
        if found.offloaded_bytes is None
        else found.offloaded_bytes + (found.prefetched_bytes or 0),
        "rounds": found.rounds,
        "seconds": found.solve_seconds,
        "schedules": [name for name in found.schedules if name in timelines],
    }


def _moved(found: Found) -> int:
    return (found.offloaded_bytes or 0) + (found.prefetched_bytes or 0)


def _timelines(evaluation: Evaluation, results: Results, most_operations: int) -> tuple[dict[str, Any], str]:
    """Return the page's timelines of schedules, by their checksums, and those that are left out."""
    wanted = {
        by: of
        for run in evaluation.runs
        for of, by in zip(run.found.instances, run.found.schedules, strict=False)
    }
    missing = 0
    read: list[tuple[str, Instance, Schedule]] = []
    for by, of in wanted.items():
        if results.schedule_file(by).exists() and results.instance_file(of).exists():
            instance = read_instance(results.instance_file(of))
            read.append((by, instance, read_schedule(results.schedule_file(by), instance)))
        else:
            missing += 1
    timelines: dict[str, Any] = {}
    room = most_operations
    for by, instance, schedule in sorted(read, key=lambda entry: (len(entry[2].operations), entry[0])):
        room -= len(schedule.operations)
        if room < 0:
            break
        timelines[by] = _timeline(instance, schedule)
    told = []
    if missing:
        told.append(f"{missing} schedules do not lie beside the results")
    if len(timelines) < len(read):
        told.append(f"the timelines of the {len(read) - len(timelines)} longest schedules are left out")
    return timelines, "" if not told else "; ".join(told) + "; pebbler trace shows any schedule."


def _timeline(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    use = memory_use(schedule)
    return {
        "instance": instance.name,
        "method": schedule.method,
        "rounds": instance.rounds,
        "makespan": schedule.makespan_ns,
        "budget": instance.budget_bytes,
        "resident": instance.resident_bytes,
        "peak": schedule.peak_bytes,
        "operations": [
            (
                operation.stream,
                operation.kind,
                _name(instance, operation.task, operation.block),
                operation.start_ns,
                operation.end_ns,
            )
            for operation in schedule.operations
        ],
        "memory": (
            use.instants,
            use.blocks,
            use.workspaces,
            *([use.carried] if schedule.states else []),
        ),
    }


def _name(instance: Instance, task: int | None, block: int | None) -> str:
    if task is not None:
        return instance.tasks[task].name
    return "" if block is None else instance.blocks[block].name


def _exhibit(exhibit: Exhibit, picture: bytes) -> str:
    header = "".join(f"<th>{escape(title)}</th>" for title in exhibit.table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in exhibit.table.rows
    )
    source = b64encode(picture).decode()
    return (
        f'<section class="exhibit" id="{exhibit.name}"><h2>{escape(exhibit.title)}</h2>'
        f'<div class="wide"><img alt="{escape(exhibit.title)}" '
        f'src="data:image/svg+xml;base64,{source}"></div>'
        f'<details><summary>numbers</summary><div class="wide"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details></section>"
    )
