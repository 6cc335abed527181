"""The commands ``suite``, ``best-known``, ``contest`` and ``schemas``: suites, and what is known of them."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import PebblerError, escaped
from .options import (
    Parser,
    add_command,
    add_limits,
    add_output,
    name_list,
    positive,
    print_json,
    require_folder,
    require_place,
    share,
)

if TYPE_CHECKING:
    from ..benchmark.sweeps.best_known import Record, Registry
    from ..solver.result import Result

_log = logging.getLogger(__name__)

_SUITES = "papers, pebbler-2026, random, scaling, tight, tiny or transformers"


def add_suite(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``suite``, and ``generate``, the short name of ``suite write``."""
    summary = "list, show, write or export suites of instances"
    group = commands.add_parser(
        "suite",
        help=summary,
        description=f"{summary.capitalize()}.",
        epilog="With --json, each prints one JSON object. example: pebbler suite export tiny -o tiny.tar",
    )
    parts = group.add_subparsers(metavar="COMMAND", required=True)
    add_command(parts, "list", _list, "all suites", "pebbler suite list")
    command = add_command(parts, "show", _show_suite, "the instances of a suite", "pebbler suite show tiny")
    command.add_argument("suite", metavar="SUITE", help=_SUITES)
    _add_write(parts, "write", "pebbler suite write tiny -o tiny")
    command = add_command(
        parts,
        "export",
        _export,
        "write a suite as one archive with schemas, licence and citation, the same bytes on any machine",
        "pebbler suite export tiny -o tiny.tar",
    )
    command.add_argument("suite", metavar="SUITE", help=_SUITES)
    add_output(command, "ARCHIVE.tar")
    _add_write(commands, "generate", "pebbler generate tiny -o tiny")


def _add_write(commands: argparse._SubParsersAction[Parser], name: str, example: str) -> None:
    summary = "write the instances of a suite, with a manifest and checksums"
    command = add_command(commands, name, _generate, summary, example)
    command.add_argument("suite", metavar="SUITE", help=_SUITES)
    add_output(command, "DIR")


