"""The record of a training step as a file: JSON with operators by name, and no code.

The classes mirror the file key by key (format ``pebbler/training-step/1``, docs/formats.md). In arguments and
results, what JSON has no word for is an object with one key that names its type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from ..errors import FormatError
from ..figures import Natural, shown
from ..files import read_document, write_document
from .torch_step.calls import out_form
from .torch_step.devices import device_of
from .torch_step.record import (
    Draw,
    Kind,
    Manner,
    Phase,
    Reference,
    Role,
    StepOperator,
    StepRecord,
    StepStorage,
    TensorName,
    leaves_of,
    scalars_of,
)
from .torch_step.scalars import SYMBOLS, Formula, Guard, ScalarInput

Value = Any
"""A number, a text, null, a list, or an object with one key, which says what its content is."""

Data = bytes
"""What is written in base 64."""

_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
"""Devices among the arguments of operators."""

_TORCH = {"dtype": torch.dtype, "device": torch.device, "layout": torch.layout, "memory": torch.memory_format}


class StorageEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `StepStorage`; `values` are the bytes of a constant, in base 64."""

    name: str
    bytes: Natural
    role: Role
    on_host: bool = False
    values: Data | None = None


class OperatorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `StepOperator`; `overload` is the name that torch has for it."""

    name: str
    module: str
    module_kind: str
    phase: Phase
    kind: Kind
    overload: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    results: Value
    reads: tuple[Natural, ...]
    outputs: tuple[Natural, ...]
    updates: tuple[Natural, ...]
    hidden: tuple[Natural, ...]
    draw: tuple[Natural, Natural] | None
    grad_mode: bool
    manner: Manner
    scratch_bytes: Natural
    duration_ns: Natural
    segments_bytes: Natural = 0
    idle: tuple[Natural, ...] = ()
    then: tuple[OperatorEntry, ...] = ()


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that the step finds, by its `TensorName`."""

    role: Role
    name: str
    key: str
    at: Value


class GuardEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `Guard`."""

    condition: Value
    outcome: bool


class SettingEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of one of the optimizer's groups that must be as it was."""

    group: Natural
    key: str
    value: Value


class RecordFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `StepRecord`."""

    format: Literal["pebbler/training-step/1"] = "pebbler/training-step/1"
    device: str = "cpu"
    environment: dict[str, str | int | bool]
    training: dict[str, bool]
    eager_peak_bytes: Natural
    loss: Value
    draws: Natural
    last_draw: Natural
    tensors: tuple[TensorEntry, ...]
    gradients: dict[str, Value]
    scalars: tuple[Value, ...]
    guards: tuple[GuardEntry, ...]
    groups: tuple[tuple[str, ...], ...]
    settings: tuple[SettingEntry, ...]
    created_states: tuple[tuple[Role, str, str], ...]
    storages: tuple[StorageEntry, ...]
    operators: tuple[OperatorEntry, ...]


def write_record(record: StepRecord, path: str | Path) -> str:
    """Write the record of a step and return the SHA-256 of the file's bytes.

    Raises
    ------
    PebblerError
        When the place cannot be written, or the record has something that no file can hold.
    """
    document = RecordFile(
        device=record.device,
        environment=dict(record.environment),
        training=dict(record.training),
        eager_peak_bytes=record.eager_peak_bytes,
        loss=_written(record.loss),
        draws=record.draws,
        last_draw=record.last_draw,
        tensors=tuple(
            TensorEntry(role=name.role, name=name.name, key=name.key, at=_written(at))
            for name, at in record.tensors.items()
        ),
        gradients={name: _written(at) for name, at in record.gradients.items()},
        scalars=tuple(map(_written, record.scalars)),
        guards=tuple(
            GuardEntry(condition=_written(guard.condition), outcome=guard.outcome) for guard in record.guards
        ),
        groups=tuple(tuple(sorted(group)) for group in record.groups),
        settings=tuple(
            SettingEntry(group=group, key=key, value=_written(value))
            for (group, key), value in record.settings.items()
        ),
        created_states=tuple((name.role, name.name, name.key) for name in record.created_states),
        storages=tuple(
            StorageEntry(
                name=storage.name,
                bytes=storage.bytes,
                role=storage.role,
                on_host=storage.on_host,
                values=None if storage.values is None else storage.values.numpy().tobytes(),
            )
            for storage in record.storages
        ),
        operators=tuple(map(_operator_entry, record.operators)),
    )
    return write_document(document, path)


def read_record(path: str | Path) -> StepRecord:
    """Read the record of a step.

    Raises
    ------
    PebblerError
        When the file cannot be read, breaks a rule of the format, or is of another version of torch; the
        sentence names the place.
    """
    document = read_document(path, RecordFile, "the record of a training step")
    try:
        return _Reader(document).record()
    except RecursionError:
        raise FormatError(f"{path} is not the record of a training step: it is nested too deeply") from None
    except FormatError as error:
        raise FormatError(f"{path} is not the record of a training step: {error}") from None


# --- what JSON has no word for ------------------------------------------------------------------------


def _written(value: Any) -> Value:
    """Return a value of a record as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(value)}
    if type(value) is list:
        return [_written(one) for one in value]
    if isinstance(value, Reference):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [value.storage, dtype, [*value.size], [*value.stride], value.offset]}
    if isinstance(value, tuple):
        return {"tuple": [_written(one) for one in value]}
    if isinstance(value, ScalarInput):
        return {"input": [value.owner, value.key, value.index]}
    if isinstance(value, Formula):
        return {"formula": [value.symbol, *map(_written, value.operands)]}
    for word, kind in _TORCH.items():
        if isinstance(value, kind):
            return {word: str(value).removeprefix("torch.")}
    raise FormatError(f"the step has a {type(value).__name__} among its numbers, which no file can hold")


