"""The zoo's transformers against the same models recorded from torch: peak of live data, and time."""

import pytest

from pebbler.instances.importers.torch_workload import TorchWorkload
from pebbler.instances.memory import ideal_ns, live_bytes
from pebbler.instances.workload import Workload

from ...extras import needs_torch

needs_torch()
from pebbler.benchmark.gpu import torch_models  # noqa: E402


def vit(batch: int) -> "torch_models.Made":
    return torch_models.image_step(torch_models.VisionTransformer(224, 1024, 2, 16, 1000), batch, 224)


def gpt(batch: int) -> "torch_models.Made":
    return torch_models.language_step(torch_models.Gpt(50257, 1024, 768, 2, 12), batch, 1024)


@pytest.mark.parametrize(
    ("name", "make_step", "logits"),
    [
        ("vit_l16:layers=2", vit, 0),
        # torch's cross entropy keeps one more array of the size of the scores than softmax and loss in one.
        ("gpt2:layers=2", gpt, 4 * 2 * 1024 * 50257),
    ],
)
def test_live_data_and_time_are_those_of_torch(name, make_step, logits):
    ours = Workload(name, 2, "A100").instance(0, check_budget=False)
    theirs = TorchWorkload("recorded", 2, "A100", make_step=make_step).instance(0, check_budget=False)
    assert ours.resident_bytes == theirs.resident_bytes
    assert max(live_bytes(ours)) + logits == pytest.approx(max(live_bytes(theirs)), rel=0.01)
    assert ideal_ns(ours) == pytest.approx(ideal_ns(theirs), rel=0.2)
