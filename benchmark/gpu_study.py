"""What only a GPU can tell, in one go: profiles, kernels, streams, schedules that run, and torch beside.

``python -m pebbler.benchmark.gpu_study`` on a machine with the GPU and the solvers does it all. Where the
GPU's machine has no solvers: ``--stages profile,kernels,streams`` there, ``--stages solve`` elsewhere on the
same folder, and ``--stages run,torch`` there again. Every result is a file of its own in the folder, written
as soon as it is known; what the folder has is not done again. ``--stages page`` puts the tables into
docs/gpu.md.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import json

from ..instances.caffe import TABLE_5, Direction, find_layer
from ..instances.devices import find_device
from ..instances.errors import PebblerError
from ..instances.files import read_instance, write_atomically, write_instance
from ..instances.memory import parse_budget
from ..instances.profile import read_profile, write_profile
from ..instances.units import format_size, format_time
from ..instances.workload import Workload
from ..validate.execution.backends import find_backend
from ..validate.schedule import read_schedule, write_schedule
from .page import markdown, publish

NETWORKS = (("alexnet", 128), ("vgg16", 128), ("resnet50", 128))
BUDGETS = ("80%", "60%", "40%", "1.1xMmin")
METHODS = ("vdnn-all-p", "vdnn-dyn", "modnn", "flow")
STAGES = ("profile", "kernels", "streams", "solve", "run", "torch", "page")
LAYERS = tuple(layer.name for layer in TABLE_5)
COUNTS = (1, 2, 4, 8, 16, 32)
"""Streams that a layer's samples run on."""
_SOLVE_SECONDS = 60.0
_PASSES: tuple[Direction, ...] = ("forward", "backward")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Study:
    """What to measure, and the folder that the results are in."""

    folder: Path
    networks: Sequence[tuple[str, int]] = NETWORKS
    budgets: Sequence[str] = BUDGETS
    methods: Sequence[str] = METHODS
    repeat: int = 5
    layers: Sequence[str] = LAYERS
    device: str = "h200"
    providers: Sequence[str] = ()

    def path(self, *words: object) -> Path:
        """Return the file of a result: its words, with what a file name cannot have replaced."""
        name = "-".join(str(word) for word in words)
        return self.folder / name.translate(str.maketrans(":=,%/", "-----"))


def measure_profiles(study: Study) -> None:
    """Measure all algorithms of all tasks, and copies."""
    from ..validate.execution.profiler import profile

    for network, batch in study.networks:
        path = study.path(network, batch, "profile.json")
        if not path.exists():
            found = profile(network, batch, find_backend("cuda", study.providers), repeat=study.repeat)
            write_profile(found, path)


def record(study: Study) -> None:
    """Put together GLP4NN's inputs: the profile's kernels, of first algorithms, and what a launch costs."""
    from ..validate.execution.cuda import CudaBackend
    from ..validate.execution.cuda_kernels import launch_ns

    for network, batch in study.networks:
        path = study.path(network, batch, "kernels.json")
        if path.exists():
            continue
        source = study.path(network, batch, "profile.json")
        measured = read_profile(source)
        recorded = {(one.name, one.algorithm): one.kernels for one in measured.kernels}
        if not recorded:
            raise PebblerError(
                f"{source} has no kernels; measure it again with pip install 'pebbler[profiler]'"
            )
        tasks = {task.name: recorded[task.name, task.algorithms[0].name] for task in measured.tasks}
        backend = CudaBackend()
        try:
            found = {"device": backend.device, "network": network, "batch": batch}
            found |= {"t_launch_ns": launch_ns(backend), "tasks": tasks}
        finally:
            backend.close()
        write_atomically(path, json.format(json.encode(found)))


def run_streams(study: Study) -> None:
    """Run layers sample by sample on several numbers of streams: GLP4NN's question, measured."""
    from .stream_report import measured_layer

    device = find_device(study.device)
    for name in study.layers:
        layer = find_layer(name)
        for direction in _PASSES:
            path = study.path(name, direction, "streams.json")
            if not path.exists():
                found = measured_layer(layer, direction, device, COUNTS, repeat=study.repeat)
                write_atomically(path, json.format(json.encode({"predicted_for": device.name} | found)))


def solve_all(study: Study) -> None:
    """Solve every network under every budget with every method."""
    from ..solver.solve import solve

    for network, batch in study.networks:
        measured = read_profile(study.path(network, batch, "profile.json"))
        workload = Workload(network, batch, measured.machine.device, profile=measured)
        for budget in study.budgets:
            instance = workload.instance(parse_budget(budget, workload.round(batch, 1)))
            write_instance(instance, study.path(network, batch, budget, "instance.json"))
            for method in study.methods:
                path = study.path(network, batch, budget, method, "schedule.json")
                if path.exists():
                    continue
                result = solve(instance, method, time_limit=_SOLVE_SECONDS)
                if result.schedule is None:
                    _log.warning("%s: no schedule, %s", path.name, result.stopped_by)
                else:
                    write_schedule(result.schedule, path)


def run_all(study: Study) -> None:
    """Execute every schedule."""
    from ..validate.check import check
    from ..validate.execution.trial import attempt
    from .trial_report import as_dict

    for network, batch in study.networks:
        for budget in study.budgets:
            instance = read_instance(study.path(network, batch, budget, "instance.json"))
            for method in study.methods:
                source = study.path(network, batch, budget, method, "schedule.json")
                target = study.path(network, batch, budget, method, "run.json")
                if target.exists() or not source.exists():
                    continue
                schedule = read_schedule(source, instance)
                if not (report := check(instance, schedule)).valid:
                    raise PebblerError(f"{source} is invalid: {report.reasons[0]}")
                trial = attempt(instance, schedule, find_backend("cuda"), repeat=study.repeat)
                write_atomically(target, json.format(json.encode(as_dict(trial, operations=True))))


