"""A training loop that is interrupted again and again, and tells after each interrupt whether all is well.

It prints ``ready`` when it trains, and after an interrupt ``before`` or ``after``, as module, optimizer and
generator are those of before or after the step that it was at; or else what is wrong with them.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from .models import noisy
from .training import are_equal, batches_of, eager_step, made_by, planned, state_of


def main() -> None:
    torch.set_num_threads(1)
    plan = planned(noisy, "1.2xMmin", method="modnn")
    eager, ours = made_by(noisy), made_by(noisy)
    batches = batches_of(eager, 16)
    torch.manual_seed(7)
    eager_step(eager)(*batches[0])
    states = [[], state_of(eager)]  # after so many steps; eager torch catches up where they are asked for
    torch.manual_seed(7)
    eager_step(ours)(*batches[0])

    def wanted(count: int) -> Any:
        generator = torch.get_rng_state()
        while len(states) <= count:
            torch.set_rng_state(states[-1][-1])
            eager_step(eager)(*batches[(len(states) - 1) % len(batches)])
            states.append(state_of(eager))
        torch.set_rng_state(generator)
        return states[count]

    def batch() -> Any:
        return batches[count % len(batches)]

    count = 1
    for turn in itertools.count():
        try:
            if turn % 4 == 0:  # so that binding is interrupted, too
                print("ready", flush=True)
            with plan.bind(ours[0], ours[3]) as step:
                if turn % 4:
                    print("ready", flush=True)
                while True:
                    step(*batch())
                    count += 1
        except KeyboardInterrupt:
            now = state_of(ours)
        if are_equal(now, wanted(count)):
            told = "before"
        elif are_equal(now, wanted(count + 1)):
            count, told = count + 1, "after"
        else:
            told = f"neither the bits of {count} steps nor of {count + 1}"
        eager_step(ours)(*batch())
        count += 1
        with plan.bind(ours[0], ours[3]) as step:
            step(*batch())
            count += 1
        if not are_equal(state_of(ours), wanted(count)):
            told = "training did not go on with eager torch's bits"
        print(told, flush=True)


if __name__ == "__main__":
    main()
