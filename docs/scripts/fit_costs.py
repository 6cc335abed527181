"""Fit the efficiencies and constants of the cost model to half of the published timings of single layers.

``python docs/scripts/fit_costs.py`` prints what it finds, in a minute; ``instances/devices/devices.toml``
and ``instances/devices/roofline.py`` have these figures. The other half of the layers, and whole networks,
are what ``docs/costs.md`` reports. Only the K40, of which there are no layers, is fitted to four of its
networks.

The loss is the mean of ``|ln(measured / model)|``, so that half as fast and twice as fast are equally far.
Constants are fitted on the devices with cuDNN 6 and 7, whose algorithms were the fastest of all, and then
each device's efficiencies with these constants. Those of tensor cores are fitted last, to the V100's layers
in half precision: no others were published.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import log
from statistics import fmean

from costs import layer_ms, modelled_ms, modelled_network_ms
from pebbler.instances.devices import roofline
from pebbler.instances.devices.device import Device, find_device
from pebbler.instances.devices.roofline import Convolution
from timings import LayerTiming, NetworkTiming, is_fitted, layers, networks

FOUND = ("P100", "TitanXp", "GTX1080Ti", "V100")
"""Devices whose timings are of the fastest algorithm."""
START = {"FILTER_SPEED": 0.5, "STRIDED_SPEED": 0.5, "WINOGRAD_SPEED": 0.6}
"""Constants, and where their search starts."""
STEPS = (1.2, 1.05, 1.01)
ROUNDS = 2


def search(loss: Callable[[Mapping[str, float]], float], start: Mapping[str, float]) -> dict[str, float]:
    """Return values that no step up or down of one of them improves; shares, so at most 1."""
    best = dict(start)
    least = loss(best)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in start:
                for factor in (step, 1 / step):
                    tried = {**best, name: min(best[name] * factor, 1.0)}
                    found = loss(tried)
                    if found < least - 1e-6:
                        best, least, moved = tried, found, True
    return best


def distance(ratios: Iterable[float]) -> float:
    """Mean distance of ratios from 1, on a logarithmic scale."""
    return fmean(abs(log(ratio)) for ratio in ratios)


def fit_layers(timings: Sequence[LayerTiming], name: str, beside: Mapping[str, float]) -> float:
    """Return a device's efficiency of that name, to two digits, where it has others beside it."""

    def loss(values: Mapping[str, float]) -> float:
        figures = {**beside, **values}
        return distance(timing.ms / modelled_ms(timing, _with(timing, figures)) for timing in timings)

    return round(search(loss, {name: 0.6})[name], 2)


def fit_networks(timings: Sequence[NetworkTiming]) -> dict[str, float]:
    """Return a device's two efficiencies, to two digits, from forward and backward times of networks."""

    def loss(values: Mapping[str, float]) -> float:
        ratios = []
        for timing in timings:
            forward, backward = modelled_network_ms(timing, _with(timing, values))
            ratios += [timing.forward_ms / forward, timing.backward_ms / backward]
        return distance(ratios)

    found = search(loss, {"convolution_efficiency": 0.4, "gemm_efficiency": 0.4})
    return {name: round(value, 2) for name, value in found.items()}


def fit_constants(
    timings: Mapping[str, Sequence[LayerTiming]], efficiencies: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return the constants of convolutions, given the efficiencies of the devices."""

    def loss(values: Mapping[str, float]) -> float:
        with constants(values):
            return fmean(
                distance(t.ms / modelled_ms(t, _with(t, efficiencies[device])) for t in mine)
                for device, mine in timings.items()
            )

    return search(loss, START)


def fit_tensor_cores(timings: Sequence[LayerTiming]) -> dict[str, float]:
    """Return the constants of tensor cores, to two digits, each from the layers that it is of."""
    products = [timing for timing in timings if not isinstance(timing.shape, Convolution)]
    convolutions = [timing for timing in timings if isinstance(timing.shape, Convolution)]
    return {
        "TENSOR_SPEED": _fit_constant("TENSOR_SPEED", products),
        "TENSOR_CONVOLUTION_SPEED": _fit_constant("TENSOR_CONVOLUTION_SPEED", convolutions),
    }


def _fit_constant(name: str, timings: Sequence[LayerTiming]) -> float:
    def loss(values: Mapping[str, float]) -> float:
        with constants(values):
            return distance(timing.ms / layer_ms(timing) for timing in timings)

    return round(search(loss, {name: 0.8})[name], 2)


@contextmanager
def constants(values: Mapping[str, float]) -> Iterator[None]:
    """Let the model have other constants."""
    before = {name: getattr(roofline, name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, float]) -> None:
    for name, value in values.items():
        setattr(roofline, name, value)
    roofline.convolution_algorithms.cache_clear()
    roofline.matrix_algorithms.cache_clear()


def _with(timing: LayerTiming | NetworkTiming, values: Mapping[str, float]) -> Device:
    figures: dict[str, float] = dict(values)
    return replace(find_device(timing.device, timing.cudnn), **figures)  # type: ignore[arg-type]


def report() -> str:
    """Return what is fitted, a line a figure."""
    fitted = [timing for timing in layers() if is_fitted(timing)]
    devices = list(dict.fromkeys(timing.device for timing in fitted))
    products = {
        device: [t for t in fitted if t.device == device and not isinstance(t.shape, Convolution)]
        for device in devices
    }
    convolutions = {
        device: [t for t in fitted if t.device == device and isinstance(t.shape, Convolution)]
        for device in devices
    }
    shares = {
        device: {"gemm_efficiency": fit_layers(products[device], "gemm_efficiency", {})} for device in devices
    }
    for device in FOUND:
        shares[device]["convolution_efficiency"] = 0.6
    found: dict[str, float] = dict(START)
    known = {device: convolutions[device] for device in FOUND}
    for _ in range(ROUNDS):
        with constants(found):
            for device in FOUND:
                shares[device]["convolution_efficiency"] = fit_layers(
                    convolutions[device], "convolution_efficiency", shares[device]
                )
        found = {name: round(value, 2) for name, value in fit_constants(known, shares).items()}
    with constants(found):
        for device in devices:
            shares[device]["convolution_efficiency"] = fit_layers(
                convolutions[device], "convolution_efficiency", shares[device]
            )
        mine = [timing for timing in networks() if timing.device == "K40" and is_fitted(timing)]
        shares["K40"] = fit_networks(mine)
    halves = [timing for timing in layers(precision="fp16") if timing.device == "V100" and is_fitted(timing)]
    found |= fit_tensor_cores(halves)
    lines = [f"{name} = {value:.2f}" for name, value in found.items()]
    for device, values in shares.items():
        lines += [f"{device}.{name} = {value:.2f}" for name, value in sorted(values.items())]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the fitted figures."""
    argparse.ArgumentParser(description=main.__doc__).parse_args(arguments)
    print(report(), end="")


if __name__ == "__main__":
    main()
