"""What GLP4NN prints, figure by figure and table by table, beside ours, each with one of four words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glp4nn_cases import LENET_LOG, PAPER_DEVICES, Case, case, cases, iteration, iterations, together
from pebbler.benchmark.output.markdown import markdown
from pebbler.instances.devices.caffe import find_layer
from pebbler.instances.devices.device import find_device
from pebbler.validate.streams.concurrent import streams_ns

Word = Literal["reproduced", "calibrated", "differs", "left out"]
"""Defined in docs/study.md."""

PRINTED_TABLE_6 = {
    "googlenet": ((1.042, 116.456, 117.498), (1.696, 107.829, 109.525), (1.165, 124.811, 125.976)),
    "caffenet": ((14.006, 12.375, 26.381), (9.392, 12.894, 22.286), (11.645, 12.663, 24.308)),
    "cifar10": ((0.131, 9.975, 10.106), (1.514, 6.461, 7.975), (1.230, 6.551, 7.781)),
    "siamese": ((1.667, 6.783, 8.450), (1.762, 7.718, 9.480), (1.942, 7.763, 9.705)),
}
"""T_p, T_a and T_total on the K40C, the P100 and the Titan XP, in milliseconds."""
TRAINING = {"googlenet": 2_400_000, "caffenet": 450_000, "cifar10": 4000, "siamese": 50_000}
"""Iterations of Caffe's own solvers (``max_iter``): the quick ones of GoogLeNet and CIFAR10."""
RATIO = 0.001
"""Share of the training that T_total is under, in the last column of Table 6."""

GAINING = 1.05
"""Speed-up from which on a layer gains."""
CLOSE = 0.05
"""Relative distance from a printed number within which ours reproduces it."""

_SHORT = (("cifar10/conv1", "TitanXp"), ("siamese/conv1", "P100"), ("siamese/conv1_p", "P100"))
"""Layers that are slower on streams in print, and the device."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A figure or a table of the paper, or a statement about one.

    Attributes
    ----------
    name, printed, ours
        Which; what it or the text says of it; what comes out here.
    word, reason
        How the two compare; why, where it is not reproduced.
    """

    name: str
    printed: str
    ours: str
    word: Word
    reason: str = ""

    def row(self) -> tuple[str, str, str, str]:
        """Its cells in the table of the page."""
        return self.name, self.printed, self.ours, f"{self.word}: {self.reason}" if self.reason else self.word


def exhibits() -> str:
    """All figures and tables of the paper, as Markdown."""
    found = (*_motivation(), *_framework(), *_evaluation(), *_inputs(), *_overhead())
    return markdown(("exhibit", "printed", "ours", "word"), [one.row() for one in found])


def _motivation() -> tuple[Exhibit, ...]:
    caffenet = cases("P100", network="caffenet")
    gaining = sum(one.gains[one.best] >= GAINING for one in caffenet)
    best = [[case(one.layer, device).best for device in PAPER_DEVICES] for one in caffenet]
    differing = sum(len(set(counts)) > 1 for counts in best)
    log = [streams_ns(LENET_LOG, find_device("K40"), 64, streams) for streams in (1, 2, 3)]
    return (
        Exhibit("Fig. 1: CaffeNet", "a drawing", "", "left out", "its layers are five rows of Table 5"),
        Exhibit(
            "Fig. 2: speed-ups of CaffeNet's layers, P100",
            "most of the 5 layers gain",
            f"{gaining} gain 5 % or more, up to {max(one.gains[one.best] for one in caffenet):.2f}",
            _word(2 * gaining > len(caffenet)),
        ),
        Exhibit(
            "Fig. 3: time line of MNIST's conv1",
            "a drawing; the authors' log: 2.84, 1.93, 1.54 to 1.71 ms with 1, 2, 3 streams",
            ", ".join(f"{ns / 1e6:.2f}" for ns in log) + " ms",
            "calibrated",
            "kernels' times and the idle time between them are the log's; three streams differ",
        ),
        Exhibit(
            "Fig. 4: best number of streams for CaffeNet's layers",
            "varies from GPU to GPU",
            f"differs between GPUs for {differing} of 5 layers",
            _word(differing > 0),
        ),
    )


