"""Code generation: a schedule as one stand-alone PyCUDA script (the last step of moDNN, DATE 2018, Fig. 2).

The script has the program as a list of calls, one operation after the other, with every address, wait and
algorithm of the schedule. It needs pycuda, numpy, cuDNN and, for fully connected layers, cuBLAS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from importlib import resources
from pprint import pformat
from textwrap import indent

from ...instances.errors import PebblerError, printable
from ...instances.instance import Instance
from ...instances.networks.optimizers import STATES
from ...instances.units import format_size, format_time
from ..schedule import Schedule
from .cuda.calls import (
    PLAIN,
    Argument,
    Call,
    First,
    Own,
    Product,
    Scratch,
    algorithm_number,
    calls_of,
    convolution_of,
    formats,
    scratch_bytes,
    source,
)
from .cuda.providers import Convolution, Operand, provider_of
from .data import classes_of, scales_of, weight_shape
from .kernel import Kernel
from .plan import Load, Mapped, Place, Plan, Step, plan
from .rebuild import Rebuilt

_LINE = 100
"""Approximate number of characters of a line."""

_LONGEST = 80
"""Greatest number of characters of a text from a file, which is used in comments and the first lines only."""


def emit(instance: Instance, schedule: Schedule, rebuilt: Rebuilt) -> str:
    """Return the text of the script for a valid schedule; of a steady state, it is the first iteration.

    Raises
    ------
    PebblerError
        When the memory is divisible, a task runs on the host, a script has no CUDA code for a task or an
        algorithm, or carried data would have to go from one round to the next.
    """
    if instance.carried and instance.rounds > 1:
        raise PebblerError(
            f"{instance.name}: a script does not carry blocks over {instance.rounds} rounds; make the "
            "instance with one"
        )
    for operation in schedule.operations:
        if operation.stream == "host" and operation.task is not None:
            raise PebblerError(
                f"{instance.name}: a script computes nothing on the host, where "
                f"'{instance.tasks[operation.task].name}' runs; let it run on the device, or take pebbler run"
            )
    return _Script(instance, schedule, rebuilt).text()


class _Script:
    """The script of a plan, part by part."""

    def __init__(self, instance: Instance, schedule: Schedule, rebuilt: Rebuilt) -> None:
        self.instance = instance
        self.schedule = schedule
        self.rebuilt = rebuilt
        self.plan: Plan = plan(instance, schedule, rebuilt)
        self.calls = [[] if step.kernel is None else calls_of(step.kernel) for step in self.plan.steps]
        for step in self.plan.steps:
            if step.kernel is not None:
                _require_algorithm(step.name, step.kernel)

    def text(self) -> str:
        """Fill in the template; its marks are words in capitals between @ signs."""
        parts = {
            "TITLE": self._title(),
            "SIZES": "\n".join(self._sizes()),
            "DATA": "\n".join(self._data()),
            "KERNELS": _kernels(
                {call.name for calls in self.calls for call in calls if isinstance(call, Own)}
            ),
            "FORMATS": pformat(self._formats(), width=_LINE),
            "CONVOLUTIONS": "\n".join(self._convolutions()),
            "LOADS": "\n".join(self._loads()),
            "PROGRAM": indent("\n".join(self._program()), "    "),
            "CARRIED": "\n".join(self._carried()),
            "GRADIENTS": "\n".join(self._gradients()),
        }
        template = resources.files(__package__).joinpath("script.py.txt").read_text(encoding="utf-8")
        sections = {"CUDNN": Convolution, "CUBLAS": Product}
        for name, kind in sections.items():
            used = any(isinstance(call, kind) for calls in self.calls for call in calls)
            template = _section(template, name, used)
        template = _section(template, "SCRATCH", self._scratch_bytes() > 0)
        template = _section(template, "PAGED", bool(self.plan.page_bytes))
        template = _section(template, "CONTIGUOUS", not self.plan.page_bytes)
        return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], template)

    def _title(self) -> str:
        instance, schedule = self.instance, self.schedule
        rounds = f"{instance.rounds} rounds of {self.rebuilt.graph.batch}"
        network, method = _plain(str(instance.made_from.network)), _plain(schedule.method)
        time = format_time(schedule.makespan_ns * instance.rounds)
        return (
            f"One iteration of {network}, batch {self.rebuilt.batch} ({rounds}),\n"
            f"under a budget of {format_size(instance.budget_bytes)}, with the schedule of {method} "
            f"({schedule.memory_model} memory).\n"
            f"Predicted: {time}, peak {format_size(schedule.peak_bytes)}."
        )

    def _sizes(self) -> Iterator[str]:
        areas = self.plan.areas
        yield f"ROUNDS, IMAGES = {self.instance.rounds}, {self.rebuilt.graph.batch}"
        yield f"RESIDENT_BYTES, HOST_BYTES = {areas['resident']}, {areas['host']}"
        if size := self._scratch_bytes():
            yield f"SCRATCH_BYTES = {size}"
        if self.plan.page_bytes:
            named = {name: size for name, size in areas.items() if name not in ("resident", "host")}
            yield f"PAGES, PAGE_BYTES = {self.plan.pages}, {self.plan.page_bytes}"
            yield f"AREAS = {pformat(named, width=_LINE)}"
        else:
            yield f"POOL_BYTES = {areas['pool']}"

    def _scratch_bytes(self) -> int:
        """Return the bytes of memory between calls of a task; all tasks share this memory."""
        return max(map(scratch_bytes, self.calls), default=0)

    def _data(self) -> Iterator[str]:
        """Return the code that draws weights, images and labels as `initial` does."""
        network, optimizer = self.rebuilt.graph.network, self.instance.made_from.optimizer
        for index, layer in enumerate(network.layers):
            shape = layer.shape
            if layer.kind.is_input:
                yield f'data["X({layer.name})"] = normal({index}, {self.rebuilt.batch * shape.elements})'
            elif layer.kind.is_loss:
                count = self.rebuilt.batch * shape.positions
                yield f'data["labels({layer.name})"] = labels({index}, {count}, {classes_of(layer)})'
            if layer.parameters and not layer.kind.has_weight_task:
                yield f'data["W({layer.name})"] = ones({scales_of(layer)}, {layer.parameters})'
            elif layer.parameters:
                before = [network[name].shape for name in layer.inputs]
                channels = sum(one.channels for one in before)
                sizes = weight_shape(layer, channels, before[0].elements)
                count = math.prod(sizes)
                biases = layer.parameters - count
                yield f'data["W({layer.name})"] = weights({index}, {count}, {sizes[0]}, biases={biases})'
            for letter in () if optimizer is None or not layer.parameters else STATES[optimizer]:
                yield f'data["{letter}({layer.name})"] = ones(0, {layer.parameters})'

    def _formats(self) -> dict[str, str]:
        used = {call.name for calls in self.calls for call in calls if isinstance(call, Own)}
        return {name: letters for name, letters in formats().items() if name in used}

    def _convolutions(self) -> Iterator[str]:
        seen = set()
        for step, calls in zip(self.plan.steps, self.calls, strict=True):
            for call in calls:
                if isinstance(call, Convolution) and step.kernel and step.kernel.layer.name not in seen:
                    seen.add(step.kernel.layer.name)
                    shapes = f"x={call.x}, w={call.w}, y={call.y}"
                    rest = f"pad={call.pad}, stride={call.stride}, groups={call.groups}"
                    yield f'conv["{step.kernel.layer.name}"] = Convolution({shapes}, {rest})'

    def _loads(self) -> Iterator[str]:
        for name, (place, _) in self.plan.outside.items():
            if name.startswith(("W(", "labels(")):
                yield f'drv.memcpy_htod({_address(place)}, data["{name}"])'

    # --- the program ------------------------------------------------------------------------------

    def _program(self) -> Iterator[str]:
        for mapped in self.plan.maps:
            yield from self._mapping(mapped)
        for load in self.plan.loads:
            yield from self._load(load)
        for i, (step, calls) in enumerate(zip(self.plan.steps, self.calls, strict=True)):
            yield ""
            yield from self._step(i, step, calls)

    def _load(self, load: Load) -> Iterator[str]:
        rounds = "index" if load.tensor.startswith("X(") else "0"
        values = f'part("{load.tensor}", {rounds}, {load.begin}, {load.bytes})'
        if load.place.area == "host":
            yield f"host[{load.place.offset}:{load.place.offset + load.bytes}] = {values}"
        else:
            yield f"drv.memcpy_htod({_address(load.place)}, {values})"

    def _mapping(self, mapped: Mapped) -> Iterator[str]:
        for position in mapped.after:
            yield f"done[{position}].synchronize()"
        yield f"map_pages({_address(mapped.place)}, {list(mapped.pages)})"

    def _step(self, i: int, step: Step, calls: list[Call]) -> Iterator[str]:
        operation = step.operation
        how = f" by {step.kernel.algorithm}" if step.kernel is not None else ""
        when = f"{format_time(operation.start_ns)} to {format_time(operation.end_ns)}"
        yield f"# {i}: {printable(step.name, _LONGEST)}{how}, predicted {when}"
        for mapped in step.maps:
            yield from self._mapping(mapped)
        for position in step.waits:
            name = printable(self.plan.steps[position].name, _LONGEST)
            yield f"{operation.stream}.wait_for_event(done[{position}])  # {name}"
        for call in calls:
            assert step.kernel is not None
            yield _call(step, step.kernel, call)
        if step.source is not None and step.target is not None:
            yield _copy(step.source, step.target, step.bytes, operation.stream)
        yield f"done[{i}] = mark({operation.stream})"

    def _carried(self) -> Iterator[str]:
        """Return the code that adds up the gradients that a round leaves on the host."""
        for load in self.plan.final:
            piece = f"host[{load.place.offset}:{load.place.offset + load.bytes}]"
            yield f'    carry("{load.tensor}", {load.begin}, {self.rebuilt.tensors[load.tensor]}, {piece})'

    def _gradients(self) -> Iterator[str]:
        """Return the place of each gradient at the end of an iteration, in the order of the layers.

        What a steady state carries follows.
        """
        for name, (place, size) in self.plan.outside.items():
            if name.startswith("dW("):
                yield f'gradients["{name[3:-1]}"] = fetch({_address(place)}, {size})'
        for name in dict.fromkeys(load.tensor for load in self.plan.final):
            yield f'gradients["{name[3:-1]}"] = carried["{name}"]'
        for mapped in self.plan.last_maps:
            yield from self._mapping(mapped)
        for name in dict.fromkeys(load.tensor for load in self.plan.ends):
            parts = sorted(
                (load for load in self.plan.ends if load.tensor == name), key=lambda one: one.begin
            )
            yield f'gradients["{name}"] = np.concatenate([{", ".join(map(_fetched, parts))}])'
        for name, (place, size) in self.plan.outside.items():
            if name.startswith("losses("):
                yield f"losses = losses + fetch({_address(place)}, {size})"


def _require_algorithm(task: str, kernel: Kernel) -> None:
    """Refuse an algorithm that scripts do not have; `calls_of` has refused those of convolutions."""
    if provider_of(kernel.algorithm) != "cudnn":
        raise PebblerError(
            f"task '{task}' runs a plan of cudnn-frontend, which a script has not; solve with algorithms of "
            "cuDNN"
        )
    if convolution_of(kernel) is None and kernel.algorithm not in PLAIN:
        raise PebblerError(
            f"task '{task}' runs '{kernel.algorithm}', which is no algorithm of it; there are "
            f"{' and '.join(PLAIN)}"
        )


def _plain(text: str) -> str:
    """Return a text without characters that could end a string in the script."""
    return re.sub(r"[^ -~]|[\"\\]", "?", text[:_LONGEST])


def _section(template: str, name: str, kept: bool) -> str:
    """Keep a section of the template, or remove it; it lies between `# <NAME` and `# NAME>`."""
    pattern = rf"^# <{name}\n(.*?)^# {name}>\n"
    return re.sub(pattern, r"\1" if kept else "", template, flags=re.MULTILINE | re.DOTALL)


def _kernels(used: set[str]) -> str:
    """Return the source without unused kernels; each of its paragraphs has one kernel."""
    paragraphs = source().split("\n\n")
    names = [re.search(r"^KERNEL\((\w+)", paragraph, re.MULTILINE) for paragraph in paragraphs]
    return "\n\n".join(
        paragraph
        for paragraph, name in zip(paragraphs, names, strict=True)
        if name is None or name[1] in used
    ).strip()


def _address(place: Place) -> str:
    area = place.area if place.area in ("pool", "resident") else f'area["{place.area}"]'
    if place.offset == 0:
        return area
    return f"{area} {'-' if place.offset < 0 else '+'} {abs(place.offset)}"


def _copy(begin: Place, end: Place, size: int, stream: str) -> str:
    if end.area == "host":
        piece = f"host[{end.offset}:{end.offset + size}]"
        return f"drv.memcpy_dtoh_async({piece}, {_address(begin)}, {stream})"
    if begin.area == "host":
        piece = f"host[{begin.offset}:{begin.offset + size}]"
        return f"drv.memcpy_htod_async({_address(end)}, {piece}, {stream})"
    return f"drv.memcpy_dtod_async({_address(end)}, {_address(begin)}, {size}, {stream})"


def _fetched(load: Load) -> str:
    """Return the code that reads numbers from the device or the host."""
    if load.place.area == "host":
        return f"host[{load.place.offset}:{load.place.offset + load.bytes}].view(np.float32)"
    return f"fetch({_address(load.place)}, {load.bytes})"


def _argument(step: Step, argument: Argument) -> str:
    if isinstance(argument, Operand):
        area, offset = step.operands[argument.word]
        text = _address(Place(area, offset + argument.offset))
        return f"{text} + first * {argument.per_image}" if argument.per_image else text
    if isinstance(argument, First):
        return f"first * {argument.per_image}"
    if isinstance(argument, Scratch):
        return f"scratch + {argument.offset}" if argument.offset else "scratch"
    return "0" if argument is None else repr(argument)


def _call(step: Step, kernel: Kernel, call: Call) -> str:
    """Return one call, with its operands named by their words if there are few."""
    if isinstance(call, Own):
        arguments = ", ".join(_argument(step, a) for a in call.arguments)
        return f'own("{call.name}", ({call.blocks}, {call.rows}), {arguments})'
    pairs = zip(
        ("x", "w", "y") if isinstance(call, Convolution) else ("a", "b", "c"), call.operands, strict=True
    )
    operands = ", ".join(f"{letter}={_argument(step, operand)}" for letter, operand in pairs)
    adds = ", adds=True" if call.adds else ""
    if isinstance(call, Product):
        return f"multiply({call.transpose}, {call.sizes}, {call.leading}, {operands}{adds})"
    space = ""
    if "workspace" in step.operands:
        space = f", workspace=({_address(step.operands['workspace'])}, {kernel.workspace_bytes})"
    number = algorithm_number(call.which, call.algorithm)
    return f'conv["{kernel.layer.name}"].{call.which}({number}, {operands}{space}{adds})'
