"""Pebbler: memory schedules and proven bounds for training networks that do not fit.

The names of this module are the public interface; ``docs/python.md`` lists them by topic. They are loaded
when they are first used, so that ``import pebbler`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .benchmark.comparison.compare import compare as compare
    from .benchmark.comparison.compare import compare_auto as compare_auto
    from .benchmark.comparison.fits import Fits as Fits
    from .benchmark.comparison.fits import fits as fits
    from .benchmark.comparison.frontier import Frontier as Frontier
    from .benchmark.comparison.frontier import frontier as frontier
    from .benchmark.comparison.largest_batch import LargestBatch as LargestBatch
    from .benchmark.comparison.largest_batch import largest_batch as largest_batch
    from .benchmark.comparison.plan import instances_of as instances_of
    from .benchmark.comparison.result import Comparison as Comparison
    from .benchmark.comparison.result import Figures as Figures
    from .benchmark.comparison.result import Row as Row
    from .benchmark.pictures.schedule import overview as overview
    from .benchmark.pictures.schedule import timeline as timeline
    from .benchmark.pictures.trace import trace as trace
    from .heuristics.methods import Answer as Answer
    from .heuristics.methods import Limits as Limits
    from .heuristics.methods import MethodError as MethodError
    from .heuristics.methods import MethodInfo as MethodInfo
    from .heuristics.methods import Refusal as Refusal
    from .heuristics.methods import find_method as find_method
    from .heuristics.methods import list_methods as list_methods
    from .heuristics.methods import register as register
    from .heuristics.papers.layers import LayerStep as LayerStep
    from .heuristics.papers.layers import layer_steps as layer_steps
    from .heuristics.papers.modnn_eviction import evict_blocks as evict_blocks
    from .heuristics.papers.modnn_eviction import find_eviction as find_eviction
    from .heuristics.program.builder import OutOfMemoryError as OutOfMemoryError
    from .heuristics.program.builder import ProgramBuilder as ProgramBuilder
    from .heuristics.program.placement import build_program as build_program
    from .heuristics.program.pool import Pool as Pool
    from .heuristics.search.search import LocalSearch as LocalSearch
    from .instances.buffers import Buffer as Buffer
    from .instances.buffers import read_buffers as read_buffers
    from .instances.devices.device import Device as Device
    from .instances.devices.device import find_device as find_device
    from .instances.devices.device import list_devices as list_devices
    from .instances.devices.device import read_device as read_device
    from .instances.errors import BudgetError as BudgetError
    from .instances.errors import DefectError as DefectError
    from .instances.errors import FormatError as FormatError
    from .instances.errors import PebblerError as PebblerError
    from .instances.files import read_instance as read_instance
    from .instances.files import write_instance as write_instance
    from .instances.gpus.cluster import Cluster as Cluster
    from .instances.gpus.workload import cluster_instances as cluster_instances
    from .instances.gpus.workload import several_gpus as several_gpus
    from .instances.instance import Algorithm as Algorithm
    from .instances.instance import Block as Block
    from .instances.instance import Instance as Instance
    from .instances.instance import Task as Task
    from .instances.memory import ideal_ns as ideal_ns
    from .instances.memory import least_budget as least_budget
    from .instances.memory import with_budget as with_budget
    from .instances.networks.builder import NetworkBuilder as NetworkBuilder
    from .instances.networks.network import Layer as Layer
    from .instances.networks.network import Network as Network
    from .instances.networks.network import Shape as Shape
    from .instances.networks.zoo import find_network as find_network
    from .instances.networks.zoo import list_networks as list_networks
    from .instances.profile import Profile as Profile
    from .instances.profile import read_profile as read_profile
    from .instances.profile import write_profile as write_profile
    from .instances.suites.suite import Suite as Suite
    from .instances.suites.suite import find_suite as find_suite
    from .instances.suites.suite import list_suites as list_suites
    from .instances.transforms import split_parts as split_parts
    from .instances.transforms import with_engines as with_engines
    from .instances.transforms import with_inputs_on_clock as with_inputs_on_clock
    from .instances.transforms import with_link as with_link
    from .instances.transforms import with_mask as with_mask
    from .instances.transforms import with_recomputation as with_recomputation
    from .instances.workload import Workload as Workload
    from .solver.answers import ContradictionError as ContradictionError
    from .solver.bounds import Bound as Bound
    from .solver.bounds import best_bound as best_bound
    from .solver.flow.stages import refine_bound as refine_bound
    from .solver.packing.pack import PackResult as PackResult
    from .solver.packing.pack import pack as pack
    from .solver.result import Result as Result
    from .solver.result import Status as Status
    from .solver.solve import solve as solve
    from .validate.bounds.certificate import Certificate as Certificate
    from .validate.bounds.certificate import check_certificate as check_certificate
    from .validate.bounds.certificate import read_certificate as read_certificate
    from .validate.bounds.certificate import write_certificate as write_certificate
    from .validate.check import CheckReport as CheckReport
    from .validate.gpus.check import check as check
    from .validate.schedule import Operation as Operation
    from .validate.schedule import Residence as Residence
    from .validate.schedule import Schedule as Schedule
    from .validate.schedule import read_schedule as read_schedule
    from .validate.schedule import write_schedule as write_schedule
    from .validate.simulate import simulate as simulate
    from .validate.traces.programs import trace_of as trace_of
    from .validate.traces.races import check_trace as check_trace
    from .validate.traces.trace import Trace as Trace
    from .validate.traces.trace import TraceBuffer as TraceBuffer
    from .validate.traces.trace import TraceOperation as TraceOperation
    from .validate.traces.trace import read_trace as read_trace
    from .validate.traces.trace import write_trace as write_trace

    __version__: str

_HOMES = {
    "Algorithm": "instances.instance",
    "Answer": "heuristics.methods",
    "Block": "instances.instance",
    "Bound": "solver.bounds",
    "BudgetError": "instances.errors",
    "Buffer": "instances.buffers",
    "Certificate": "validate.bounds.certificate",
    "CheckReport": "validate.check",
    "Cluster": "instances.gpus.cluster",
    "Comparison": "benchmark.comparison.result",
    "ContradictionError": "solver.answers",
    "DefectError": "instances.errors",
    "Device": "instances.devices.device",
    "Figures": "benchmark.comparison.result",
    "FormatError": "instances.errors",
    "Frontier": "benchmark.comparison.frontier",
    "Instance": "instances.instance",
    "Fits": "benchmark.comparison.fits",
    "LargestBatch": "benchmark.comparison.largest_batch",
    "Layer": "instances.networks.network",
    "LayerStep": "heuristics.papers.layers",
    "Limits": "heuristics.methods",
    "LocalSearch": "heuristics.search.search",
    "MethodError": "heuristics.methods",
    "MethodInfo": "heuristics.methods",
    "Network": "instances.networks.network",
    "NetworkBuilder": "instances.networks.builder",
    "Operation": "validate.schedule",
    "OutOfMemoryError": "heuristics.program.builder",
    "PackResult": "solver.packing.pack",
    "PebblerError": "instances.errors",
    "Pool": "heuristics.program.pool",
    "Profile": "instances.profile",
    "ProgramBuilder": "heuristics.program.builder",
    "Refusal": "heuristics.methods",
    "Residence": "validate.schedule",
    "Result": "solver.result",
    "Row": "benchmark.comparison.result",
    "Schedule": "validate.schedule",
    "Shape": "instances.networks.network",
    "Status": "solver.result",
    "Suite": "instances.suites.suite",
    "Task": "instances.instance",
    "Trace": "validate.traces.trace",
    "TraceBuffer": "validate.traces.trace",
    "TraceOperation": "validate.traces.trace",
    "Workload": "instances.workload",
    "best_bound": "solver.bounds",
    "build_program": "heuristics.program.placement",
    "check": "validate.gpus.check",
    "check_certificate": "validate.bounds.certificate",
    "check_trace": "validate.traces.races",
    "cluster_instances": "instances.gpus.workload",
    "compare": "benchmark.comparison.compare",
    "compare_auto": "benchmark.comparison.compare",
    "evict_blocks": "heuristics.papers.modnn_eviction",
    "find_device": "instances.devices.device",
    "find_eviction": "heuristics.papers.modnn_eviction",
    "find_method": "heuristics.methods",
    "find_network": "instances.networks.zoo",
    "find_suite": "instances.suites.suite",
    "frontier": "benchmark.comparison.frontier",
    "ideal_ns": "instances.memory",
    "instances_of": "benchmark.comparison.plan",
    "fits": "benchmark.comparison.fits",
    "largest_batch": "benchmark.comparison.largest_batch",
    "layer_steps": "heuristics.papers.layers",
    "least_budget": "instances.memory",
    "list_devices": "instances.devices.device",
    "list_methods": "heuristics.methods",
    "list_networks": "instances.networks.zoo",
    "list_suites": "instances.suites.suite",
    "overview": "benchmark.pictures.schedule",
    "pack": "solver.packing.pack",
    "read_buffers": "instances.buffers",
    "read_certificate": "validate.bounds.certificate",
    "read_device": "instances.devices.device",
    "read_instance": "instances.files",
    "read_profile": "instances.profile",
    "read_schedule": "validate.schedule",
    "read_trace": "validate.traces.trace",
    "refine_bound": "solver.flow.stages",
    "register": "heuristics.methods",
    "several_gpus": "instances.gpus.workload",
    "simulate": "validate.simulate",
    "solve": "solver.solve",
    "split_parts": "instances.transforms",
    "timeline": "benchmark.pictures.schedule",
    "trace": "benchmark.pictures.trace",
    "trace_of": "validate.traces.programs",
    "with_budget": "instances.memory",
    "with_engines": "instances.transforms",
    "with_inputs_on_clock": "instances.transforms",
    "with_link": "instances.transforms",
    "with_mask": "instances.transforms",
    "with_recomputation": "instances.transforms",
    "write_certificate": "validate.bounds.certificate",
    "write_instance": "instances.files",
    "write_profile": "instances.profile",
    "write_schedule": "validate.schedule",
    "write_trace": "validate.traces.trace",
}
"""The public names, and the module that each is defined in."""

__all__ = [*_HOMES]

RENAMED = {
    "build": "build_program",
    "check_schedule": "check",
    "evict": "evict_blocks",
    "find_scheme": "find_eviction",
    "units": "layer_steps",
}
"""Names of the version before, which work in this one with a warning, and what they are called now."""

_REGISTRY = "heuristics.methods"


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("pebbler")
    if name in RENAMED:
        import warnings

        new = RENAMED[name]
        told = f"pebbler.{name} is called pebbler.{new} now; the old name works in this version only"
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return globals().get(new) or __getattr__(new)
    if name not in _HOMES:
        raise AttributeError(f"module 'pebbler' has no attribute '{name}'")
    if _HOMES[name] == _REGISTRY:
        # Methods register when they are imported: `solver` loads its own and those of `heuristics`.
        import_module(".solver", __name__)
    value: object = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(("__version__", *_HOMES))
