"""NVIDIA's cudnn-frontend: convolutions as execution plans that cuDNN's heuristics propose.

A plan is an engine of cuDNN with its knobs set; its name says which (``eng7_k2=0``), and it has its own
workspace. As in the legacy interface, tensors are NCHW in single precision, and plans that use tensor cores
or round are left out. A graph has no factor for previous values of the result, so plans only write.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ....instances.importers.extras import require_extra
from ..device import DeviceError
from .cudnn import load_cudnn
from .providers import PLAN, Convolution

_log = logging.getLogger(__name__)


class CudnnFrontend:
    """A handle of cuDNN on a stream, used by cudnn-frontend.

    Parameters
    ----------
    stream
        Handle of the stream on which it computes.

    Raises
    ------
    PebblerError
        When cudnn-frontend or cuDNN is missing.
    """

    def __init__(self, stream: int) -> None:
        require_extra("cudnn", "cudnn-frontend")
        library = load_cudnn()
        import cudnn

        # It looks for cuDNN in fewer places; both providers are to use the same.
        cudnn._pybind_module._set_dlhandle_cudnn(library.loaded._handle)
        self.module = cudnn
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=stream)
        self._described: dict[tuple[object, ...], Plans] = {}

    @property
    def version(self) -> str:
        """Version of cudnn-frontend, such as 1.23.0."""
        return str(self.module.__version__)

    def close(self) -> None:
        """Release the handle and all plans."""
        self._described.clear()
        self.module.destroy_handle(self.handle)

    def describe(self, convolution: Convolution) -> Plans:
        """Return the plans of a convolution; convolutions of the same shapes share their plans."""
        sizes = (convolution.pad, convolution.stride)
        key = (convolution.which, convolution.x, convolution.w, convolution.y, *sizes)
        if key not in self._described:
            self._described[key] = Plans(self, convolution)
        return self._described[key]


class Plans:
    """The plans of a convolution, which are made when they are first needed."""

    def __init__(self, frontend: CudnnFrontend, convolution: Convolution) -> None:
        self._frontend = frontend
        self._convolution = convolution
        self._usable: dict[str, int | None] = {}
        notes = frontend.module.numerical_note
        rounding = [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
        self._graph, self._tensors = self._proposed(rounding)
        self._repeatable = [*rounding, notes.NONDETERMINISTIC]

    @cached_property
    def _places(self) -> dict[str, int]:
        """Return the position of each plan in the list of the heuristics, which may name one twice."""
        found: dict[str, int] = {}
        if self._graph is not None:
            for index in range(self._graph.get_execution_plan_count()):
                found.setdefault(PLAN + self._graph.get_plan_name_at_index(index), index)
        return found

    def algorithms(self) -> Sequence[tuple[str, int]]:
        """Return the names of the plans that cuDNN can make, each with its workspace."""
        sizes = ((name, self.workspace_bytes(name)) for name in self._places)
        return [(name, size) for name, size in sizes if size is not None]

    def workspace_bytes(self, algorithm: str) -> int | None:
        """Return the bytes that a plan needs; None if cuDNN does not propose it here, or cannot make it."""
        if algorithm not in self._usable:
            size = None
            if self._made(self._graph, algorithm):
                size = self._graph.get_workspace_size_plan_at_index(self._places[algorithm])
            self._usable[algorithm] = size
        return self._usable[algorithm]

    def is_deterministic(self, algorithm: str) -> bool:
        """Return whether cuDNN makes the plan when those with varying results are excluded."""
        return self._made(self._proposed(self._repeatable)[0], algorithm)

    def compute(self, algorithm: str, x: int, w: int, y: int, workspace: int, workspace_bytes: int) -> None:
        """Issue the convolution on the stream."""
        del workspace_bytes  # known to be enough
        places = dict(zip(self._tensors, (x, w, y), strict=True))
        index = self._places[algorithm]
        try:
            self._graph.execute_plan_at_index(places, workspace, index, handle=self._frontend.handle)
        except (RuntimeError, self._frontend.module.cudnnGraphNotSupportedError) as error:
            raise DeviceError(f"cudnn-frontend: {_sentence(error)}") from None

    def _made(self, graph: Any, algorithm: str) -> bool:
        """Let cuDNN make a plan; return whether it can."""
        if algorithm not in self._places:
            return False
        return self._done(algorithm, lambda: graph.build_plan_at_index(self._places[algorithm]))

    def _done(self, what: str, work: Callable[[], object]) -> bool:
        """Do something that cuDNN may refuse; other failures are logged, and count as a refusal."""
        try:
            work()
        except self._frontend.module.cudnnGraphNotSupportedError:
            return False
        except RuntimeError as error:
            _log.warning("cudnn-frontend, %s: %s", what, _sentence(error))
            return False
        return True

    def _proposed(self, without: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """Return a graph with the heuristics' plans, and its x, w and y; None if cuDNN has no plan."""
        module, convolution = self._frontend.module, self._convolution
        single = module.data_type.FLOAT
        types = dict.fromkeys(("io_data_type", "intermediate_data_type", "compute_data_type"), single)
        graph = module.pygraph(handle=self._frontend.handle, **types)
        shapes = {"x": convolution.x, "w": convolution.w, "y": convolution.y}
        result = {"forward": "y", "backward_data": "x", "backward_filter": "w"}[convolution.which]
        tensors = {
            name: graph.tensor(dim=list(shape), stride=_strides(shape), data_type=single, name=name)
            for name, shape in shapes.items()
            if name != result
        }
        how = {"padding": [convolution.pad] * 2, "stride": [convolution.stride] * 2, "dilation": [1, 1]}
        if convolution.which == "forward":
            output = graph.conv_fprop(image=tensors["x"], weight=tensors["w"], **how)
        elif convolution.which == "backward_data":
            output = graph.conv_dgrad(loss=tensors["y"], filter=tensors["w"], **how)
        else:
            output = graph.conv_wgrad(image=tensors["x"], loss=tensors["y"], **how)
        output.set_output(True).set_data_type(single)
        output.set_dim(list(shapes[result])).set_stride(_strides(shapes[result]))
        tensors[result] = output

        def propose() -> None:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])

        if not self._done(f"{convolution.which} of {convolution.x} with {convolution.w}", propose):
            return None, ()
        graph.deselect_numeric_notes(list(without))
        return graph, (tensors["x"], tensors["w"], tensors["y"])


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the distance between neighbours in each dimension in values, without gaps."""
    return list(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))[::-1]


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())
