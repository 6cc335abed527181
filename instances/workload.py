"""The workload: a network, its batch and a device; it gives the instance for any sub-batch and budget."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from .arguments import quoted, require_kind, require_one_of, require_whole
from .devices.device import Device, find_device, whole_ns
from .devices.roofline import (
    COST_MODEL,
    Convolution,
    Pass,
    convolution_algorithms,
    dense_algorithms,
    memory_bound_algorithms,
    product_algorithms,
)
from .errors import FormatError, PebblerError
from .figures import is_text, text_of
from .instance import Algorithm, Block, Instance, Slowdown, Task
from .memory import least_budget, parse_host_memory, require_budget, with_budget, with_host_memory
from .networks.network import Layer, Network
from .networks.taskgraph import FLOAT_BYTES, DataBlock, Graph, LayerTask, TaskGraph, task_graph
from .networks.zoo import find_network
from .origin import VALUE_BYTES, DataPrecision, LayerTasks, Optimizer, Origin
from .profile import Profile
from .transforms import parse_link, parse_shared_link, with_link, with_shared_link
from .units import LARGEST, parse_rate

BATCH_NORM_NOTE = "batch norm takes its statistics over the sub-batch, so results differ from the whole batch"

Side = Literal["device", "host", "choose"]
"""Where an optimizer computes; ``choose``: where a schedule says."""

HOST_CALL_NS = 10_000
"""Fixed time of a step of an optimizer on the host, whose threads start and end; an assumption."""

_TRANSPOSED: dict[Pass, Pass] = {"FP": "BP1", "BP1": "FP", "BP2": "BP2"}


@dataclass(frozen=True, slots=True)
class Workload:
    """One training iteration of a network with a batch on a device.

    Attributes
    ----------
    network
        A name or a specification as `find_network` takes it, or a `Network` of one's own, as `NetworkBuilder`
        makes it.
    batch
        Images of an iteration.
    device
        Name as `find_device` takes it; with a profile, the device of that.
    graph
        ``executable``: what backward really needs; ``paper``: the papers' accounting.
    engines
        ``duplex``: one copy stream per direction; ``single``: one for both.
    weights_as_blocks
        Weights and their gradients are blocks instead of resident for ever (moDNN, TPDS 2019, Fig. 9).
    steady
        The iteration is one of many: it finds the weights, and what the optimizer keeps, where the one before
        has left them. They are blocks, too.
    optimizer
        Of a steady state, what updates the weights in the iteration: ``none``, ``sgd`` (the default),
        ``momentum``, ``adam`` or ``adamw``.
    profile
        Measured times and workspaces, in place of the cost model.
    link
        Of copies to and from the host, in place of the device's, as `with_link` takes it.
    cudnn
        Version of cuDNN beside the device, as `find_device` takes it.
    host_memory
        Host memory for copies: bytes, or a text such as ``64GiB``; None: it never ends.
    link_both
        What copies in both directions get together, as `with_shared_link` takes it; ``measured``: what the
        profile or the device has; None: they know nothing of each other.
    slowdown
        Whether copies slow tasks down as the profile has measured it.
    optimizer_on
        Where the optimizer computes: on the ``device``, on the ``host``, or where a schedule says
        (``choose``).
    host_bandwidth
        What a step of the optimizer on the host reads and writes, such as ``100GB/s``; None: what the profile
        or the device has.
    precision
        Numbers of weights, feature maps and gradients: ``fp32`` or ``bf16``. Statistics, and what an
        optimizer keeps, are in single precision; with ``bf16`` that has a copy of the weights, too.

    Raises
    ------
    PebblerError
        When the batch is not positive, another argument is wrong, the profile is of something else or lacks
        what is asked of it, or there is a profile and a version of cuDNN, or an optimizer without a steady
        state.
    """

    network: str | Network
    batch: int
    device: str
    graph: Graph = "executable"
    engines: Literal["duplex", "single"] = "duplex"
    weights_as_blocks: bool = False
    steady: bool = False
    optimizer: Optimizer | None = None
    profile: Profile | None = None
    link: str | None = None
    cudnn: str | None = None
    host_memory: int | str | None = None
    link_both: int | str | None = None
    slowdown: bool = False
    optimizer_on: Side = "device"
    host_bandwidth: str | None = None
    precision: DataPrecision = "fp32"

    def __post_init__(self) -> None:
        advice = "give a name, such as 'vgg16', or a Network, which NetworkBuilder makes"
        require_kind("network", self.network, (str, Network), advice)
        if not is_text(self.name):
            raise PebblerError(f"the network's name is {quoted(self.name)}; give one line of text")
        require_whole("batch", self.batch, 1)
        require_kind("device", self.device, str, "give a name, such as 'k40', or a file of your own (.toml)")
        require_one_of("graph", self.graph, get_args(Graph))
        require_one_of("engines", self.engines, ("duplex", "single"))
        require_kind("weights_as_blocks", self.weights_as_blocks, bool, "give True or False")
        require_one_of("optimizer_on", self.optimizer_on, get_args(Side))
        require_one_of("precision", self.precision, get_args(DataPrecision))
        self._require_steady()
        if self.link is not None:
            require_kind("link", self.link, str, "give a text, such as '12GB/s' or '25GB/s,20GB/s'")
            parse_link(self.link)
        if self.cudnn is not None:
            require_kind("cudnn", self.cudnn, str, "give a version, such as '5.1'")
        if self.profile is not None:
            require_kind("profile", self.profile, Profile, "give what read_profile returns")
            if self.cudnn is not None:
                raise PebblerError("a profile was measured with a library of its own; leave 'cudnn' out")
            if self.precision != "fp32":
                raise PebblerError("a profile is of single precision; leave 'precision' out, or the profile")
            measured = (self.profile.network, self.profile.machine.device, self.profile.graph)
            for word, asked, got in zip(
                ("network", "device", "graph"), (self.name, self.device, self.graph), measured, strict=True
            ):
                if asked != got:
                    raise PebblerError(
                        f"the profile is of the {word} '{got}', not of '{asked}'; give its own"
                    )
        self._require_machine()

    @property
    def name(self) -> str:
        """What the network is called: its specification, or the name of one's own."""
        return self.network if isinstance(self.network, str) else self.network.name

    def _require_steady(self) -> None:
        require_kind("steady", self.steady, bool, "give True or False")
        if self.optimizer is not None:
            require_one_of("optimizer", self.optimizer, get_args(Optimizer))
            if not self.steady:
                raise PebblerError(
                    f"the optimizer '{self.optimizer}' updates the weights of a steady state only; ask for "
                    "one (steady=True, or --steady), or leave it out"
                )
        self._require_updates()

    def _require_updates(self) -> None:
        """Refuse an optimizer whose times are unknown, and a place for one where there is none."""
        updates = self.updated_by not in (None, "none")
        if self.profile is not None and updates and self.optimizer_on != "host":
            raise PebblerError(
                "a profile has no times of the weights' updates on the device; give a device, the optimizer "
                "'none', or let it run on the host (optimizer_on, or --optimizer-on)"
            )
        if self.optimizer_on != "device" and not updates:
            raise PebblerError(
                f"there is no optimizer that could run elsewhere than on the device (optimizer_on is "
                f"'{self.optimizer_on}'); ask for a steady state with one (steady=True, or --steady)"
            )

    def _require_machine(self) -> None:
        """Refuse what is wrong with the host, the link, or what copies take of the speed of tasks."""
        if self.host_memory is not None:
            parse_host_memory(self.host_memory)
        if self.host_bandwidth is not None:
            require_kind("host_bandwidth", self.host_bandwidth, str, "give a text, such as '100GB/s'")
            parse_rate(self.host_bandwidth.removesuffix("/s"))
            if self.optimizer_on == "device":
                raise PebblerError(
                    "host_bandwidth is for an optimizer on the host, and this one runs on the device; leave "
                    "it out, or give optimizer_on (--optimizer-on host or choose)"
                )
        if self.link_both is not None:
            self.shared_link()
        require_kind("slowdown", self.slowdown, bool, "give True or False")
        if self.slowdown and (self.profile is None or self.profile.slowdown_ppm is None):
            raise PebblerError(
                "how much copies slow tasks down has to be measured; give a profile that has slowdown_ppm, "
                "or leave slowdown out"
            )

    def shared_link(self) -> int:
        """Return what copies in both directions get together, in bytes a second.

        Raises
        ------
        PebblerError
            When `link_both` is no bandwidth, or is ``measured`` and nothing has measured it.
        """
        assert self.link_both is not None
        if self.link_both != "measured":
            return parse_shared_link(self.link_both)
        if self.link is not None:
            raise PebblerError(
                "a link of one's own has nothing measured; give link_both (--link-both) as a bandwidth"
            )
        costs = find_device(self.device) if self.profile is None else self.profile
        both = costs.both_bandwidth
        whose = costs.name if isinstance(costs, Device) else "the profile"
        if both is None:
            raise PebblerError(
                f"what copies in both directions get together was not measured for {whose}; give link_both "
                "(--link-both) as a bandwidth, such as '36GB/s'"
            )
        return int(both)

    def host_rate(self) -> float:
        """Return the bytes a second that a step of the optimizer on the host reads and writes.

        Raises
        ------
        PebblerError
            When there is a profile that has not measured it, and no `host_bandwidth`.
        """
        if self.host_bandwidth is not None:
            return parse_rate(self.host_bandwidth.removesuffix("/s"))
        if self.profile is None:
            return find_device(self.device).host_bandwidth
        if self.profile.host_bandwidth is None:
            raise PebblerError(
                "the profile has no time of an optimizer on the host; give host_bandwidth "
                "(--host-bandwidth), such as '100GB/s'"
            )
        return self.profile.host_bandwidth

    @property
    def updated_by(self) -> Optimizer | None:
        """What updates the weights of a steady state; None where there is none."""
        return (self.optimizer or "sgd") if self.steady else None

    def instance(
        self,
        budget: int | str,
        sub_batch: int | None = None,
        *,
        rounds: int = 1,
        check_budget: bool = True,
    ) -> Instance:
        """Return the instance of one round.

        Parameters
        ----------
        budget
            Bytes, or a text such as ``12GiB``; ``50%`` and ``1.05xMmin`` refer to the peak and the least
            budget at this sub-batch.
        sub_batch
            Images of a round; by default the batch.
        rounds
            How often the round is executed.
        check_budget
            Whether to refuse a budget under the least one.

        Raises
        ------
        PebblerError
            When the network, the device, the sub-batch or the budget is wrong.
        BudgetError
            When the budget is under the minimum of the instance.
        """
        sub_batch = self.batch if sub_batch is None else sub_batch
        self._require_sub_batch(sub_batch)
        if self.steady and rounds != 1:
            raise self._several_rounds()
        instance = self.round(sub_batch, rounds)
        if self.link is not None:
            instance = with_link(instance, self.link)
        if self.link_both is not None:
            instance = with_shared_link(instance, self.shared_link())
        if self.host_memory is not None:
            instance = with_host_memory(instance, self.host_memory)
        instance = with_budget(instance, budget)
        if check_budget:
            require_budget(instance)
        return instance

    def described(self) -> Network:
        """Return the network.

        Raises
        ------
        PebblerError
            When there is none of this name.
        """
        return find_network(self.network) if isinstance(self.network, str) else self.network

    def round(self, sub_batch: int, rounds: int) -> Instance:
        """Return the instance of one round at a valid sub-batch, under a budget of 0."""
        network = self.described()
        costs = find_device(self.device, self.cudnn) if self.profile is None else self.profile
        graph = task_graph(
            network, sub_batch, self.graph, self.weights_as_blocks, self.updated_by, self.precision
        )
        try:
            algorithms = [self._algorithms(graph, task, costs) for task in graph.tasks]
        except FormatError:  # of an algorithm with a larger figure than there can be in a file
            raise _too_large(graph) from None
        _require_figures(graph, algorithms, costs)
        return Instance(
            name=f"{_slug(self.name)}-b{sub_batch}",
            engines=self.engines,
            budget_bytes=0,
            resident_bytes=graph.resident_bytes,
            rounds=rounds,
            blocks=tuple(_block(block, costs) for block in graph.blocks),
            tasks=tuple(
                Task(
                    name=task.name,
                    inputs=task.inputs,
                    outputs=task.outputs,
                    updates=task.updates,
                    algorithms=ways,
                    slowdown_ppm=self._slowdown(ways),
                )
                for task, ways in zip(graph.tasks, algorithms, strict=True)
            ),
            meta=_meta(network, costs),
            origin=_origin(self, network, graph, costs),
            layers=_layers(network, graph),
        )

    def _algorithms(
        self, graph: TaskGraph, task: LayerTask, costs: Device | Profile
    ) -> tuple[Algorithm, ...]:
        """Return the algorithms of a task, by the cost model or by the profile; an update's, by its side."""
        if task.role != "OPT" or self.optimizer_on == "device":
            return _device_algorithms(graph, task, costs)
        duration = HOST_CALL_NS + whole_ns(update_bytes(graph, task) / self.host_rate())
        on_host = Algorithm(name="kernel", duration_ns=duration, workspace_bytes=0, on="host")
        if self.optimizer_on == "host":
            return (on_host,)
        return (*_device_algorithms(graph, task, costs), on_host)

    def _slowdown(self, ways: tuple[Algorithm, ...]) -> Slowdown | msgspec.UnsetType:
        """Return what copies take of the speed of a task, which is nothing where it runs on the host only."""
        if not self.slowdown or all(way.on == "host" for way in ways):
            return msgspec.UNSET
        assert self.profile is not None
        assert self.profile.slowdown_ppm is not None
        return self.profile.slowdown_ppm

    def minimum_budget(self, sub_batch: int | None = None) -> int:
        """M_min: bytes that every schedule needs at a sub-batch, by default the batch."""
        return least_budget(self.instance(0, sub_batch, check_budget=False))

    def parameter_bytes(self) -> int:
        """Bytes of the network's parameters, without gradients or what an optimizer keeps."""
        return VALUE_BYTES[self.precision] * self.described().parameters

    def floor(self) -> int:
        """M_floor: bytes that every schedule needs at any sub-batch (moDNN, TPDS 2019, eq. 7).

        Raises
        ------
        PebblerError
            When the workload is a steady state, which has no sub-batches.
        """
        return self.minimum_budget(1)

    def rounds(self, sub_batch: int) -> list[tuple[int, int]]:
        """Pairs of sub-batch and number of rounds that make up the batch; a smaller last round comes last."""
        self._require_sub_batch(sub_batch)
        full, rest = divmod(self.batch, sub_batch)
        return [(sub_batch, full)] + ([(rest, 1)] if rest else [])

    def _require_sub_batch(self, sub_batch: int) -> None:
        if type(sub_batch) is not int or not 1 <= sub_batch <= self.batch:
            raise PebblerError(
                f"a sub-batch of {quoted(sub_batch)} is not within 1 and the batch of {self.batch}"
            )
        if self.steady and sub_batch != self.batch:
            raise self._several_rounds()

    def _several_rounds(self) -> PebblerError:
        return PebblerError(
            f"a steady state has one round, the whole batch of {self.batch}, after which the weights are "
            "updated; leave out the sub-batch, or give a smaller batch"
        )


