"""The record of a training step: its operators in order, the storages that they touch, its inputs by name.

A storage is a piece of memory; tensors that are views of each other share one. `StepRecord` holds no memory
of the user's but the values of constants, so the step can run again anywhere: `perform` runs one operator on
given tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .scalars import Formula, Guard, ScalarInput, inputs_of

Role = Literal["parameter", "buffer", "state", "input", "gradient", "data", "constant"]
Phase = Literal["forward", "backward", "clip", "optimizer"]
Kind = Literal["task", "view", "allocation", "host"]
Manner = Literal["out", "in place", "copied", "none"]

_LETTERS = {"parameter": "W", "buffer": "B", "state": "S", "input": "X"}


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor that a step finds: one of the module's, of the optimizer's, or an input.

    Attributes
    ----------
    role
        ``parameter``, ``buffer``, ``state`` or ``input``.
    name
        As the module names the parameter or buffer, first where it has several names; of a state, its
        parameter; of an input, its position as text.
    key
        Of a state, what the optimizer keeps it under.
    """

    role: Role
    name: str
    key: str = ""

    def __str__(self) -> str:
        return f"{_LETTERS[self.role]}({' '.join(filter(None, (self.name, self.key)))})"


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor: where it lies in which storage.

    Attributes
    ----------
    storage
        Index into the record's storages.
    dtype
        Of torch.
    size, stride, offset
        In elements; the offset from the begin of the storage.
    """

    storage: int
    dtype: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class StepStorage:
    """A piece of memory.

    Attributes
    ----------
    name
        Unique within the record.
    bytes
        Size; may be 0.
    role
        What it holds. A gradient is that of a parameter; data and gradients are made and used within the
        step.
    on_host
        Whether it is the host's by torch's own choice: a number in a state, such as a count of steps;
        operators that touch nothing else are of kind ``host``. In a step on a GPU also a single number that
        an operator of the GPU takes from the host, or leaves there, such as a seed.
    values
        Of a constant, its bytes (a tensor of uint8); else None.
    """

    name: str
    bytes: int
    role: Role
    on_host: bool = False
    values: Any = None


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers of an operator, as a relation between states of the generator.

    State 0 is that in which the step begins; every other one is left by an operator. An operator that runs
    again takes its numbers from the state `before` again.

    Attributes
    ----------
    before, after
        Numbers of the states in which the operator finds and leaves the generator.
    """

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class OutForm:
    """The overload of an operator that writes its results where they are wanted.

    Attributes
    ----------
    overload
        Of torch, or a function that copies; a kernel of its own on the device, not one that computes and
        copies.
    names
        Keywords of the results, in order.
    """

    overload: Any
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepOperator:
    """One call of an operator below autograd.

    Attributes
    ----------
    name
        Unique within the record: phase, module and operator, ``FP(layer1.0.conv1 convolution)``; in the
        optimizer, the parameter in place of the module, ``UP(layer1.0.conv1.weight addcdiv_)``.
    module, module_kind
        The module in whose forward pass it was called, or that it is the backward pass of, or whose parameter
        it updates, and its class; ``step`` outside modules.
    phase
        ``forward``; ``backward``, with what checkpoints compute again; ``clip``: between backward pass and
        optimizer; ``optimizer``.
    kind
        ``task``: it computes. ``view``: its results lie in memory of its operands, and nothing is launched.
        ``allocation``: it returns memory whose values do not matter. ``host``: it touches numbers on the host
        only, and the host runs it before the step's first task.
    overload
        The operator (``OpOverload`` of torch).
    args, kwargs
        What it was called with. A `Reference` stands for a tensor and an expression of `scalars` for a number
        that depends on the step's inputs.
    results
        What it returned, with references for tensors.
    reads, outputs, updates
        Disjoint sets of storages by index: read; written for the first time; read and rewritten.
    hidden
        Those that it rewrites though its schema does not say so, such as batch norm's running statistics.
        They were found by comparing the bytes of all operands before and after.
    idle
        Those of `hidden` that its results do not depend on, as it turned out: batch norm's running statistics
        while it trains. The operator may run again if that leaves them alone.
    draw
        Where it takes random numbers from; None: it takes none.
    grad_mode
        Whether autograd was on. Some kernels ask: oneDNN's recurrent layers keep what their backward pass
        reads.
    manner
        How it can write to given memory, with the same bits. ``out``: by `out`. ``in place``: it only
        rewrites operands. ``copied``: it allocates its results, which are then copied. ``none``: it is no
        task.
    out
        The overload for ``out``; else None.
    scratch_bytes
        Most that it allocates at once in its manner of writing: within the kernel, and for results that are
        copied. It is what torch's allocator gave out while the step was recorded, a multiple of 64 bytes.
    segments_bytes
        On a GPU, where that is much: bytes that torch's allocator needs for it in memory of its own, which
        has a place in the pool. 0: it is given out beside the pool, or the step is one of the CPU.
    duration_ns
        Time of the call, and of the copies: the least of the recorded steps.
    """

    name: str
    module: str
    module_kind: str
    phase: Phase
    kind: Kind
    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    reads: tuple[int, ...]
    outputs: tuple[int, ...]
    updates: tuple[int, ...]
    hidden: tuple[int, ...]
    draw: Draw | None
    grad_mode: bool
    manner: Manner
    out: OutForm | None
    scratch_bytes: int
    duration_ns: int
    segments_bytes: int = 0
    idle: tuple[int, ...] = ()
    then: tuple[StepOperator, ...] = ()

    @property
    def calls(self) -> tuple[StepOperator, ...]:
        """Itself and what follows at once."""
        return (self, *self.then)

    @property
    def may_run_again(self) -> bool:
        """Whether it only makes new data, the same each time: where it draws, from the same state."""
        rewrites = {*self.updates} - {*self.idle}
        return self.kind == "task" and bool(self.outputs) and not rewrites and self.manner != "in place"


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """A training step of a module and its optimizer.

    The step begins and ends without gradients (``grad`` is None), and with all states of the optimizer there.

    Attributes
    ----------
    storages
        Every piece of memory that the step touches, and those of `tensors`.
    operators
        In the order in which they ran.
    tensors
        What the step finds, by name. Its bits are those of tensors with these sizes and strides.
    loss
        The number that the step computes.
    gradients
        Of the trained parameters by name, as they are behind backward pass and clipping; without those that
        the loss does not depend on.
    scalars
        Numbers that the optimizer is asked for when a step begins; expressions in operators refer to them.
    guards
        Choices that follow from them. Where one does not hold, the step is another one.
    groups
        Parameters by name, of every group of the optimizer.
    settings
        Other entries of the optimizer's groups, by group and key, which must be as they were.
    draws
        Number of states of the generator that there are, with state 0.
    last_draw
        The state in which the step leaves the generator.
    created_states
        States that were not there and were made for the record as the optimizer makes them; they are gone
        again.
    training
        Whether each part of the module, by name, was in training mode.
    environment
        What bits depend on beside the record: version of torch, and the device's settings (`Device`).
    eager_peak_bytes
        Most that was alive at once in torch while the step ran, from the weights to scratch that operators
        returned; memory within an operator (`scratch_bytes`) is not in it. On a GPU it is the peak of
        torch's allocator in a step of eager torch, and that memory is.
    device
        Where it was recorded, as torch names it: ``cpu``, ``cuda:0``.
    """

    storages: tuple[StepStorage, ...]
    operators: tuple[StepOperator, ...]
    tensors: Mapping[TensorName, Reference]
    loss: Reference
    gradients: Mapping[str, Reference]
    scalars: tuple[ScalarInput, ...]
    guards: tuple[Guard, ...]
    groups: tuple[frozenset[str], ...]
    settings: Mapping[tuple[int, str], Any]
    draws: int
    last_draw: int
    created_states: tuple[TensorName, ...]
    training: Mapping[str, bool]
    environment: Mapping[str, Any]
    eager_peak_bytes: int
    device: str = "cpu"

    @property
    def inputs(self) -> tuple[Reference, ...]:
        """The inputs, in order."""
        return tuple(at for name, at in self.tensors.items() if name.role == "input")

    @property
    def lasting(self) -> dict[TensorName, Reference]:
        """What outlives a step: parameters, buffers and states."""
        return {name: at for name, at in self.tensors.items() if name.role != "input"}


def scalars_of(operators: Iterable[StepOperator], guards: Iterable[Guard]) -> set[ScalarInput]:
    """Return the numbers of the optimizer that operators and choices follow from."""
    calls = [call for operator in operators for call in operator.calls]
    leaves = [leaf for call in calls for leaf in leaves_of((call.args, call.kwargs))]
    found = [leaf for leaf in leaves if isinstance(leaf, ScalarInput | Formula)]
    return set().union(*map(inputs_of, [*found, *(guard.condition for guard in guards)]))


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of an operator's arguments or results in order; None is one, too.

    They are in tuples, lists and dictionaries. Torch's own trees may have more in them, and take longer.
    """
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in leaves_of(branch)]
    return leaves_of(tuple(tree.values())) if isinstance(tree, dict) else [tree]


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return arguments or results with something else in the place of each leaf."""
    if isinstance(tree, tuple | list):
        return type(tree)([mapped(change, branch) for branch in tree])
    if isinstance(tree, dict):
        return {key: mapped(change, branch) for key, branch in tree.items()}
    return change(tree)
