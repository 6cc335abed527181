"""Programs of frameworks that copy saved tensors out and back by hooks: when, and what compute waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ...instances.instance import Instance
from ..program.builder import ProgramBuilder
from ..recomputation.plan import Policy, Recomputation, fastest_with_room, turn


class Hooks(Recomputation):
    """An iteration in which blocks leave and come back when a framework's hooks run.

    Blocks are copied out after the tasks that `packed_after` names, once the computation so far has ended.
    Hosted ones leave the device after their last use in the forward pass, and come back when a task needs
    them.

    Parameters
    ----------
    builder, policy, most_workspace
        As for `Recomputation`.
    packed_after
        For each block that is copied out, the task after which that is.
    """

    def __init__(
        self, builder: ProgramBuilder, policy: Policy, most_workspace: int, packed_after: Mapping[int, int]
    ) -> None:
        super().__init__(builder, policy, most_workspace)
        self.packed: dict[int, list[int]] = defaultdict(list)
        for d, k in packed_after.items():
            self.packed[k].append(d)
        self.last_run: tuple[int, ...] = ()
        self.waits: set[int] = set()

    def _run(self, k: int) -> None:
        """Run a task after what compute has been told to wait for."""
        algorithm = fastest_with_room(self.builder, k, self.most_workspace)
        self.last_run = (self.builder.run(k, algorithm, after=self.waits),)
        self.waits = set()

    def _leave(self, k: int) -> None:
        for d in self.packed.get(k, ()):
            if not self.builder.on_host(d):
                self._pack(d)
        for d in self.last_forward.get(k, ()):
            self._forget(d)

    def _pack(self, d: int) -> None:
        """Copy a block out."""
        self.builder.offload(d, after=self.last_run)

    def _forget(self, d: int) -> None:
        """Release a block that the forward pass uses no more."""
        self.builder.release(d)


class Reloading(Hooks):
    """What comes back early does so on a stream of its own, once the computation so far has ended."""

    def _early(self, d: int) -> None:
        self.builder.prefetch(d, after=self.last_run)


class Synchronous(Hooks):
    """Compute waits for each copy out before it goes on."""

    def _pack(self, d: int) -> None:
        self.waits.add(self.builder.offload(d, after=self.last_run))


class OnComputeStream(Synchronous):
    """All copies are on the stream of the computation: they wait for each other."""

    def _fetch(self, d: int) -> None:
        self.builder.prefetch(d, after=self.last_run)


class Stashing(Hooks):
    """All copies are on one other stream, and a stash keeps what has been copied out last.

    When a block is packed, compute waits for the copy of the one that was packed `_STASH` before, and lets it
    go; the first task of the backward pass that reads a packed block lets all of them go. A block comes back
    once the task has ended that is before the last one for which something came back.

    Parameters
    ----------
    builder, policy, most_workspace, packed_after
        As for `Hooks`. Blocks that are not hosted stay on the device although they are copied out.
    let_go
        Blocks that leave the device in the backward pass, by the task after which they do.
    """

    _STASH = 5

    def __init__(
        self,
        builder: ProgramBuilder,
        policy: Policy,
        most_workspace: int,
        packed_after: Mapping[int, int],
        let_go: Mapping[int, list[int]],
    ) -> None:
        super().__init__(builder, policy, most_workspace, packed_after)
        self.copied, self.let_go = packed_after.keys(), let_go
        self.stash: dict[int, int] = {}
        self.done: set[int] = set()
        self.nodes: list[tuple[int, ...]] = [(), ()]
        self.brought = False

    def _pack(self, d: int) -> None:
        if len(self.stash) == self._STASH:
            self._unstash(next(iter(self.stash)))
        self.stash[d] = self.builder.offload(d, after=self.last_run)

    def _unstash(self, d: int) -> None:
        self.waits.add(self.stash.pop(d))
        if d in self.done and self.builder.is_resident(d):
            self.builder.release(d)

    def _forget(self, d: int) -> None:
        if d in self.stash:
            self.done.add(d)
        else:
            super()._forget(d)

    def _fetch(self, d: int) -> None:
        self.brought = True
        self.builder.prefetch(d, after=self.nodes[-2])

    def _leave(self, k: int) -> None:
        super()._leave(k)
        if k < self.end:
            return
        if any(d in self.copied for d in self.instance.tasks[k].inputs):
            for d in list(self.stash):
                self._unstash(d)
        for d in self.let_go.get(k, ()):
            self.builder.release(d)
        if self.brought:
            self.nodes.append(self.last_run)
            self.brought = False


def last_read(instance: Instance, blocks: Iterable[int]) -> dict[int, int]:
    """Return, for some blocks, the last task of the forward pass that uses them."""
    end = turn(instance)
    return {d: max(k for k in instance.uses[d] if k < end) for d in blocks}
