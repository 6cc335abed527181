"""Checks a contiguous schedule for one GPU, with the Python standard library alone.

    python check.py INSTANCE.json SCHEDULE.json

Exit status: 0 valid, 1 not valid (a reason a line), 2 not two files of these formats.
"""

import hashlib
import json
import sys
from pathlib import Path


def check(instance, schedule):
    """Return why a contiguous schedule for one GPU may fail, however long its operations take."""
    blocks, tasks, operations = instance["blocks"], instance["tasks"], schedule["operations"]
    beyond = {"cluster", "host_budget_bytes", "link"} & instance.keys() or schedule[
        "memory_model"
    ] != "contiguous"
    beyond = beyond or any(block.get("initially") == "carried" for block in blocks)
    beyond = beyond or any({"on", "takes_over"} & way.keys() for k in tasks for way in k["algorithms"])
    if beyond or any("slowdown_ppm" in k for k in tasks):
        return ["the files use what this checker does not know"]
    wrong = [] if schedule["instance"] == instance["name"] else ["the schedule is for another instance"]

    def need(holds, p, told):
        if not holds:
            wrong.append(told if p < 0 else f"operation {operations[p]['id']}: {told}")

    # Operations: their streams and times, and (as bits) which of them have ended whenever one starts.
    copy = "copy" if instance["engines"] == "single" else None
    streams = {"run": "compute", "move": "compute", "offload": copy or "d2h", "prefetch": copy or "h2d"}
    place, ended, ends, last, first, ways = {}, [], [], {}, {}, {}
    for p, op in enumerate(operations):
        earlier = [place[i] for i in op.get("after", [])] + last.get(op["stream"], [])
        place[op["id"]], last[op["stream"]] = p, [p]
        ended.append(0)
        for q in earlier:
            ended[p] |= ended[q] | 1 << q
        if op["kind"] == "run":
            ways[p] = tasks[op["task"]]["algorithms"][op["algorithm"]]
            again = first.setdefault(op["task"], p) != p
            need(not again or tasks[op["task"]].get("recomputable"), p, "this task may not run again")
        time = ways[p]["duration_ns"] if p in ways else blocks[op["block"]].get(op["kind"] + "_ns")
        start = max((ends[q] for q in earlier), default=0)
        ends.append(start + (time or 0))
        need(time is not None, p, "such a copy is impossible")
        need(
            (op["start_ns"], op["end_ns"]) == (start, ends[p]), p, f"it takes place from {start} to {ends[p]}"
        )
        need(op["stream"] == streams[op["kind"]], p, "it is on the wrong stream")
    need([*first] == [*range(len(tasks))], -1, "not all tasks run, or not in their order")
    need(schedule["makespan_ns"] == max(ends, default=0), -1, "makespan_ns is wrong")

    def before(q, p):  # whether q has ended whenever p starts; -1 is the start of the round
        return q < 0 or (p >= 0 and ended[p] >> q & 1)

    def gone(stay, p):  # whether a residence has been released whenever p starts
        return stay["free"] and all(p >= 0 and before(q, p) for q in stay["free"])

    def made(p):  # what a run writes for the first time: all outputs of its task, or those of its algorithm
        return ways[p].get("outputs", tasks[operations[p]["task"]]["outputs"])

    # Residences: who acquires them, their sizes and places, and that no two share bytes or a block.
    pool, unit = instance["budget_bytes"] - instance["resident_bytes"], instance.get("alignment_bytes", 512)
    stays = []
    for stay in schedule["residences"]:
        p = -1 if stay.get("acquired_by") is None else place[stay["acquired_by"]]
        stays.append(
            dict(
                stay,
                p=p,
                end=stay["offset"] + stay["bytes"],
                free=[place[i] for i in stay.get("released_after", [])],
            )
        )
    stays.sort(key=lambda stay: stay["p"])
    for n, stay in enumerate(stays):
        p, d = stay["p"], stay.get("block")
        need(all(q == p or before(p, q) for q in stay["free"]), p, "what it acquires is released before that")
        need(
            stay["offset"] % unit == 0 and stay["end"] <= pool,
            p,
            "a residence is outside of the pool or not aligned",
        )
        if d is None:
            right = p in ways and place[stay["workspace_of"]] == p and stay["free"] == [p]
            need(
                right and stay["bytes"] == ways[p]["workspace_bytes"], p, "a workspace is not that of its run"
            )
        else:
            kind = operations[p]["kind"] if p >= 0 else "start"
            brought = made(p) if kind == "run" else [operations[p].get("block")]
            right = blocks[d].get("initially") == "device" if p < 0 else kind != "offload" and d in brought
            need(right and stay["bytes"] == blocks[d]["bytes"], p, f"it does not bring all of block {d}")
        for old in stays[:n]:
            share = old["offset"] < stay["end"] and stay["offset"] < old["end"]
            need(not share or gone(old, p), p, "it acquires bytes that may still be in use")
        same = [old for old in stays[:n] if d is not None and old.get("block") == d][-1:]
        moved = p >= 0 and operations[p]["kind"] == "move"
        for old in same:
            parting = moved and p in old["free"] and all(q == p or before(q, p) for q in old["free"])
            need(parting or (not moved and gone(old, p)), p, f"block {d} may still be elsewhere")
    peak = instance["resident_bytes"] + max((stay["end"] for stay in stays), default=0)
    need(peak == schedule["peak_bytes"] and pool >= 0, -1, "peak_bytes is wrong or over the budget")

    # Data: from the top of the list to its end, which version of a block is where, and who may use it.
    finds, count = [], [0] * len(blocks)  # the versions that each task finds
    for task in tasks:
        finds.append(list(count))
        for d in [*task["outputs"], *task.get("updates", [])]:
            count[d] += 1
    current, found = {}, []  # the last residence of each block; what is known of each block
    for block in blocks:
        host = None if block.get("initially", "absent") == "absent" else 0
        found.append(
            {"device": 0, "host": host, "latest": 0, "writer": -1, "saver": -1, "copier": -1, "readers": []}
        )
    for p in range(-1, len(operations)):
        arrived = {stay["block"]: stay for stay in stays if stay["p"] == p and stay.get("block") is not None}
        if p < 0:
            current.update(arrived)
            continue
        op, task = operations[p], tasks[operations[p]["task"]] if p in ways else {"inputs": [], "outputs": []}
        space = sum(stay["p"] == p and stay.get("block") is None for stay in stays)
        need(
            space == (p in ways and ways[p]["workspace_bytes"] > 0),
            p,
            "it has too many workspaces or too few",
        )
        updates, outputs = task.get("updates", []), made(p) if p in ways else []
        reads = [*ways.get(p, {}).get("inputs", task["inputs"]), *updates]
        if p in ways:
            current.update(arrived)
        uses = [*reads, *outputs] if p in ways else [op["block"]] * (op["kind"] != "prefetch")
        for d in uses:
            stay = current.get(d)
            there = stay and (stay["p"] == p or before(stay["p"], p))
            kept = there and (not stay["free"] or any(q == p or before(p, q) for q in stay["free"]))
            need(kept, p, f"block {d} need not be on the device")
        for d in reads:
            need(
                found[d]["device"] == finds[op["task"]][d],
                p,
                f"block {d} is not in the version that it needs",
            )
        for d in [*updates, *outputs]:
            it, version = found[d], finds[op["task"]][d] + 1
            need(before(it["saver"], p) and version >= it["latest"], p, f"it may spoil block {d}")
            it.update(device=version, latest=version, writer=p)
        bases = {}
        for d in uses if p in ways else []:
            if "tensor" in blocks[d] and d in current:
                bases.setdefault(blocks[d]["tensor"], set()).add(current[d]["offset"] - blocks[d]["begin"])
        need(all(len(base) == 1 for base in bases.values()), p, "parts of a tensor are not where they belong")
        if p in ways:
            continue
        d, it = op["block"], found[op["block"]]
        version = it["host" if op["kind"] == "prefetch" else "device"]
        need(version is not None and version == it["latest"], p, f"it copies an old version of block {d}")
        if op["kind"] == "offload":
            free = all(q == p or before(q, p) for q in [it["copier"], *it["readers"]])
            need(free and before(it["writer"], p), p, f"block {d} is still being written or copied")
            it.update(host=version, saver=p, copier=p, readers=[])
            continue
        need(d in arrived, p, f"it has no place for block {d}")
        waits = it["copier"] if op["kind"] == "prefetch" else it["saver"]
        need(before(waits, p) and (op["kind"] == "prefetch" or before(it["writer"], p)), p, "it is too early")
        it["readers"] += [p] * (op["kind"] == "prefetch")
        it.update(device=version, writer=p, saver=-1)
        current.update(arrived)
    for d, block in enumerate(blocks):
        end, it, stay = block.get("finally", "anywhere"), found[d], current.get(d)
        need(end != "host" or it["host"] == it["latest"], -1, f"block {d} does not end on the host")
        kept = stay and not stay["free"] and it["device"] == it["latest"]
        need(end != "device" or kept, -1, f"block {d} does not end on the device")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: python check.py INSTANCE.json SCHEDULE.json", file=sys.stderr)
        sys.exit(2)
    try:
        data = [Path(name).read_bytes() for name in sys.argv[1:]]
        instance, schedule = map(json.loads, data)
        reasons = check(instance, schedule)
    except (OSError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        told = error if isinstance(error, OSError) else f"the files break a rule of their formats: {error!r}"
        print(told, file=sys.stderr)
        sys.exit(2)
    if schedule.get("instance_sha256") not in (None, hashlib.sha256(data[0]).hexdigest()):
        reasons.append("instance_sha256 is not the checksum of the instance's file")
    print(*reasons or ["valid"], sep="\n")
    sys.exit(bool(reasons))
