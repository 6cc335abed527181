"""Pebbler: memory schedules and proven bounds for training networks that do not fit.

Names are loaded when they are first used, so that ``import pebbler`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .benchmark.compare import compare as compare
    from .benchmark.compare import compare_auto as compare_auto
    from .benchmark.plots import timeline as timeline
    from .heuristics.layers import units as units
    from .heuristics.methods import Answer as Answer
    from .heuristics.methods import Limits as Limits
    from .heuristics.methods import Refusal as Refusal
    from .heuristics.methods import find_method as find_method
    from .heuristics.methods import list_methods as list_methods
    from .heuristics.methods import register as register
    from .heuristics.offload_search import evict as evict
    from .heuristics.offload_search import find_scheme as find_scheme
    from .heuristics.placement import build as build
    from .heuristics.pool import Pool as Pool
    from .heuristics.program import OutOfMemoryError as OutOfMemoryError
    from .heuristics.program import ProgramBuilder as ProgramBuilder
    from .heuristics.search import LocalSearch as LocalSearch
    from .instances.cluster_workload import cluster_instances as cluster_instances
    from .instances.cluster_workload import several_gpus as several_gpus
    from .instances.errors import PebblerError as PebblerError
    from .instances.files import read_instance as read_instance
    from .instances.files import write_instance as write_instance
    from .instances.instance import Algorithm as Algorithm
    from .instances.instance import Block as Block
    from .instances.instance import Instance as Instance
    from .instances.instance import Task as Task
    from .instances.profile import Profile as Profile
    from .instances.profile import read_profile as read_profile
    from .instances.profile import write_profile as write_profile
    from .instances.suites import find_suite as find_suite
    from .instances.suites import list_suites as list_suites
    from .instances.workload import Workload as Workload
    from .instances.zoo import find_network as find_network
    from .instances.zoo import list_networks as list_networks
    from .solver.bounds import best_bound as best_bound
    from .solver.solve import solve as solve
    from .validate.certificate import Certificate as Certificate
    from .validate.certificate import check_certificate as check_certificate
    from .validate.certificate import read_certificate as read_certificate
    from .validate.certificate import write_certificate as write_certificate
    from .validate.check import check as check
    from .validate.cluster_check import check_schedule as check_schedule
    from .validate.schedule import Operation as Operation
    from .validate.schedule import Residence as Residence
    from .validate.schedule import Schedule as Schedule
    from .validate.schedule import read_schedule as read_schedule
    from .validate.schedule import write_schedule as write_schedule
    from .validate.simulate import simulate as simulate

    __version__: str

_HOMES = {
    "Algorithm": "instances.instance",
    "Answer": "heuristics.methods",
    "Block": "instances.instance",
    "Certificate": "validate.certificate",
    "Instance": "instances.instance",
    "Limits": "heuristics.methods",
    "LocalSearch": "heuristics.search",
    "Operation": "validate.schedule",
    "OutOfMemoryError": "heuristics.program",
    "PebblerError": "instances.errors",
    "Pool": "heuristics.pool",
    "Profile": "instances.profile",
    "ProgramBuilder": "heuristics.program",
    "Refusal": "heuristics.methods",
    "Residence": "validate.schedule",
    "Schedule": "validate.schedule",
    "Task": "instances.instance",
    "Workload": "instances.workload",
    "best_bound": "solver.bounds",
    "build": "heuristics.placement",
    "check": "validate.check",
    "check_certificate": "validate.certificate",
    "check_schedule": "validate.cluster_check",
    "cluster_instances": "instances.cluster_workload",
    "compare": "benchmark.compare",
    "compare_auto": "benchmark.compare",
    "evict": "heuristics.offload_search",
    "find_method": "heuristics.methods",
    "find_network": "instances.zoo",
    "find_scheme": "heuristics.offload_search",
    "find_suite": "instances.suites",
    "list_methods": "heuristics.methods",
    "list_networks": "instances.zoo",
    "list_suites": "instances.suites",
    "read_certificate": "validate.certificate",
    "read_instance": "instances.files",
    "read_profile": "instances.profile",
    "read_schedule": "validate.schedule",
    "register": "heuristics.methods",
    "several_gpus": "instances.cluster_workload",
    "simulate": "validate.simulate",
    "solve": "solver.solve",
    "timeline": "benchmark.plots",
    "units": "heuristics.layers",
    "write_certificate": "validate.certificate",
    "write_instance": "instances.files",
    "write_profile": "instances.profile",
    "write_schedule": "validate.schedule",
}
"""The public names, and the module that each is defined in."""

_REGISTRY = "heuristics.methods"


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("pebbler")
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
