"""Pebbler: memory schedules and proven bounds for training networks that do not fit.

Names are loaded when they are first used, so that ``import pebbler`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .benchmark.comparison.compare import compare as compare
    from .benchmark.comparison.compare import compare_auto as compare_auto
    from .benchmark.pictures.schedule import timeline as timeline
    from .heuristics.methods import Answer as Answer
    from .heuristics.methods import Limits as Limits
    from .heuristics.methods import Refusal as Refusal
    from .heuristics.methods import find_method as find_method
    from .heuristics.methods import list_methods as list_methods
    from .heuristics.methods import register as register
    from .heuristics.papers.layers import units as units
    from .heuristics.papers.modnn_eviction import evict as evict
    from .heuristics.papers.modnn_eviction import find_scheme as find_scheme
    from .heuristics.program.builder import OutOfMemoryError as OutOfMemoryError
    from .heuristics.program.builder import ProgramBuilder as ProgramBuilder
    from .heuristics.program.placement import build as build
    from .heuristics.program.pool import Pool as Pool
    from .heuristics.search.search import LocalSearch as LocalSearch
    from .instances.errors import PebblerError as PebblerError
    from .instances.files import read_instance as read_instance
    from .instances.files import write_instance as write_instance
    from .instances.gpus.workload import cluster_instances as cluster_instances
    from .instances.gpus.workload import several_gpus as several_gpus
    from .instances.instance import Algorithm as Algorithm
    from .instances.instance import Block as Block
    from .instances.instance import Instance as Instance
    from .instances.instance import Task as Task
    from .instances.networks.zoo import find_network as find_network
    from .instances.networks.zoo import list_networks as list_networks
    from .instances.profile import Profile as Profile
    from .instances.profile import read_profile as read_profile
    from .instances.profile import write_profile as write_profile
    from .instances.suites.suite import find_suite as find_suite
    from .instances.suites.suite import list_suites as list_suites
    from .instances.workload import Workload as Workload
    from .solver.bounds import best_bound as best_bound
    from .solver.solve import solve as solve
    from .validate.bounds.certificate import Certificate as Certificate
    from .validate.bounds.certificate import check_certificate as check_certificate
    from .validate.bounds.certificate import read_certificate as read_certificate
    from .validate.bounds.certificate import write_certificate as write_certificate
    from .validate.check import check as check
    from .validate.gpus.check import check_schedule as check_schedule
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
    "Certificate": "validate.bounds.certificate",
    "Instance": "instances.instance",
    "Limits": "heuristics.methods",
    "LocalSearch": "heuristics.search.search",
    "Operation": "validate.schedule",
    "OutOfMemoryError": "heuristics.program.builder",
    "PebblerError": "instances.errors",
    "Pool": "heuristics.program.pool",
    "Profile": "instances.profile",
    "ProgramBuilder": "heuristics.program.builder",
    "Refusal": "heuristics.methods",
    "Residence": "validate.schedule",
    "Schedule": "validate.schedule",
    "Task": "instances.instance",
    "Workload": "instances.workload",
    "best_bound": "solver.bounds",
    "build": "heuristics.program.placement",
    "check": "validate.check",
    "check_certificate": "validate.bounds.certificate",
    "check_schedule": "validate.gpus.check",
    "cluster_instances": "instances.gpus.workload",
    "compare": "benchmark.comparison.compare",
    "compare_auto": "benchmark.comparison.compare",
    "evict": "heuristics.papers.modnn_eviction",
    "find_method": "heuristics.methods",
    "find_network": "instances.networks.zoo",
    "find_scheme": "heuristics.papers.modnn_eviction",
    "find_suite": "instances.suites.suite",
    "list_methods": "heuristics.methods",
    "list_networks": "instances.networks.zoo",
    "list_suites": "instances.suites.suite",
    "read_certificate": "validate.bounds.certificate",
    "read_instance": "instances.files",
    "read_profile": "instances.profile",
    "read_schedule": "validate.schedule",
    "register": "heuristics.methods",
    "several_gpus": "instances.gpus.workload",
    "simulate": "validate.simulate",
    "solve": "solver.solve",
    "timeline": "benchmark.pictures.schedule",
    "units": "heuristics.papers.layers",
    "write_certificate": "validate.bounds.certificate",
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
