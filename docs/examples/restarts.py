#!/usr/bin/env python3
"""The rule of baseline.py with random choices, again and again: the shortest schedule so far is in the file.

Call it as restarts.py INSTANCE.json SCHEDULE.json [--time-limit SECONDS]; the default is ten seconds.
"""

import os
import random
import sys
import time
from functools import partial
from pathlib import Path

from baseline import plan, read, schedule


def main(instance_file, schedule_file, seconds):
    """Write better and better schedules, each as a whole, until the time is over."""
    ends, best = time.monotonic() + seconds, None
    rng = random.Random(int(os.environ.get("PEBBLER_SEED", "0")))
    instance, spread = read(instance_file), 0.0
    while best is None or time.monotonic() < ends:
        try:
            operations, stays = plan(instance, partial(rng.uniform, 1.0, 1.0 + spread))
        except MemoryError:
            if time.monotonic() >= ends:
                raise
            operations = None
        spread = rng.uniform(0.0, 1.0)  # the first time there is none
        makespan = max(one["end_ns"] for one in operations) if operations else best
        if operations and (best is None or makespan < best):
            best = makespan
            part = Path(f"{schedule_file}.part")
            part.write_text(schedule(instance, operations, stays, "restarts"))
            part.replace(schedule_file)


if __name__ == "__main__":
    limit = float(sys.argv[4]) if sys.argv[3:4] == ["--time-limit"] else 10.0
    try:
        main(sys.argv[1], sys.argv[2], 0.9 * limit)
    except MemoryError as error:
        print(error, file=sys.stderr)