def _operator_entry(operator: StepOperator) -> OperatorEntry:
    return OperatorEntry(
        name=operator.name,
        module=operator.module,
        module_kind=operator.module_kind,
        phase=operator.phase,
        kind=operator.kind,
        overload=_name_of(operator.overload),
        args=tuple(map(_written, operator.args)),
        kwargs={name: _written(value) for name, value in operator.kwargs.items()},
        results=_written(operator.results),
        reads=operator.reads,
        outputs=operator.outputs,
        updates=operator.updates,
        hidden=operator.hidden,
        draw=None if operator.draw is None else (operator.draw.before, operator.draw.after),
        grad_mode=operator.grad_mode,
        manner=operator.manner,
        scratch_bytes=operator.scratch_bytes,
        segments_bytes=operator.segments_bytes,
        idle=operator.idle,
        then=tuple(map(_operator_entry, operator.then)),
        duration_ns=operator.duration_ns,
    )


def _name_of(overload: Any) -> str:
    return f"{overload._schema.name}.{overload._overloadname}"


# --- reading ------------------------------------------------------------------------------------------


class _Reader:
    """Makes the record that a document describes, and refuses whatever would not fit together."""

    def __init__(self, document: RecordFile) -> None:
        self._document = document
        self._storages = document.storages
        self._overloads: dict[str, Any] = {}
        self._key = ""

    def record(self) -> StepRecord:
        """Return the record."""
        document = self._document
        if (version := document.environment.get("torch")) != str(torch.__version__):
            raise FormatError(
                f"it was recorded with torch {version}, and this is {torch.__version__}, which may have "
                "other operators; plan the step anew"
            )
        self._key = device_of(document.device).key
        at = self._reference
        scalars = self._scalars()
        found = StepRecord(
            storages=tuple(self._storage(s, entry) for s, entry in enumerate(self._storages)),
            operators=tuple(self._operator(k, entry) for k, entry in enumerate(document.operators)),
            tensors={
                TensorName(entry.role, entry.name, entry.key): at(f"tensors[{n}]", entry.at)
                for n, entry in enumerate(document.tensors)
            },
            loss=at("loss", document.loss),
            gradients={name: at(f"gradients.{shown(name)}", one) for name, one in document.gradients.items()},
            scalars=scalars,
            guards=tuple(self._guard(f"guards[{n}]", entry) for n, entry in enumerate(document.guards)),
            groups=tuple(map(frozenset, document.groups)),
            settings={
                (entry.group, entry.key): self._read(f"settings[{n}]", entry.value)
                for n, entry in enumerate(document.settings)
            },
            draws=document.draws,
            last_draw=self._draw("last_draw", document.last_draw),
            created_states=tuple(TensorName(*name) for name in document.created_states),
            training=document.training,
            environment=document.environment,
            eager_peak_bytes=document.eager_peak_bytes,
            device=document.device,
        )
        if unknown := scalars_of(found.operators, found.guards) - {*scalars}:
            raise FormatError(f"scalars: {min(map(str, unknown))} is used and not listed")
        return found

    def _storage(self, s: int, entry: StorageEntry) -> StepStorage:
        values = None
        if (entry.values is not None) != (entry.role == "constant"):
            raise FormatError(f"storages[{s}]: a constant has 'values', and nothing else has them")
        if entry.values is not None:
            if len(entry.values) != entry.bytes:
                raise FormatError(f"storages[{s}]: it has {len(entry.values)} bytes, and says {entry.bytes}")
            values = torch.empty(entry.bytes, dtype=torch.uint8, device="cpu")
            values.numpy()[:] = bytearray(entry.values)
        return StepStorage(entry.name, entry.bytes, entry.role, entry.on_host, values)

    def _operator(self, k: int, entry: OperatorEntry) -> StepOperator:
        where = f"operators[{k}] ({shown(entry.name)})"
        args = tuple(self._read(where, value) for value in entry.args)
        kwargs = {name: self._read(where, value) for name, value in entry.kwargs.items()}
        results = self._read(where, entry.results)
        overload = self._overload(where, entry.overload)
        then = tuple(self._operator(k, following) for following in entry.then)
        if any(one.then for one in then):
            raise FormatError(f"{where}: what is in 'then' has no 'then' of its own")
        trees = [(one.args, one.kwargs, one.results) for one in then]
        self._require_touched(where, entry, ((args, kwargs, results), *trees))
        out = out_form(overload, self._key) if entry.manner == "out" else None
        if entry.manner == "out" and out is None:
            raise FormatError(f"{where}: torch has no overload of {entry.overload} that writes to 'out'")
        return StepOperator(
            name=entry.name,
            module=entry.module,
            module_kind=entry.module_kind,
            phase=entry.phase,
            kind=entry.kind,
            overload=overload,
            args=args,
            kwargs=kwargs,
            results=results,
            reads=entry.reads,
            outputs=entry.outputs,
            updates=entry.updates,
            hidden=entry.hidden,
            draw=None if entry.draw is None else Draw(*(self._draw(where, n) for n in entry.draw)),
            grad_mode=entry.grad_mode,
            manner=entry.manner,
            out=out,
            scratch_bytes=entry.scratch_bytes,
            segments_bytes=entry.segments_bytes,
            idle=entry.idle,
            then=then,
            duration_ns=entry.duration_ns,
        )

    def _require_touched(self, where: str, entry: OperatorEntry, trees: tuple[Any, ...]) -> None:
        """Refuse an operator whose tensors lie in other storages than those that it says it touches."""
        listed = (*entry.reads, *entry.outputs, *entry.updates)
        found = {leaf.storage for leaf in leaves_of(trees) if isinstance(leaf, Reference)}
        fits = {*listed} == found if entry.kind in ("task", "host") else {*listed} <= found
        unseen = {*entry.idle} <= {*entry.hidden} <= found
        if not fits or len({*listed}) < len(listed) or not unseen:
            raise FormatError(
                f"{where}: reads, outputs and updates are not those of its tensors, each in one of them"
            )

    def _overload(self, where: str, name: str) -> Any:
        """Return the operator of torch of a name."""
        if name not in self._overloads:
            path, _, overload = name.rpartition(".")
            space, _, packet = path.rpartition("::")
            found: Any = torch.ops
            for part in (space, packet, overload):
                found = getattr(found, part, None) if part.isidentifier() else None
            if not isinstance(found, torch._ops.OpOverload):
                raise FormatError(
                    f"{where}: there is no operator {shown(name)} here; import the package that it is from, "
                    "or plan the step anew"
                )
            self._overloads[name] = found
        return self._overloads[name]

    def _draw(self, where: str, number: int) -> int:
        if number >= self._document.draws:
            raise FormatError(f"{where}: there is no state {number} of the generator")
        return number

    def _guard(self, where: str, entry: GuardEntry) -> Guard:
        condition = self._read(where, entry.condition)
        if not isinstance(condition, Formula):
            raise FormatError(f"{where}: its condition is no formula")
        return Guard(condition, entry.outcome)

    def _scalars(self) -> tuple[ScalarInput, ...]:
        found = tuple(self._read(f"scalars[{n}]", one) for n, one in enumerate(self._document.scalars))
        if not all(isinstance(one, ScalarInput) for one in found):
            raise FormatError("scalars: each of them is an input")
        return found

    # --- values ---------------------------------------------------------------------------------------

    def _read(self, where: str, value: Value) -> Any:
        """Return what a value stands for."""
        if isinstance(value, list):
            return [self._read(where, one) for one in value]
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            raise FormatError(f"{where}: an object among the values has one key, and here are {len(value)}")
        [(word, content)] = value.items()
        if word in _TORCH:
            return _of_torch(where, word, content)
        if word == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        readers: dict[str, Callable[[str, Any], Any]] = {
            "tuple": lambda where, given: tuple(self._read(where, one) for one in _listed(where, given)),
            "tensor": lambda where, given: self._reference(where, {"tensor": given}),
            "input": _scalar,
            "formula": self._formula,
        }
        if word not in readers:
            raise FormatError(f"{where}: {shown(word)} is no kind of value")
        return readers[word](where, content)

    def _reference(self, where: str, value: Value) -> Reference:
        """Return a tensor, which lies within its storage."""
        try:
            content = value["tensor"]
            storage, name, size, stride, offset = msgspec.convert(
                content, tuple[Natural, str, tuple[Natural, ...], tuple[Natural, ...], Natural]
            )
        except (msgspec.ValidationError, KeyError, TypeError):
            raise FormatError(f"{where}: it has no tensor where there is to be one") from None
        dtype = _of_torch(where, "dtype", name)
        if storage >= len(self._storages):
            raise FormatError(f"{where}: there is no storage {storage}")
        last = sum((count - 1) * step for count, step in zip(size, stride, strict=False))
        end = (offset + last + 1) * dtype.itemsize if 0 not in size else 0
        if len(size) != len(stride) or end > self._storages[storage].bytes:
            raise FormatError(f"{where}: a tensor does not lie within storage {storage}")
        return Reference(storage, dtype, size, stride, offset)

    def _formula(self, where: str, content: Any) -> Formula:
        symbol, *given = _listed(where, content) or [None]
        operands = tuple(self._read(where, one) for one in given)
        fits = all(type(one) in (float, ScalarInput, Formula) for one in operands)
        if symbol not in SYMBOLS or not fits or len(operands) != (1 if symbol == "negative" else 2):
            raise FormatError(f"{where}: it has a formula that is none")
        return Formula(symbol, operands)


def _scalar(where: str, content: Any) -> ScalarInput:
    try:
        return ScalarInput(*msgspec.convert(content, tuple[Natural | str, str, Natural | None]))
    except msgspec.ValidationError:
        raise FormatError(f"{where}: an input is not an owner, a key and an index") from None


def _listed(where: str, content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise FormatError(f"{where}: there is to be a list")
    return content


def _of_torch(where: str, word: str, name: Any) -> Any:
    """Return torch's constant of a name."""
    found = None
    if isinstance(name, str) and word == "device":
        found = torch.device(name) if _DEVICE.fullmatch(name) else None
    elif isinstance(name, str) and name.isidentifier():
        found = getattr(torch, name, None)
    if not isinstance(found, _TORCH[word]):
        raise FormatError(f"{where}: torch has no {word} {shown(str(name))}")
    return found