def _framework() -> tuple[Exhibit, ...]:
    conv1 = case(find_layer("caffenet/conv1"), "K40")
    im2col = conv1.kernels.kernels[0]
    return (
        Exhibit("Fig. 5: overview of the framework", "a drawing", "", "left out", "nothing to compute"),
        Exhibit(
            "Fig. 6: CaffeNet's conv1 on the K40C, im2col",
            "grid 18, 33 registers",
            f"grid {im2col.blocks}, {im2col.registers} registers",
            "calibrated",
            "the registers are taken from it; the grid follows from the layer",
        ),
        Exhibit(
            "Fig. 6: its number of streams",
            "3",
            f"{conv1.chosen('as-printed-repaired')} by eqs. 3 to 9 with Table 2's #beta; "
            f"{conv1.chosen('as-implemented')} as implemented, {conv1.chosen('corrected')} corrected",
            _word(conv1.chosen("as-printed-repaired") == 3),
        ),
    )


def _evaluation() -> tuple[Exhibit, ...]:
    every = [one for device in PAPER_DEVICES for one in iterations(device)]
    gaining = sum(one.speed >= GAINING for one in every)
    greatest = max(every, key=lambda one: one.speed)
    alone = max((one.forward for one in every), key=lambda one: one.speed("as-implemented"))
    short = [iteration(find_layer(name), device) for name, device in _SHORT]
    slower = all(one.speed < 0.995 for one in short)
    siamese = {device: together(iterations(device, "siamese")) for device in PAPER_DEVICES}
    whole = together(iterations("TitanXp", "cifar10")), siamese["P100"]
    forward = [one.forward.one_ns / 1e6 for one in short]
    return (
        Exhibit(
            "Fig. 7: greatest speed-up of a layer, an iteration",
            "up to 4",
            f"{greatest.speed:.2f} ({greatest.name}, {greatest.forward.device.name})",
            _word(abs(greatest.speed / 4 - 1) <= CLOSE),
            ""
            if abs(greatest.speed / 4 - 1) <= CLOSE
            else f"its backward pass takes {_limit(greatest.backward)}",
        ),
        Exhibit(
            "Fig. 7: the same of the forward pass alone",
            "up to 4",
            f"{alone.speed('as-implemented'):.2f} ({alone.layer.name}, {alone.device.name})",
            _word(abs(alone.speed("as-implemented") / 4 - 1) <= CLOSE),
            "" if abs(alone.speed("as-implemented") / 4 - 1) <= CLOSE else f"it takes {_limit(alone)}",
        ),
        Exhibit(
            "Fig. 7: most layers gain",
            "most",
            f"{gaining} of {len(every)} layers and GPUs gain 5 % or more",
            _word(2 * gaining > len(every)),
        ),
        Exhibit(
            "Figs. 7 and 9: CIFAR10's conv1 on the Titan XP, Siamese's conv1 and conv1_p on the P100",
            "slower",
            ", ".join(f"{one.speed:.2f}" for one in short),
            _word(slower),
            "" if slower else "in the simulator, a stream has no cost of its own",
        ),
        Exhibit(
            "Fig. 7: Siamese gains more on the K40C than on the Titan XP and the P100",
            "more",
            f"{siamese['K40']:.2f}, {siamese['TitanXp']:.2f}, {siamese['P100']:.2f}",
            _word(siamese["K40"] > max(siamese["TitanXp"], siamese["P100"])),
        ),
        Exhibit(
            "Fig. 8: streams by layer",
            "no number in the text at hand",
            "a table below",
            "left out",
            "nothing to hold ours against",
        ),
        Exhibit(
            "Fig. 9: time of the same three layers",
            "within about 2 ms",
            ", ".join(f"{ms:.1f}" for ms in forward) + " ms, forward",
            _word(max(forward) <= 2 * (1 + CLOSE)),
            "" if max(forward) <= 2 * (1 + CLOSE) else "CIFAR10's takes longer; unexplained",
        ),
        Exhibit(
            "Fig. 9: CIFAR10 on the Titan XP and Siamese on the P100, all layers",
            "faster",
            f"{whole[0]:.2f}, {whole[1]:.2f}",
            _word(min(whole) >= GAINING),
        ),
        Exhibit(
            "Fig. 10: host memory of records",
            "mem_cupti far above mem_tt and mem_K; no number in the text at hand",
            "mem_tt and mem_K below",
            "left out",
            "the sizes of a record are an assumption, and mem_cupti needs CUPTI",
        ),
        Exhibit(
            "Fig. 11: training CIFAR10",
            "converges alike",
            "the same bits for every number of streams, on the fake driver",
            "left out",
            "a curve of accuracy needs a trained network",
        ),
    )


