"""Published timings of GPUs, and what they are matched with here: a layer's shapes, or a network of the zoo.

``python docs/scripts/timings.py`` prints how many rows of each file are matched. The files and their traps
are described in ``docs/data/timings/README.md``. A row whose match is not sure is not used.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal

from pebbler.instances.devices.device import Precision
from pebbler.instances.devices.roofline import Convolution, Pass

DATA = Path("docs/data/timings")
Source = Literal["DeepBench", "cnn-benchmarks", "convnet-benchmarks"]

DEVICES = {
    "TitanX": "TitanX",
    "TitanX_Pascal": "TitanXPascal",
    "TitanXp": "TitanXp",
    "P100": "P100",
    "V100": "V100",
    "M40": "M40",
    "1080Ti": "GTX1080Ti",
    "GeForce GTX TITAN X": "TitanX",
    "GeForce GTX 1080": "GTX1080",
    "GeForce GTX 1080 Ti": "GTX1080Ti",
    "TITAN X": "TitanXPascal",
    "Tesla K40c": "K40",
}
"""Our name of a GPU that a file names."""
LIBRARIES = {
    "4": "4",
    "4007": "4",
    "5": "5.1",
    "5005": "5.0",
    "5105": "5.1",
    "5110": "5.1",
    "6.0.21": "6",
    "7.6.2.24": "7",
}
"""Our name of a version of cuDNN that a file names; 5 is DeepBench's, which has algorithms of 5.1."""
CUDA = {"7.5.18": "5.1", "8": "5.1", "8.0.88": "6", "10.1.243": "7"}
"""Version of cuDNN of the time of a CUDA, whose cuBLAS computed a matrix product."""
NETWORKS = {
    "alexnet": "alexnet_caffe:size=224",
    "googlenet-v1": "googlenet:lrn=1",
    "resnet-18": "resnet18",
    "resnet-34": "resnet34",
    "resnet-50": "resnet50:stride_3x3=1",
    "resnet-101": "resnet101:stride_3x3=1",
    "resnet-152": "resnet152:stride_3x3=1",
    "resnet-200": "resnet200",
    "vgg-16": "vgg16",
    "vgg-19": "vgg19",
    "vgg16": "vgg16",
    "vgg19": "vgg19",
}
"""Networks of cnn-benchmarks; inception.torch has 204 channels where GoogLeNet has 208, and 1008 classes."""
FITTED_NETWORKS = (
    "resnet101:stride_3x3=1",
    "resnet18",
    "resnet34",
    "vgg16",
)
"""Networks on the K40 to which its efficiencies are fitted: every other one in the order of names."""
CONVNETS = {
    "AlexNet": "alexnet",
    "GoogleNet": "googlenet",
    "OverFeat[fast]": "overfeat",
    "VGG Model-A": "vgg:groups=1-1-2-2-2",
}
"""Networks of convnet-benchmarks."""
PRECISIONS: Mapping[str, Precision] = {"fp32": "fp32", "Psuedo FP16": "fp16", "FP16 ip, Mixed math": "fp16"}
"""Our name of a precision that DeepBench names."""
VALUE_BYTES: Mapping[Precision, int] = {"fp32": 4, "fp16": 2}
"""Bytes of a number that a layer reads or writes."""
_PASSES: Mapping[Pass, str] = {
    "FP": "forward_ms",
    "BP1": "backward_data_ms",
    "BP2": "backward_filter_ms",
}


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: `rows` x `depth` times `depth` x `columns`."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class LayerTiming:
    """Measured time of a single convolution or matrix product.

    Attributes
    ----------
    device
        Name as `find_device` takes it.
    cudnn
        Version of the library; of a matrix product, that of the same time as its cuBLAS.
    shape
        What was computed.
    which
        The pass; a matrix product is always forward.
    ms
        Milliseconds.
    algorithm
        The forward algorithm of cuDNN, where it is named.
    precision
        Of the numbers that are read and written.
    """

    device: str
    cudnn: str
    shape: Convolution | Product
    which: Pass
    ms: float
    algorithm: str = ""
    precision: Precision = "fp32"

    @property
    def series(self) -> str:
        """What belongs together in tables: the device, with its precision unless it is single."""
        return self.device if self.precision == "fp32" else f"{self.device} {self.precision}"

    @property
    def kind(self) -> str:
        """What kind of a layer it is, by which tables are divided."""
        if isinstance(self.shape, Product):
            return "few columns" if self.shape.columns <= FEW_COLUMNS else "product"
        kernel = self.shape.kernel_h, self.shape.kernel_w, self.shape.stride
        return {(1, 1, 1): "1x1", (3, 3, 1): "3x3"}.get(kernel, "other")


FEW_COLUMNS = 64
"""A matrix product with up to so many columns is one tile wide."""


@dataclass(frozen=True, slots=True)
class NetworkTiming:
    """Measured times of a whole network without its loss, the median of what was published.

    Attributes
    ----------
    device
        Name as `find_device` takes it.
    cudnn
        Version of the library.
    source
        Who measured.
    network
        Specification as `find_network` takes it.
    batch
        Images.
    image_gradient
        Whether the gradient of the image was computed, too.
    forward_ms, backward_ms
        Milliseconds.
    """

    device: str
    cudnn: str
    source: Source
    network: str
    batch: int
    image_gradient: bool
    forward_ms: float
    backward_ms: float


