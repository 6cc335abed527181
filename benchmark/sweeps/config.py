"""The configuration of a sweep, a TOML file: problems x methods x limits x seeds, as jobs."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ...heuristics.methods import find_method
from ...instances.errors import BudgetError, FormatError, PebblerError
from ...instances.files import read_bytes, read_toml
from ...instances.instance import Instance
from ...instances.networks.taskgraph import Graph
from ...instances.origin import DataPrecision, Optimizer
from ...instances.suites.suite import find_suite, list_suites, members
from ...instances.units import LARGEST, LARGEST_SEED, MOST_THREADS, parse_size, parse_time
from ...instances.workload import Side, Workload
from ...solver.linear.available import require_linear_solver
from ..comparison.plan import planned
from .jobs import GRACE, Job, Setting
from .problems import FileProblem, Problem, SuiteProblem, WorkloadProblem, about, is_free
from .protocol import Protocol

_log = logging.getLogger(__name__)

_Filled = msgspec.Meta(min_length=1)
"""Rule that a text or a list is not empty."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
"""Number of images."""

_Threads = Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)]
"""Number of threads."""

_Seed = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)]
"""Seed of random decisions."""


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workload under several budgets; budgets below the least one are left out.

    Attributes
    ----------
    network, batch, device, cudnn, graph, engines, weights_as_blocks
        As in a `Workload`.
    precision, steady, optimizer, optimizer_on, host_bandwidth, host_memory, link_both
        As well.
    budgets
        Budgets in the usual form: ``12GiB``, ``50%``, ``1.05xMmin``, ``Mmin+25%``.
    sub_batch
        Number of images of a round, by default the batch; ``auto`` lets each method choose.
    """

    network: str
    batch: _Count
    device: str
    cudnn: str | None = None
    budgets: Annotated[tuple[str, ...], _Filled]
    graph: Graph = "executable"
    engines: Literal["duplex", "single"] = "duplex"
    precision: DataPrecision = "fp32"
    weights_as_blocks: bool = False
    steady: bool = False
    optimizer: Optimizer | None = None
    host_memory: str | None = None
    link_both: str | None = None
    optimizer_on: Side = "device"
    host_bandwidth: str | None = None
    sub_batch: _Count | Literal["auto"] | None = None


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every problem with every method, limit, memory model and seed.

    Attributes
    ----------
    suites, select
        Suites, and patterns; the name of an instance must match one of them.
    files
        Instance files, as patterns relative to the configuration.
    workloads
        Networks under budgets.
    methods
        Names of registered methods.
    time_limits
        Time limits of the method, such as ``10s``; without one, until it is done.
    wall_limit
        Time after which the run's process is killed; by default two minutes after the time limit.
    memory_limit
        Greatest address space of each process of a run, such as ``4GB``.
    memory
        Memory models.
    seeds, workers
        Seeds of random decisions, and numbers of threads of a method.
    without
        Lists of rules to leave out; each list is a setting of its own.
    solvers
        Solvers for linear models; each is a setting of its own.
    """

    suites: tuple[str, ...] = ()
    select: Annotated[tuple[str, ...], _Filled] = ("*",)
    files: tuple[str, ...] = ()
    workloads: tuple[Grid, ...] = ()
    methods: Annotated[tuple[str, ...], _Filled]
    time_limits: tuple[str, ...] = ()
    wall_limit: str | None = None
    memory_limit: str | None = None
    memory: Annotated[tuple[Literal["contiguous", "paged"], ...], _Filled] = ("contiguous",)
    seeds: Annotated[tuple[_Seed, ...], _Filled] = (0,)
    workers: _Threads = 1
    without: Annotated[tuple[tuple[str, ...], ...], _Filled] = ((),)
    solvers: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A configuration: sweeps that go into one results file.

    Attributes
    ----------
    title
        The purpose of the sweeps in a line.
    sweep
        The sweeps.
    protocol
        The rules by which the runs count, if the configuration is a protocol.
    """

    title: str
    sweep: Annotated[tuple[Sweep, ...], _Filled]
    protocol: Protocol | None = None


def read_config(path: Path) -> Config:
    """Read a configuration.

    Raises
    ------
    PebblerError
        When it cannot be read, is not TOML, or has an unknown or a wrong key; the message names the key.
    """
    entries = read_toml(path)
    try:
        return msgspec.convert(entries, Config)
    except msgspec.ValidationError as error:
        text = str(error)
        raise FormatError(f"{path} is not a configuration: {text[:1].lower() + text[1:]}") from None


def list_protocols() -> tuple[str, ...]:
    """Return the names of the protocols that are shipped."""
    files = resources.files(__package__).joinpath("protocols").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def read_protocol(name: str, *, suite: str | None = None, methods: Sequence[str] = ()) -> Config:
    """Return the configuration of a protocol.

    Parameters
    ----------
    name
        A name that `list_protocols` returns.
    suite
        Another suite than the protocol's own; the title then says so.
    methods
        Methods to run instead of the protocol's, as the first of its sweeps says.

    Raises
    ------
    PebblerError
        When there is no such protocol.
    """
    if name not in list_protocols():
        raise PebblerError(f"there is no protocol '{name}'; there are {', '.join(list_protocols())}")
    text = resources.files(__package__).joinpath("protocols", f"{name}.toml").read_text("utf-8")
    config = msgspec.convert(tomllib.loads(text), Config)
    if methods:
        config = replace(config, sweep=(replace(config.sweep[0], methods=tuple(methods)),))
    if suite is not None:
        sweeps = tuple(replace(sweep, suites=(suite,)) for sweep in config.sweep)
        config = replace(config, title=f"{config.title}, on suite {suite}", sweep=sweeps)
    return config


def shipped_protocol(title: str) -> Config | None:
    """Return the configuration of a shipped protocol, on its own suite or on another one, by its title.

    Parameters
    ----------
    title
        The title of the configuration that `read_protocol` returns; for another one, None is returned.
    """
    for name, suite in product(list_protocols(), (None, *list_suites())):
        config = read_protocol(name, suite=suite)
        if config.title == title:
            return config
    return None


def protocol_problems(title: str) -> frozenset[str]:
    """Return the names of all problems of a shipped protocol, on its own suite or on another one.

    Parameters
    ----------
    title
        The title of the configuration that `read_protocol` returns.

    Returns
    -------
    frozenset of str
        As `SuiteProblem.name`; empty for another title.
    """
    config = shipped_protocol(title)
    suites = () if config is None else [suite for sweep in config.sweep for suite in sweep.suites]
    return frozenset(
        SuiteProblem(suite, member.name).name
        for suite in dict.fromkeys(suites)
        for member in members(find_suite(suite))
    )


def settings(sweep: Sweep) -> Iterator[Setting]:
    """Yield the settings of a sweep.

    Raises
    ------
    PebblerError
        For a method or a rule that does not exist, or a limit that is not valid.
    """
    memory_limit = None if sweep.memory_limit is None else parse_size(sweep.memory_limit)
    wall_limit = None if sweep.wall_limit is None else parse_time(sweep.wall_limit)
    limits: list[float | None] = [parse_time(text) for text in sweep.time_limits] or [None]
    for name in sweep.solvers:
        require_linear_solver(name)
    solvers: tuple[str | UnsetType, ...] = sweep.solvers or (UNSET,)
    for method, memory, limit, without in product(sweep.methods, sweep.memory, limits, sweep.without):
        find_method(method).require_rules(without)
        for solver in solvers:
            yield Setting(
                method=method,
                memory_model=memory,
                time_limit=limit,
                wall_limit=limit + GRACE if wall_limit is None and limit is not None else wall_limit,
                memory_limit_bytes=memory_limit,
                workers=sweep.workers,
                without=without,
                solver=solver,
            )


def problems(sweep: Sweep, folder: Path) -> Iterator[tuple[Problem, tuple[Instance, ...]]]:
    """Yield the problems of a sweep with their instances; patterns of files are relative to `folder`.

    Raises
    ------
    PebblerError
        For a suite or a network that does not exist, a file that is no instance, or a pattern without any.
    """
    for suite in sweep.suites:
        chosen = [m for m in members(find_suite(suite)) if any(fnmatchcase(m.name, p) for p in sweep.select)]
        if not chosen:
            raise PebblerError(f"no instance of suite '{suite}' matches {', '.join(sweep.select)}")
        for member in chosen:
            yield _built(SuiteProblem(suite, member.name))
    for pattern in sweep.files:
        if Path(pattern).is_absolute():
            raise PebblerError(f"'{pattern}' is an absolute pattern; give one relative to the configuration")
        try:
            places = sorted(folder.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise PebblerError(f"'{pattern}' is no pattern of files: {error}") from None
        if not places:
            raise PebblerError(f"no file in {folder} matches '{pattern}'; give instance files")
        for place in places:
            name = place.relative_to(folder).as_posix().removesuffix(".instance.json")
            yield _built(FileProblem(name, read_bytes(place)))
    for grid in sweep.workloads:
        workload = Workload(
            grid.network,
            grid.batch,
            grid.device,
            grid.graph,
            grid.engines,
            weights_as_blocks=grid.weights_as_blocks,
            steady=grid.steady,
            optimizer=grid.optimizer,
            host_memory=grid.host_memory,
            link_both=grid.link_both,
            optimizer_on=grid.optimizer_on,
            host_bandwidth=grid.host_bandwidth,
            cudnn=grid.cudnn,
            precision=grid.precision,
        )
        for budget in grid.budgets:
            problem = WorkloadProblem(workload, budget, grid.sub_batch)
            try:
                yield _built(problem)
            except BudgetError as error:
                _log.warning("%s is left out: %s", problem.name, error)


def _built(problem: Problem) -> tuple[Problem, tuple[Instance, ...]]:
    return problem, problem.instances()


def jobs(config: Config, folder: Path) -> Iterator[Job]:
    """Yield the jobs of a configuration, each of them once.

    In a protocol, a method that would solve another instance than that of the suite is left out.

    Parameters
    ----------
    config
        The configuration to run.
    folder
        Folder of the configuration.

    Raises
    ------
    PebblerError
        For names that do not exist, or settings that do not fit each other.
    """
    planned = [(sweep, list(settings(sweep))) for sweep in config.sweep]
    seen: set[str] = set()
    for sweep, chosen in planned:
        if not (sweep.suites or sweep.files or sweep.workloads):
            raise PebblerError("a sweep has nothing to solve; give suites, files or workloads")
        for problem, instances in problems(sweep, folder):
            if is_free(problem) and (any(sweep.without) or sweep.solvers):
                raise PebblerError(
                    f"{problem.name}: a search for the sub-batch leaves no rules out, and names no solver"
                )
            told = about(problem, instances)
            for setting, seed in product(chosen, sweep.seeds):
                if config.protocol is not None and _changes(setting.method, instances):
                    continue
                job = Job(problem, told, setting, seed)
                if job.fingerprint not in seen:
                    seen.add(job.fingerprint)
                    yield job


def _changes(method: str, instances: Sequence[Instance]) -> bool:
    """Return whether a method plans on other instances than these."""
    return planned(find_method(method), instances) != tuple(instances)