def run_torch(study: Study) -> None:
    """Train with torch under the same budgets: as it is, with tensors saved on the host, with checkpoints."""
    from .torch_memory import WAYS, iteration

    for network, batch in study.networks:
        for budget in study.budgets:
            instance = read_instance(study.path(network, batch, budget, "instance.json"))
            for way in WAYS:
                path = study.path(network, batch, budget, way, "torch.json")
                if not path.exists():
                    found = iteration(network, batch, instance.budget_bytes, way, repeat=study.repeat)
                    write_atomically(path, json.format(json.encode(found)))


def tables(study: Study) -> str:
    """Return what has been measured, as Markdown; a line says so when nothing has."""
    rows = [row for network, batch in study.networks for row in _rows(study, network, batch)]
    header = ["network", "budget", "method", "predicted", "measured", "peak", "same bits", "energy"]
    found = [markdown(header, rows)] if rows else []
    rows = [row for name in study.layers for row in _streams_rows(study, name)]
    header = [
        "layer",
        "pass",
        "GPU",
        "one stream",
        *(f"{count} streams" for count in COUNTS[1:]),
        "same bits",
    ]
    found += [f"Layers on streams, measured (predicted):\n\n{markdown(header, rows)}"] if rows else []
    return "\n".join(found) or "Nothing has been measured yet.\n"


def _streams_rows(study: Study, name: str) -> Iterator[list[str]]:
    """Time of a layer on one stream, and speed-ups, for every pass that has been measured."""
    for direction in _PASSES:
        path = study.path(name, direction, "streams.json")
        if not path.exists():
            continue
        found = json.decode(path.read_bytes())
        shown = [times for times in (found["times_ns"], found["predicted_ns"]) if times is not None]
        cells = [f"{found['device']} ({found['predicted_for']})"]
        cells.append(_beside([format_time(times["1"]) for times in shown]))
        for count in map(str, COUNTS[1:]):
            cells.append(_beside([f"{times['1'] / times[count]:.2f}" for times in shown]))
        yield [name, direction, *cells, "yes" if found["identical_to_one_stream"] else "no"]


def _beside(texts: Sequence[str]) -> str:
    """What was measured, with what was predicted in brackets; without Numba, nothing was."""
    measured, *predicted = texts
    return " ".join((measured, *(f"({text})" for text in predicted)))


def _rows(study: Study, network: str, batch: int) -> list[list[str]]:
    rows = []
    for budget in study.budgets:
        name = [f"{network}, batch {batch}", budget]
        for method in study.methods:
            path = study.path(network, batch, budget, method, "run.json")
            if path.exists():
                found = json.decode(path.read_bytes())
                energy = "" if found["energy_j"] is None else f"{found['energy_j']:.4g} J"
                times = [format_time(found[f"{word}_ns"]) for word in ("predicted", "measured")]
                same = "yes" if found["identical_to_unbudgeted"] else "no"
                rows.append([*name, method, *times, format_size(found["peak_bytes"]), same, energy])
        for path in sorted(study.folder.glob(study.path(network, batch, budget, "*", "torch.json").name)):
            found = json.decode(path.read_bytes())
            time = found["status"] if found["times_ns"] == [] else _median(found["times_ns"])
            rows.append([*name, f"torch, {found['way']}", "", time, format_size(found["peak_bytes"]), "", ""])
    return rows


def _median(times_ns: Sequence[int]) -> str:
    return format_time(round(statistics.median(times_ns)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Do the stages in their order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", default=",".join(STAGES), metavar="A,B,...", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("docs/data/gpu"), metavar="DIR")
    parser.add_argument("--page", type=Path, default=Path("docs/gpu.md"), metavar="FILE")
    parser.add_argument("--networks", default="", metavar="NAME/BATCH,...", help="default: the study's")
    parser.add_argument("--budgets", default="", metavar="SIZE,...", help="default: the study's")
    parser.add_argument("--methods", default="", metavar="M,...", help="default: the study's")
    parser.add_argument("--layers", default="", metavar="LAYER,...", help="default: GLP4NN's Table 5")
    parser.add_argument(
        "--device", default="h200", metavar="NAME", help="predicted beside layers on streams; default: h200"
    )
    parser.add_argument("--providers", default="", metavar="P,...", help="of convolutions; default: cudnn")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    study = Study(
        chosen.out,
        [_network(one) for one in chosen.networks.split(",") if one] or NETWORKS,
        [one for one in chosen.budgets.split(",") if one] or BUDGETS,
        [one for one in chosen.methods.split(",") if one] or METHODS,
        layers=[one for one in chosen.layers.split(",") if one] or LAYERS,
        device=chosen.device,
        providers=[one for one in chosen.providers.split(",") if one],
    )
    stages: dict[str, Callable[[Study], Any]] = {
        "profile": measure_profiles,
        "kernels": record,
        "streams": run_streams,
        "solve": solve_all,
        "run": run_all,
        "torch": run_torch,
        "page": lambda done: publish(
            tables(done), chosen.page, "<!-- begin gpu -->\n", "<!-- end of gpu -->"
        ),
    }
    study.folder.mkdir(parents=True, exist_ok=True)
    for stage in chosen.stages.split(","):
        if stage not in stages:
            parser.error(f"there is no stage '{stage}'; there are {', '.join(STAGES)}")
        _log.info("stage %s", stage)
        stages[stage](study)


def _network(text: str) -> tuple[str, int]:
    name, _, batch = text.rpartition("/")
    return name, int(batch)


if __name__ == "__main__":
    main()