def is_fitted(timing: LayerTiming | NetworkTiming) -> bool:
    """Whether the cost model is fitted to a timing; all others are what it is held against.

    Of convolutions it is every other layer in the order of shapes, whatever its batch; of products every
    other one, both in all precisions; of networks four of the nine on the K40, of which there are no layers.
    """
    if isinstance(timing, NetworkTiming):
        return timing.device == "K40" and timing.network in FITTED_NETWORKS
    return _key(timing.shape) in _fitted_shapes()


@cache
def _fitted_shapes() -> frozenset[tuple[int, ...]]:
    kinds: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for timing in layers():
        key = _key(timing.shape)
        kinds[len(key)].add(key)
    return frozenset(key for keys in kinds.values() for key in sorted(keys)[::2])


def _key(shape: Convolution | Product) -> tuple[int, ...]:
    """What tells layers apart."""
    if isinstance(shape, Product):
        return shape.columns, shape.rows, shape.depth
    kernel = shape.kernel_h, shape.kernel_w, shape.stride, shape.pad
    return *kernel, shape.in_channels, shape.out_channels, shape.in_height, shape.in_width


def layers(folder: Path = DATA, precision: Precision = "fp32") -> list[LayerTiming]:
    """Return the single layers in a precision that are matched."""
    return [*_convolutions(folder, precision), *_products(folder, precision)]


def networks(folder: Path = DATA) -> list[NetworkTiming]:
    """Return the whole networks that are matched; measurements of the same are one."""
    return [*_cnn_benchmarks(folder), *_convnet_benchmarks(folder)]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _deepbench(path: Path, precision: Precision) -> Iterator[dict[str, str]]:
    for row in _rows(path):
        if PRECISIONS[row["precision"]] == precision and row["gpu"] in DEVICES:
            yield row


def _convolutions(folder: Path, precision: Precision) -> Iterator[LayerTiming]:
    for row in _deepbench(folder / "deepbench_convolutions.csv", precision):
        conv = replace(_convolution(row), value_bytes=VALUE_BYTES[precision])
        for which, column in _PASSES.items():
            if not row[column].startswith("N/A"):
                yield LayerTiming(
                    device=DEVICES[row["gpu"]],
                    cudnn=LIBRARIES[row["cudnn"]],
                    shape=conv,
                    which=which,
                    ms=float(row[column]),
                    algorithm=_algorithm(row["forward_algorithm"]) if which == "FP" else "",
                    precision=precision,
                )


def _convolution(row: Mapping[str, str]) -> Convolution:
    size = {name: int(row[name]) for name in ("width", "height", "filter_w", "filter_h", "pad_w", "stride_w")}
    stride, pad = size["stride_w"], size["pad_w"]
    if (stride, pad) != (int(row["stride_h"]), int(row["pad_h"])):
        raise ValueError(f"stride or padding differ between the directions: {dict(row)}")
    return Convolution(
        batch=int(row["batch"]),
        in_channels=int(row["channels"]),
        out_channels=int(row["filters"]),
        in_height=size["height"],
        in_width=size["width"],
        out_height=(size["height"] + 2 * pad - size["filter_h"]) // stride + 1,
        out_width=(size["width"] + 2 * pad - size["filter_w"]) // stride + 1,
        kernel_h=size["filter_h"],
        kernel_w=size["filter_w"],
        stride=stride,
        pad=pad,
    )


def _algorithm(text: str) -> str:
    """Mend a word that the source has cut."""
    return "IMPLICIT_PRECOMP_GEMM" if text == "LICIT_PRECOMP_GEMM" else text


def _products(folder: Path, precision: Precision) -> Iterator[LayerTiming]:
    for row in _deepbench(folder / "deepbench_gemm.csv", precision):
        shape = Product(rows=int(row["m"]), columns=int(row["n"]), depth=int(row["k"]))
        device, cudnn = DEVICES[row["gpu"]], CUDA[row["cuda"]]
        yield LayerTiming(device, cudnn, shape, "FP", float(row["ms"]), precision=precision)


def _cnn_benchmarks(folder: Path) -> Iterator[NetworkTiming]:
    found: dict[tuple[str, str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in _rows(folder / "cnn_benchmarks.csv"):
        network = NETWORKS.get(row["network"].lower())
        if network is not None and row["gpu"] in DEVICES and row["cudnn"] in LIBRARIES:
            key = DEVICES[row["gpu"]], LIBRARIES[row["cudnn"]], network, int(row["batch"])
            found[key].append((float(row["forward_ms"]), float(row["backward_ms"])))
    for (device, cudnn, network, batch), times in found.items():
        forward, backward = (median(column) for column in zip(*times, strict=True))
        yield NetworkTiming(device, cudnn, "cnn-benchmarks", network, batch, True, forward, backward)


def _convnet_benchmarks(folder: Path) -> Iterator[NetworkTiming]:
    for row in _rows(folder / "convnet_benchmarks.csv"):
        yield NetworkTiming(
            device=DEVICES[row["gpu"]],
            cudnn=LIBRARIES[row["cudnn"]],
            source="convnet-benchmarks",
            network=CONVNETS[row["network"]],
            batch=int(row["batch"]),
            image_gradient=False,
            forward_ms=float(row["forward_ms"]),
            backward_ms=float(row["gradient_input_ms"]) + float(row["gradient_parameters_ms"]),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how many timings of each device are matched."""
    argparse.ArgumentParser(description=main.__doc__).parse_args(arguments)
    counts = Counter(
        (timing.series, timing.cudnn, "layers") for timing in [*layers(), *layers(precision="fp16")]
    )
    counts.update((timing.device, timing.cudnn, "networks") for timing in networks())
    for (series, cudnn, what), count in counts.items():
        print(f"{series}, cuDNN {cudnn}: {count} {what}")


if __name__ == "__main__":
    main()