def _inputs() -> tuple[Exhibit, ...]:
    return (
        Exhibit(
            "Table 1: concurrent kernels",
            "Kepler 32, Maxwell 16, Pascal and Volta 128",
            "the same",
            "calibrated",
            "C is taken from it, though the CUDA guide has 32 for Maxwell and the Titan XP",
        ),
        Exhibit(
            "Table 1: Tesla and Fermi; streams, dynamic parallelism, HBM, tensor cores",
            "yes or no",
            "",
            "left out",
            "no model uses them",
        ),
        Exhibit("Table 2: notation", "18 symbols", "", "left out", "definitions; #beta: see above"),
        Exhibit(
            "Table 3: the GPUs",
            "a table",
            "below",
            "calibrated",
            "most are taken from it; clocks are those of the data sheets' peaks",
        ),
        Exhibit(
            "Table 3: generation, memory type, CPU, its cores and clock",
            "a table",
            "",
            "left out",
            "no model uses them; a launch takes 8 or 10 us of any host",
        ),
        Exhibit("Table 4: data sets", "a table", "", "left out", "no data is read"),
        Exhibit(
            "Table 5: 18 layers",
            "a table",
            "all are layers of the networks here, GoogLeNet's of its inception 5a and 5b",
            "reproduced",
        ),
    )


def _overhead() -> tuple[Exhibit, ...]:
    sums = [
        total - profiling - analysis
        for some in PRINTED_TABLE_6.values()
        for profiling, analysis, total in some
    ]
    shares = {
        network: max(
            total / (TRAINING[network] * sum(one.one_ns for one in iterations(device, network)) / 1e6)
            for device, (*_, total) in zip(PAPER_DEVICES, some, strict=True)
        )
        for network, some in PRINTED_TABLE_6.items()
    }
    return (
        Exhibit("Table 6: T_p", "0.1 to 14 ms", "", "left out", "it needs CUPTI on a GPU"),
        Exhibit(
            "Table 6: T_a",
            "6.5 to 125 ms",
            "a table below",
            "differs",
            "another machine, CBC in place of GLPK, and Table 5's layers in place of whole networks",
        ),
        Exhibit(
            "Table 6: T_total = T_p + T_a (eq. 12)",
            "12 sums",
            f"off by {max(map(abs, sums)):.3f} ms at most",
            _word(max(map(abs, sums)) < 0.0015),
        ),
        Exhibit(
            "Table 6: ratio to the training",
            "under 0.1 %",
            f"{100 * max(shares.values()):.3f} % at most, over Caffe's own numbers of iterations",
            _word(max(shares.values()) < RATIO),
        ),
    )


def _word(same: bool) -> Word:
    return "reproduced" if same else "differs"


def _limit(one: Case) -> str:
    """Say what ends the speed-up of a pass, and by which arithmetic."""
    word, limit = min(one.limits.items(), key=lambda item: item[1])
    count, apart = one.layer.conv.batch * len(one.kernels.launches), one.device.launch_ns
    told = {
        "work": f"the blocks' work alone is {one.one_ns / limit / 1e6:.3f} ms",
        "launches": f"the host makes the last of {count} launches after {count - 1} x {apart / 1e3:g} us = "
        f"{(count - 1) * apart / 1e6:.2f} ms",
    }
    return f"{one.one_ns / 1e6:.3f} ms on one stream, and {told[word]}: at most {limit:.2f}"