def add_best_known(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``best-known``."""
    command = add_command(
        commands,
        "best-known",
        _best_known,
        "the best schedules and bounds that are known of a suite, and better ones on demand: show SUITE (or "
        "SUITE alone); submit SUITE FILE... writes those that are better into a file to send; verify "
        "[SUITE|FILE...] checks all records anew",
        "pebbler best-known tight --methods modnn,flow --time-limit 60s -o known",
    )
    command.add_argument(
        "words",
        nargs="+",
        metavar="[show|submit|verify] SUITE|FILE",
        help=f"{_SUITES}; files to submit: schedules or certificates; files to verify: submissions",
    )
    command.add_argument(
        "--methods",
        type=name_list,
        default=(),
        metavar="A,B,...",
        help="solve with each the instances whose optimum is not known; see pebbler methods",
    )
    command.add_argument(
        "--admit",
        nargs="+",
        default=[],
        metavar="SCHEDULE",
        help="files to enter, before that: schedules, certificates, submissions",
    )
    command.add_argument(
        "--gap",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="with --methods, instances with at most this gap are closed, such as 0.1%%; default: 0",
    )
    command.add_argument(
        "--select",
        type=name_list,
        default=(),
        metavar="PATTERN,...",
        help="with --methods, only instances whose name matches one, such as 'tight-*'; default: all",
    )
    command.add_argument("--who", metavar="NAME", help="who enters it, for the history of what is known")
    add_limits(command, "of each method and instance")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR|FILE",
        help="where SUITE.json is or will be, and beside it the folder SUITE with the schedules; it starts "
        "from what is shipped. Of submit, the file to write",
    )


def add_contest(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``contest``."""
    summary = "hidden instances by a secret that is published later, and the scores of who took part"
    group = commands.add_parser(
        "contest",
        help=summary,
        description=f"{summary.capitalize()}.",
        epilog="With --json, each prints one JSON object. "
        "example: pebbler contest draw secret.txt --count 30 -o hidden",
    )
    parts = group.add_subparsers(metavar="COMMAND", required=True)
    command = add_command(
        parts,
        "commit",
        _commit,
        "write a new secret, and print the SHA-256 to publish before the contest",
        "pebbler contest commit -o secret.txt",
    )
    add_output(command, "SECRET")
    command = add_command(
        parts,
        "draw",
        _draw,
        "write the instances that a secret gives",
        "pebbler contest draw secret.txt --count 30 -o hidden",
    )
    command.add_argument("secret", type=Path, metavar="SECRET", help="the file of the secret")
    command.add_argument("--count", type=positive, required=True, metavar="N", help="number of instances")
    add_output(command, "DIR")
    command = add_command(
        parts,
        "score",
        _score,
        "check the schedules of all entrants, and rank them",
        "pebbler contest score hidden entries",
    )
    command.add_argument("instances", type=Path, metavar="INSTANCES", help="a folder of instance files")
    command.add_argument(
        "entries",
        type=Path,
        metavar="ENTRIES",
        help="a folder with a folder for each entrant, which has NAME.schedule.json for NAME.instance.json",
    )


def add_schemas(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``schemas``."""
    command = add_command(
        commands,
        "schemas",
        _schemas,
        "print the JSON Schema of a file format, or write all",
        "pebbler schemas -o schemas",
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="a format, to be printed: instance, ...")
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to write all")


def _list(arguments: argparse.Namespace) -> int:
    from ..benchmark.output.table import format_table
    from ..instances.suites.suite import find_suite, list_suites, members

    suites = [(name, find_suite(name)) for name in list_suites()]
    counts = [sum(1 for _ in members(suite)) for _, suite in suites]
    if arguments.json:
        entries = [
            {"name": name, "title": suite.title, "instances": count}
            for (name, suite), count in zip(suites, counts, strict=True)
        ]
        print_json({"suites": entries})
    else:
        rows = [(name, str(count), suite.title) for (name, suite), count in zip(suites, counts, strict=True)]
        print(format_table(("suite", "instances", "what it is"), rows, "lrl"))
    return 0


def _show_suite(arguments: argparse.Namespace) -> int:
    from ..benchmark.output.table import format_table
    from ..benchmark.sweeps.best_known import best_known
    from ..instances.suites.suite import find_suite, members

    suite = find_suite(arguments.suite)
    listed = list(members(suite))
    names = [member.name for member in listed]
    solved = {r.instance for r in best_known(arguments.suite).records if r.makespan_ns is not None}
    if arguments.json:
        print_json({"suite": arguments.suite, "title": suite.title, "instances": names})
    else:
        frozen = [(one.name, one.frozen.kind, one.frozen.memory) for one in listed if one.frozen is not None]
        lines = [format_table(("instance", "kind", "memory"), frozen, "lll")] if frozen else names
        print(f"{arguments.suite}: {suite.title}", *lines, sep="\n")
        known = f"{len(solved & set(names))} have a best-known schedule"
        print(f"{len(names)} instances; {known}; pebbler best-known {arguments.suite} shows them")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ..benchmark.sweeps.archive import export_suite

    require_place(arguments.output)
    manifest, checksum = export_suite(arguments.suite, arguments.output)
    if arguments.json:
        print_json({"suite": manifest.suite, "instances": len(manifest.instances), "sha256": checksum})
    else:
        told = f"suite {manifest.suite} of pebbler {manifest.pebbler}, {len(manifest.instances)} instances"
        print(f"{escaped(str(arguments.output))}: {told}; SHA-256 {checksum}")
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from ..instances.suites.manifest import write_suite

    require_folder(arguments.output)
    manifest = write_suite(arguments.suite, arguments.output)
    if arguments.json:
        print_json(manifest)
    else:
        tasks = [entry.tasks for entry in manifest.instances]
        told = f"suite {manifest.suite}, {len(tasks)} instances of {min(tasks)} to {max(tasks)} tasks"
        print(f"{escaped(str(arguments.output))}: {told}; manifest.json has their checksums")
    return 0


def _commit(arguments: argparse.Namespace) -> int:
    from ..instances.suites.contest import write_secret

    require_place(arguments.output)
    checksum = write_secret(arguments.output)
    if arguments.json:
        print_json({"sha256": checksum})
    else:
        print(f"{escaped(str(arguments.output))}: keep it until the end; publish its SHA-256 now: {checksum}")
    return 0


def _draw(arguments: argparse.Namespace) -> int:
    from ..instances.suites.contest import write_contest

    require_folder(arguments.output)
    checksum = write_contest(arguments.secret, arguments.count, arguments.output)
    if arguments.json:
        print_json({"instances": arguments.count, "sha256": checksum})
    else:
        told = f"{arguments.count} instances of the secret with SHA-256 {checksum}"
        print(f"{escaped(str(arguments.output))}: {told}; SHA256SUMS has their checksums")
    return 0


def _score(arguments: argparse.Namespace) -> int:
    from ..benchmark.comparison.contest import score_contest
    from ..benchmark.output.table import format_table

    scores = score_contest(arguments.instances, arguments.entries)
    if arguments.json:
        names = ("rank", "entrant", "shortest", "valid", "invalid", "missing", "median_gap", "judged")
        entries = [
            {name: getattr(one, name) for name in names} | {"points": float(one.points)} for one in scores
        ]
        print_json({"instances": len(scores[0].judged), "entrants": entries})
        return 0
    rows = [
        (
            str(one.rank),
            escaped(one.entrant),
            f"{float(one.points):.2f}",
            *map(str, (one.shortest, one.valid, one.invalid, one.missing)),
            "" if one.median_gap is None else f"{one.median_gap:.2%}",
        )
        for one in scores
    ]
    header = ("rank", "entrant", "points", "shortest", "valid", "invalid", "missing", "median gap")
    print(format_table(header, rows, "rlrrrrrr"))
    for one in scores:
        for instance, judged in one.judged.items():
            if judged.makespan_ns is None:
                print(escaped(f"{one.entrant}, {instance}: {judged.reason}"))
    return 0


def _best_known(arguments: argparse.Namespace) -> int:
    from ..benchmark.sweeps.best_known import best_known

    first, *rest = arguments.words
    if first in ("submit", "verify"):
        for option in ("methods", "admit", "gap", "select", "who"):
            if getattr(arguments, option):
                raise PebblerError(f"best-known {first} has no --{option}; leave it out")
        return _submit(arguments, rest) if first == "submit" else _verify(arguments, rest)
    if first == "show" and not rest:
        raise PebblerError("best-known show needs a suite; give one, such as pebbler best-known show tiny")
    arguments.suite, *others = rest if first == "show" else arguments.words
    if others:
        raise PebblerError(f"best-known shows one suite; leave out {', '.join(others)}")
    if arguments.output is not None:
        return _improve(arguments)
    if arguments.methods or arguments.admit:
        raise PebblerError("what is better is entered in a file; give its folder as -o DIR")
    _show(best_known(arguments.suite), arguments.suite, as_json=arguments.json)
    return 0


def _submit(arguments: argparse.Namespace, words: list[str]) -> int:
    """Write what is better in files than the shipped records into a file that can be sent and merged."""
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.sweeps.best_known import submission
    from ..instances.files import write_document

    if len(words) < 2 or arguments.output is None:
        raise PebblerError(
            "give a suite, files and where to write, such as "
            "pebbler best-known submit tight mine.schedule.json -o mine.submission.json"
        )
    suite, *paths = words
    require_place(arguments.output)
    with keeping(arguments.output.parent):
        sent = submission(suite, paths, arguments.memory)
    write_document(sent, arguments.output)
    if arguments.json:
        print_json({"suite": suite, "records": [record.as_dict() for record in sent.records]})
    else:
        told = ", ".join(dict.fromkeys(record.instance for record in sent.records))
        print(f"{escaped(str(arguments.output))}: better than what is known of {told}")
    return 0


def _verify(arguments: argparse.Namespace, words: list[str]) -> int:
    """Check all records of suites, by default of all, or of files."""
    from msgspec import UNSET

    from ..benchmark.sweeps.best_known import Registry, best_known, verify
    from ..benchmark.sweeps.shelf import with_documents
    from ..instances.files import read_document
    from ..instances.suites.suite import list_suites

    if arguments.output is not None:
        raise PebblerError("best-known verify writes no file; leave -o out")
    registries = [
        with_documents(read_document(word, Registry, "a registry"), Path(word).parent)
        if word.endswith(".json") or "/" in word or Path(word).is_file()
        else best_known(word)
        for word in words or list_suites()
    ]
    reasons = [reason for registry in registries for reason in verify(registry)]
    records = [record for registry in registries for record in registry.records]
    alone = sum(record.makespan_ns is not None and record.schedule is None for record in records)
    unproven = sum(record.lower_bound_ns > 0 and record.certificate is UNSET for record in records)
    if arguments.json:
        counts = {"records": len(records), "values_alone": alone, "bounds_alone": unproven}
        print_json({"valid": not reasons, **counts, "reasons": reasons})
    else:
        told = [f"{len(records)} records hold"]
        if alone:
            told.append(f"{alone} have no schedule here (those of suites lie in docs/data/best-known)")
        if unproven:
            told.append(f"{unproven} have a bound without a certificate")
        if alone or unproven:
            told.append("such values are taken as they are recorded, and not proven")
        print(*reasons or ["; ".join(told)], sep="\n")
    return 1 if reasons else 0


def _improve(arguments: argparse.Namespace) -> int:
    """Enter schedules and bounds into the file of a folder; what has been entered stays."""
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.sweeps.best_known import WHO, admit_file, improve
    from ..benchmark.sweeps.shelf import Shelf
    from ..heuristics.methods import find_method
    from ..heuristics.programs import require_program

    shelf, who = Shelf(arguments.output, arguments.suite), arguments.who or WHO
    for name in arguments.methods:
        find_method(name)
        require_program(name)
    require_folder(arguments.output)
    registry = shelf.read()
    results: list[Result] = []
    interrupted = False
    try:
        with keeping(arguments.output):
            for path in arguments.admit:
                better = admit_file(registry, path, arguments.memory, who=who)
                if better == registry:
                    _log.warning("%s is no better than what is known, and is left out", path)
                registry = better
                shelf.write(registry)
            for better, result in improve(
                registry,
                arguments.methods,
                time_limit=arguments.time_limit,
                seed=arguments.seed,
                workers=arguments.workers,
                memory=arguments.memory,
                gap=arguments.gap,
                select=arguments.select or ("*",),
                who=who,
            ):
                registry = better
                results.append(result)
                shelf.write(registry)
    except KeyboardInterrupt:
        interrupted = True
    shelf.write(registry)  # where nothing was, or the signal came before it was written
    _show(registry, escaped(str(shelf.file)), as_json=arguments.json)
    if interrupted:
        raise KeyboardInterrupt
    return 3 if results and all(result.failure is not None for result in results) else 0


def _show(registry: Registry, source: str, *, as_json: bool) -> None:
    from ..benchmark.output.table import format_table
    from ..instances.suites.suite import find_suite, members

    names = {member.name for member in members(find_suite(registry.suite))}
    if as_json:
        records = [record.as_dict() for record in registry.records]
        print_json({"suite": registry.suite, "instances": len(names), "records": records})
        return
    if registry.records:
        header = ("instance", "memory", "makespan", "gap", "lower bound", "bound by", "method")
        print(format_table(header, [_row(record) for record in registry.records], "llrrrll"))
        print("\n*: in exact arithmetic; other bounds are a solver's or a method's word\n")
    solved = names & {record.instance for record in registry.records if record.makespan_ns is not None}
    optimal = names & {record.instance for record in registry.records if record.optimal}
    told = f"{len(solved)} have a schedule, and {len(optimal)} an optimal one"
    print(f"{source}: of {len(names)} instances {told}")


def _row(record: Record) -> tuple[str, ...]:
    from ..instances.units import format_time

    unbounded = record.makespan_ns != record.lower_bound_ns == 0
    return (
        record.instance,
        record.memory_model,
        "none" if record.makespan_ns is None else format_time(record.makespan_ns),
        "" if record.makespan_ns is None or unbounded else f"{record.bound.gap(record.makespan_ns):.2%}",
        format_time(record.lower_bound_ns),
        record.bound_by + "*" * record.certified,
        record.method or "",
    )


def _schemas(arguments: argparse.Namespace) -> int:
    from ..benchmark.output.table import format_table
    from ..validate.schemas import FORMATS, schema_file, write_schemas

    if arguments.output is not None:
        if arguments.name is not None:
            raise PebblerError("NAME is printed and -o DIR gets all schemas; give one of the two")
        require_folder(arguments.output)
        files = write_schemas(arguments.output)
        if arguments.json:
            print_json({"files": files})
        else:
            print(f"{escaped(str(arguments.output))}: {', '.join(files)}")
    elif arguments.name is not None:
        print(schema_file(arguments.name).decode(), end="")
    else:
        summaries = {name: (kind.__doc__ or "").splitlines()[0] for name, kind in FORMATS.items()}
        if arguments.json:
            print_json({"schemas": [{"name": name, "summary": told} for name, told in summaries.items()]})
        else:
            print(format_table(("format", "what it is"), list(summaries.items()), "ll"))
    return 0
