from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from pebbler import find_method, find_network, find_suite
from pebbler.instances.devices.caffe import find_layer
from pebbler.instances.devices.device import find_device
from pebbler.instances.errors import LONGEST, BudgetError, DefectError, FormatError, PebblerError, printable
from pebbler.instances.importers.torch_workload import find_step
from pebbler.instances.transforms import with_link
from pebbler.instances.units import parse_size, parse_time
from pebbler.instances.workload import Workload
from pebbler.validate.execution.backends import find_backend

HOSTILE = "lenet\n\x1b[2J\u2028\udcff\x00"


@pytest.mark.parametrize(
    "call",
    [
        find_network,
        find_device,
        find_suite,
        find_method,
        find_layer,
        find_step,
        find_backend,
        parse_size,
        parse_time,
        lambda name: Workload(name, 8, "v100").instance(2**40),
        lambda name: Workload("lenet", 8, name).instance(2**40),
        lambda name: with_link(Workload("lenet", 8, "v100").instance(2**40), name),
        lambda name: find_method("modnn").require_rules([name]),
    ],
)
def test_an_error_is_one_printable_line_whatever_it_quotes(call: Callable[[str], object]) -> None:
    with pytest.raises(PebblerError) as caught:
        call(HOSTILE)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", [PebblerError, FormatError, BudgetError, DefectError])
def test_errors_keep_what_prints_and_survive_another_process(kind: type[Exception]) -> None:
    assert str(kind("größer als 1 \N{MULTIPLICATION SIGN} 2")) == "größer als 1 \N{MULTIPLICATION SIGN} 2"
    error = pickle.loads(pickle.dumps(kind("a\nb")))
    assert str(error) == "a\\nb"
    assert type(error) is kind


def test_a_line_for_the_terminal_is_cut_in_its_middle() -> None:
    line = printable("begin" + "\n" * 10_000 + "end")
    assert len(line) == LONGEST
    assert line.startswith("begin\\n")
    assert line.endswith("\\nend")