def require_workload(value: object) -> None:
    """Refuse what is no workload."""
    require_kind("workload", value, Workload, "make one with Workload(network, batch, device)")


def _require_figures(
    graph: TaskGraph, algorithms: Sequence[Sequence[Algorithm]], costs: Device | Profile
) -> None:
    """Refuse a round whose files could not be read again: all its bytes, and times one after the other."""
    sizes = [block.bytes for block in graph.blocks]
    workspace = max((algorithm.workspace_bytes for ways in algorithms for algorithm in ways), default=0)
    copies = [costs.copy_ns(size, way) for size in sizes for way in ("offload", "prefetch")]
    slowest = [max(algorithm.duration_ns for algorithm in ways) for ways in algorithms]
    if max(graph.resident_bytes + sum(sizes) + workspace, sum(copies) + sum(slowest)) > LARGEST:
        raise _too_large(graph)


def _too_large(graph: TaskGraph) -> PebblerError:
    return PebblerError(
        f"a round of {graph.batch} images of {graph.network.name} has more than {LARGEST} bytes or "
        "nanoseconds, the largest figure in files; give a smaller batch"
    )


def _slug(spec: str) -> str:
    """Write a specification so that it can be part of a file name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", spec)


def _block(block: DataBlock, costs: Device | Profile) -> Block:
    return Block(
        name=block.name,
        bytes=block.bytes,
        offload_ns=costs.copy_ns(block.bytes, "offload"),
        prefetch_ns=costs.copy_ns(block.bytes, "prefetch"),
        move_ns=costs.move_ns(block.bytes),
        initially=block.initially,
        finally_=block.finally_,
    )


def _device_algorithms(graph: TaskGraph, task: LayerTask, costs: Device | Profile) -> tuple[Algorithm, ...]:
    if isinstance(costs, Profile):
        return costs.task_algorithms(graph.batch, task.name)
    return modelled(graph, task, costs)


def modelled(graph: TaskGraph, task: LayerTask, device: Device) -> tuple[Algorithm, ...]:
    """Return the algorithms of a task by the cost model."""
    layer = task.layer
    again = sum(graph.blocks[d].bytes for d in task.updates)
    if task.role == "OPT":
        return memory_bound_algorithms(device, update_bytes(graph, task))
    if layer.kind.multiplies and task.role in ("FP", "BP1", "BP2"):
        source = graph.network[layer.inputs[0]]
        extra = task.extra_bytes + again
        if layer.kind.operation == "dense":
            inputs, outputs = source.shape.elements, layer.shape.elements
            return dense_algorithms(device, graph.batch, inputs, outputs, task.role, extra, graph.precision)
        if layer.kind.operation == "positionwise":
            rows = graph.batch * layer.shape.positions
            inputs = sum(graph.network[x].shape.channels for x in layer.inputs)
            outputs = layer.shape.channels
            return dense_algorithms(device, rows, inputs, outputs, task.role, extra, graph.precision)
        if layer.kind.operation == "grouped":
            rows = graph.batch * layer.shape.positions // layer.groups
            inputs, outputs = source.shape.channels, layer.shape.channels
            role, precision, groups = task.role, graph.precision, layer.groups
            return dense_algorithms(device, rows, inputs, outputs, role, extra, precision, groups)
        extra += _bias_bytes(graph, task)
        value_bytes = VALUE_BYTES[graph.precision]
        if layer.kind.operation == "convolution":
            direct = convolution_of(graph.batch, layer, source, layer, value_bytes)
            return convolution_algorithms(device, direct, task.role, extra, graph.precision)
        mirrored = convolution_of(graph.batch, layer, layer, source, value_bytes)
        return convolution_algorithms(device, mirrored, _TRANSPOSED[task.role], extra, graph.precision)
    if layer.kind.operation == "lookup":
        return memory_bound_algorithms(device, _embedding_bytes(graph, task))
    moved = _touched_bytes(graph, task) + again + task.extra_bytes
    if layer.kind.operation == "product" and task.role in ("FP", "BP1"):
        work = layer.products * graph.batch
        if task.role == "BP1":
            work = int(work * layer.kind.backward_products)
        results = graph.batch * layer.shape.elements
        return product_algorithms(device, work, results, moved, graph.precision)
    return memory_bound_algorithms(device, moved)


def _touched_bytes(graph: TaskGraph, task: LayerTask) -> int:
    return sum(graph.blocks[d].bytes for d in (*task.inputs, *task.outputs, *task.updates))


def update_bytes(graph: TaskGraph, task: LayerTask) -> int:
    """Bytes that an update of weights reads and writes: the gradient once, all that it updates twice.

    Weights of which an optimizer keeps a copy in single precision are only written.
    """
    read = task.updates if graph.precision == "fp32" else task.updates[1:]
    return sum(graph.blocks[d].bytes for d in read) + _touched_bytes(graph, task)


def _bias_bytes(graph: TaskGraph, task: LayerTask) -> int:
    """Biases of a convolution are added to Y by a kernel of its own, and their gradient sums up dY."""
    layer = task.layer
    channels = graph.network[layer.inputs[0]].shape.channels * layer.shape.channels // layer.groups
    if layer.parameters <= channels * layer.kernel**2:
        return 0
    size = VALUE_BYTES[graph.precision] * graph.batch * layer.shape.elements
    return {"FP": 2 * size, "BP1": 0, "BP2": size}.get(task.role, 0)


def _embedding_bytes(graph: TaskGraph, task: LayerTask) -> int:
    """Only the rows of the table that are asked for move: read and written, in BP2 added to as well."""
    shape = task.layer.shape
    rows = VALUE_BYTES[graph.precision] * graph.batch * shape.elements
    return FLOAT_BYTES * graph.batch * shape.positions + (2 if task.role == "FP" else 3) * rows


def convolution_of(
    batch: int, layer: Layer, source: Layer, target: Layer, value_bytes: int = FLOAT_BYTES
) -> Convolution:
    """Shapes of a layer's convolution, from a layer's output to a layer's output."""
    return Convolution(
        batch=batch,
        in_channels=source.shape.channels,
        out_channels=target.shape.channels,
        in_height=source.shape.height,
        in_width=source.shape.width,
        out_height=target.shape.height,
        out_width=target.shape.width,
        kernel_h=layer.kernel,
        kernel_w=layer.kernel,
        stride=layer.stride,
        pad=layer.pad,
        groups=layer.groups,
        value_bytes=value_bytes,
    )


