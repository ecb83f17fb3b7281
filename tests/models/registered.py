"""What every registered model is put through, in any precision and of any size: on a GPU as it is, shrunk on a CPU."""

import copy
import math

import torch

from crispseg import ops
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes
from crispseg.train.step import Part, Stepper
from tests.conftest import relative_error

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Of the error that the model's own formulas have in half precision. Fused, all registered models had 0.65 to 1.22 times
# that error (1e-3 to 2e-2) on a CPU at 64 px; an error in the computation shows as more than this.
TIMES_ITS_OWN = 3
LEAST = 1e-3  # sums in another order; all that there is in float32


def two_steps(model, precision, graph, batch, side):
    """Of training: the loss is a number, and the weights move."""
    values = {"graph": graph, "precision": precision, "optimizer": {"lr": 1e-4}, "schedule": {"steps": 3, "warmup": 0}}
    stepper = Stepper(model, config_from(values), Processes(next(model.parameters()).device))
    images = 255 * torch.rand(batch, model.in_channels, side, side)
    part = Part(images, torch.randint(0, model.num_classes, (batch, side, side)), [""] * batch)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(2):
        said = stepper.step(step, [part])
        assert math.isfinite(said["loss"].item()), f"batch {batch}, {side} px"
    if precision != "fp16":  # whose scaler may pass over the first steps
        moved = sum(not torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))
        assert moved > 0.8 * len(before)  # a block may be dropped; D2LS has parts that no loss reaches
    model.zero_grad(set_to_none=True)  # they lie in the graph's memory


def check_evaluation(model, precision, sizes):
    """As it is, fused and kernel by kernel, and on a GPU recorded; each at every (batch, side)."""
    dtype, weight = PRECISIONS[precision], next(model.parameters())
    cast, fused = copy.deepcopy(model).to(dtype), model.fused(dtype)
    for batch, side in sizes:
        image = torch.randn(batch, model.in_channels, side, side, device=weight.device)
        with torch.no_grad():
            with ops.only("torch"):
                truth = model(image)
                own = relative_error(cast(image.to(dtype)), truth)
            found = {"as it is": cast(image.to(dtype)), "kernel by kernel": fused._compute(image)}
        if weight.is_cuda:
            found["recorded"] = fused(image)
        bound = LEAST + TIMES_ITS_OWN * own
        for way, logits in found.items():
            assert logits.shape == truth.shape
            assert logits.isfinite().all(), f"{way}, batch {batch}, {side} px"
            error = relative_error(logits, truth)
            assert error < bound, f"{way}, batch {batch}, {side} px: {error:.1e}, by the formulas {own:.1e}"
