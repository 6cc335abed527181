#!/usr/bin/env python3
"""A schedule by one rule, with the Python standard library alone: what is read last leaves first.

Call it as baseline.py INSTANCE.json SCHEDULE.json; where it has no schedule it writes no file, and says why.
"""

import json
import sys
from pathlib import Path


def plan(instance, noise=lambda: 1.0):
    """Return operations and residences for one GPU; raise MemoryError where the rule finds no place."""
    blocks, tasks = instance["blocks"], instance["tasks"]
    pool, unit = instance["budget_bytes"] - instance["resident_bytes"], instance.get("alignment_bytes", 512)
    out, back = ("copy", "copy") if instance["engines"] == "single" else ("d2h", "h2d")
    operations, ends, stays, here, now = [], {}, [], {}, [0]  # `here`: what is on the device, by block
    saved = {d: [] for d, block in enumerate(blocks) if block.get("initially", "absent") != "absent"}
    kept = [d for d, block in enumerate(blocks) if block.get("finally") == "device"]
    nothing = {"duration_ns": 0, "workspace_bytes": 0}
    tasks = [*tasks, {"inputs": kept, "outputs": [], "algorithms": [nothing]}]  # these are there in the end
    reads = [[] for _ in blocks]  # the tasks that still have to read a block
    for k, task in enumerate(tasks):
        for d in {*task["inputs"], *task.get("updates", [])}:
            reads[d].append(k)

    def operation(kind, stream, ns, after, **what):  # it waits for the last of each stream in `after`
        after = sorted({operations[p]["stream"]: p for p in sorted(after)}.values())
        start = max([ends.get(stream, 0), *(operations[p]["end_ns"] for p in after)])
        ends[stream], what = start + ns, {"id": len(operations), "kind": kind, "stream": stream, **what}
        operations.append({**what, "after": after, "start_ns": start, "end_ns": start + ns})
        return what["id"]

    def hole(size):  # the lowest free place
        at = 0
        for stay in sorted(here.values(), key=lambda stay: stay["offset"]):
            if at + size > stay["offset"]:
                at = max(at, -(-(stay["offset"] + stay["bytes"]) // unit) * unit)
        return at if at + size <= pool else None

    def unsaved(d):  # whether the host lacks a copy that is needed
        return d not in saved and (reads[d] or blocks[d].get("finally") == "host")

    def may_leave(d):
        copied = blocks[d]["offload_ns"] is not None or not unsaved(d)
        return copied and (blocks[d]["prefetch_ns"] is not None or not reads[d])

    def leave(d):
        stay = here.pop(d)
        if unsaved(d):
            saved[d] = [operation("offload", out, blocks[d]["offload_ns"], stay["after"], block=d)]
            stay["after"] = stay["after"] + saved[d]
        if not stay["after"]:
            stays.remove(stay)  # nothing has used it: it was never there

    def take(size, d, keep):  # a place for a block, or for a workspace; what has to end before
        while (at := hole(size)) is None:
            gone = [one for one in here if one not in keep and may_leave(one)]
            if not gone:
                raise MemoryError(f"there is no place for {size} bytes")
            leave(max(gone, key=lambda one: noise() * ((reads[one] or [len(tasks)])[0] - now[0])))
        over = [s for s in stays if s["block"] == d or s["offset"] - size < at < s["offset"] + s["bytes"]]
        here[d] = {"block": d, "bytes": size, "offset": at, "by": -1, "after": []}
        stays.append(here[d])
        return [p for stay in over for p in stay["after"]]

    def ready(task, mine):  # places for all that a task needs; its algorithm, and what has to end before
        for d in [d for d in mine if d not in here and d not in task["outputs"]]:
            if blocks[d]["prefetch_ns"] is None:
                raise MemoryError(f"block {d} cannot be copied back")
            after = take(blocks[d]["bytes"], d, mine) + saved[d]
            by = operation("prefetch", back, blocks[d]["prefetch_ns"], after, block=d)
            here[d].update(by=by, after=[by])
        waits = [p for d in mine if d in here for p in here[d]["after"]]
        for d in [d for d in task["outputs"] if d not in here]:
            waits += take(blocks[d]["bytes"], d, mine)
        ways = sorted(
            (way["duration_ns"], way["workspace_bytes"], a)
            for a, way in enumerate(task["algorithms"])
            if not {"inputs", "outputs"} & way.keys()  # some algorithm reads and makes what the task says
        )
        way = next((way for way in ways if hole(way[1]) is not None), min(ways, key=lambda way: way[1]))
        return way, waits + (take(way[1], None, mine) if way[1] else [])

    for d in sorted(saved, key=lambda d: (blocks[d]["prefetch_ns"] is not None, reads[d])):
        if blocks[d]["initially"] == "device" and hole(blocks[d]["bytes"]) is not None:
            take(blocks[d]["bytes"], d, here)
            here[d]["by"] = None
    for k, task in enumerate(tasks):
        now[0] = k
        mine = dict.fromkeys([*task["inputs"], *task.get("updates", []), *task["outputs"]])
        try:
            way, waits = ready(task, mine)
        except MemoryError:  # all leave, and what the task needs comes back side by side
            for d in [d for d in here if here[d]["by"] == -1]:
                stays.remove(here.pop(d))
            for d in [d for d in here if may_leave(d)]:
                leave(d)
            way, waits = ready(task, mine)
        if k == len(tasks) - 1:
            break
        run = operation("run", "compute", way[0], waits, task=k, algorithm=way[2])
        for stay in here.values():
            stay["by"] = run if stay["by"] == -1 else stay["by"]
        for d in mine:
            here[d]["after"], reads[d] = [run], [later for later in reads[d] if later > k]
            if d in task["outputs"] or d in task.get("updates", []):
                saved.pop(d, None)
            if not reads[d] and may_leave(d):
                leave(d)
        if None in here:
            here.pop(None)["after"] = [run]
    for stay in here.values():
        stay["after"] = []
    return operations, stays


def read(path):
    """Return an instance; raise MemoryError where it has what this program does not know."""
    text = Path(path).read_text()
    beyond = ("cluster", "host_budget_bytes", "link", "slowdown_ppm", "on", "tensor")
    if '"carried"' in text or any(f'"{key}":' in text for key in beyond):
        raise MemoryError("the instance has what this program does not know")
    return json.loads(text)


def schedule(instance, operations, stays, method):
    """Return the text of a schedule's file."""
    head = {"format": "pebbler/schedule/1", "instance": instance["name"], "method": method}
    top = max((stay["offset"] + stay["bytes"] for stay in stays), default=0)
    head |= {"memory_model": "contiguous", "peak_bytes": instance["resident_bytes"] + top}
    head |= {"makespan_ns": max(one["end_ns"] for one in operations), "operations": operations}
    for stay in stays:
        d, by, after = stay.pop("block"), stay.pop("by"), stay.pop("after")
        stay |= {"acquired_by": by, "released_after": after}
        stay |= {"workspace_of": by} if d is None else {"block": d}
    return json.dumps({**head, "residences": stays})


if __name__ == "__main__":
    try:
        found = read(sys.argv[1])
        Path(sys.argv[2]).write_text(schedule(found, *plan(found), "baseline"))
    except MemoryError as error:
        print(error, file=sys.stderr)
