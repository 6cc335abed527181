"""The round after a round: it begins where that has ended, in paged memory with its pages renamed."""

from __future__ import annotations

import msgspec

from ..schedule import Residence, Schedule
from .binding import Binding
from .durations import number


def next_round(bound: Binding) -> Binding | None:
    """Bind the round after the first one; return None if there is nothing to carry, or no way to go on.

    There is no way to go on if pages cannot be renamed, because some are held twice at one end. That is a
    fault of the first round.
    """
    if not bound.instance.carried:
        return None
    schedule = _renamed(bound) if bound.schedule.memory_model == "paged" else bound.schedule
    return None if schedule is None else Binding(bound.instance, schedule, rounds_before=1)


def _renamed(bound: Binding) -> Schedule | None:
    """Rename the pages of a schedule so that carried blocks begin on the pages where they have ended.

    The other pages are renamed in the order of their addresses.
    """
    schedule, page = bound.schedule, number(bound.schedule.page_bytes)
    layout, places = bound.layouts["device"], bound.last_place["device"]
    pages = [_pages(residence, page) for residence in schedule.residences]
    pairs = [
        pair
        for r in layout.at_start
        if (d := schedule.residences[r].block) in bound.instance.carried
        for pair in zip(pages[r], pages[places[d]], strict=False)
    ]
    new = dict(pairs)
    taken = set(new.values())
    if not len(pairs) == len(new) == len(taken):
        return None
    known = sorted({p for several in pages for p in several})
    new.update(zip([p for p in known if p not in new], [p for p in known if p not in taken], strict=True))
    residences = tuple(
        msgspec.structs.replace(residence, extents=tuple((new[p], page) for p in several))
        for residence, several in zip(schedule.residences, pages, strict=True)
    )
    return msgspec.structs.replace(schedule, residences=residences)


def _pages(residence: Residence, page: int) -> list[int]:
    """Return the addresses of a residence's pages, in its order."""
    extents = residence.extents or ()
    return [address for begin, size in extents for address in range(begin, begin + size, page)]
