"""A solver of a page, written from docs/formats.md alone: it imports nothing of pebbler.

Blocks are placed one after the other. When the pool is full, all of them leave, and what the next task reads
comes back. Operations run one at a time. Call it as ``page_solver.py INSTANCE SCHEDULE``.
"""

import json
import sys
from pathlib import Path

instance = json.loads(Path(sys.argv[1]).read_text())
blocks, tasks = instance["blocks"], instance["tasks"]
pool, unit = instance["budget_bytes"] - instance["resident_bytes"], instance.get("alignment_bytes", 512)
copies = {"duplex": ("d2h", "h2d"), "single": ("copy", "copy")}[instance["engines"]]
streams = dict(zip(("run", "offload", "prefetch"), ("compute", *copies), strict=True))
touched = [task["inputs"] + task.get("updates", []) for task in tasks]
touched.append([d for d, block in enumerate(blocks) if block.get("finally") == "device"])  # at the end
operations, residences = [], []
here, on_host, top = (
    {},
    set(),
    0,
)  # what is on the device, what has a copy on the host, and where there is room


def rounded(size):
    return -(-size // unit) * unit


def operate(kind, nanoseconds, **what):
    begin, number = operations[-1]["end_ns"] if operations else 0, len(operations)
    times = {"after": [number - 1] if number else [], "start_ns": begin, "end_ns": begin + nanoseconds}
    operations.append({"id": number, "kind": kind, "stream": streams[kind], **what, **times})
    return number


def place(size, acquired_by, **what):
    global top
    residences.append(
        {**what, "bytes": size, "offset": top, "acquired_by": acquired_by, "released_after": []}
    )
    top += -(-size // unit) * unit
    return residences[-1]


def copy(kind, d):
    if (nanoseconds := blocks[d][f"{kind}_ns"]) is None:
        sys.exit(f"block {blocks[d]['name']} would have to be copied and cannot be")
    return operate(kind, nanoseconds, block=d)


def leave(d, k):
    """Release a block before task `k`, with a copy on the host if it is needed once more."""
    needed = blocks[d].get("finally") == "host" or any(d in later for later in touched[k:])
    if not operations or (needed and d not in on_host):  # a residence ends after an operation
        copy("offload", d)
        on_host.add(d)
    here.pop(d)["released_after"] = [operations[-1]["id"]]


def load(k, sizes=()):
    """Bring what task `k` reads; everything leaves before that if there is no room for it and for `sizes`."""
    global top
    coming = [blocks[d]["bytes"] for d in touched[k] if d not in here]
    if top + sum(map(rounded, (*coming, *sizes))) > pool:
        for d in list(here):
            leave(d, k)
        top = 0
    for d in touched[k]:
        if d not in here:
            here[d] = place(blocks[d]["bytes"], copy("prefetch", d), block=d)


for d, block in enumerate(blocks):
    if block.get("initially", "absent") != "absent":
        on_host.add(d)
    if block.get("initially") == "device":
        here[d] = place(block["bytes"], None, block=d)
for k, task in enumerate(tasks):
    outputs = [blocks[d]["bytes"] for d in task["outputs"]]
    room = pool - sum(rounded(blocks[d]["bytes"]) for d in touched[k] + task["outputs"])
    fitting = [a for a in enumerate(task["algorithms"]) if a[1]["workspace_bytes"] <= room]
    number, algorithm = min(fitting, key=lambda a: a[1]["duration_ns"])
    load(k, (*outputs, algorithm["workspace_bytes"]))
    done = operate("run", algorithm["duration_ns"], task=k, algorithm=number)
    for d in task["outputs"]:
        here[d] = place(blocks[d]["bytes"], done, block=d)
    if algorithm["workspace_bytes"]:
        full = top
        place(algorithm["workspace_bytes"], done, workspace_of=done)["released_after"] = [done]
        top = full  # its room is free again
    on_host.difference_update(task.get("updates", []))
load(len(tasks))
for d in list(here):
    if blocks[d].get("finally") != "device":
        leave(d, len(tasks))
schedule = {
    "format": "pebbler/schedule/1",
    "instance": instance["name"],
    "method": "page-solver",
    "memory_model": "contiguous",
    "operations": operations,
    "residences": residences,
    "makespan_ns": operations[-1]["end_ns"],
    "peak_bytes": instance["resident_bytes"] + max(r["offset"] + r["bytes"] for r in residences),
}
Path(sys.argv[2]).write_text(json.dumps(schedule))