def _meta(network: Network, costs: Device | Profile) -> dict[str, Any]:
    """Say where the network and the times are from, for people."""
    meta: dict[str, Any] = {"source": network.source}
    if isinstance(costs, Profile):
        meta["measured"] = msgspec.to_builtins(costs.machine)
    return meta


def _origin(workload: Workload, network: Network, graph: TaskGraph, costs: Device | Profile) -> Origin:
    """Say what the instance was made from."""
    return Origin(
        network=workload.name,
        batch=workload.batch,
        sub_batch=graph.batch,
        device=costs.name if isinstance(costs, Device) else costs.machine.device,
        graph=workload.graph,
        cudnn=costs.cudnn if isinstance(costs, Device) else None,
        cost_model="roofline" if isinstance(costs, Device) else "profile",
        cost_model_version=COST_MODEL if isinstance(costs, Device) else None,
        weights_as_blocks=workload.weights_as_blocks or workload.steady,
        steady=workload.steady,
        optimizer=workload.updated_by,
        precision=workload.precision,
        mapping=None if isinstance(costs, Device) else costs.mapping,
        launches=None if isinstance(costs, Device) else costs.launches,
        notes=BATCH_NORM_NOTE if network.has_batch_norm and graph.batch < workload.batch else None,
    )


def _layers(network: Network, graph: TaskGraph) -> tuple[LayerTasks, ...]:
    """List the layers with their tasks, in forward order.

    A ReLU whose backward is a task of its own is a layer of its own, as in the papers (vDNN's ACTV).
    """
    forward: dict[str, list[int]] = defaultdict(list)
    backward: dict[str, list[int]] = defaultdict(list)
    relu: dict[str, list[int]] = defaultdict(list)
    for k, task in enumerate(graph.tasks):
        {"FP": forward, "relu": relu}.get(task.role, backward)[task.layer.name].append(k)
    layers = []
    for layer in network.layers:
        name = layer.name
        if not layer.kind.is_input:
            layers.append(_named(name, layer.kind.name, forward[name], backward[name]))
        if name in relu:
            layers.append(_named(f"relu {name}", "relu", [], relu[name]))
    return tuple(layers)


def _named(name: str, kind: str, forward: Sequence[int], backward: Sequence[int]) -> LayerTasks:
    return LayerTasks(name=text_of(name), kind=kind, forward=tuple(forward), backward=tuple(backward))
