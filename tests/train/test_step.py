"""A batch cut into parts gives the gradient of the whole."""

import pytest
import torch

from crispseg.losses import LossConfig, segmentation_loss
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes
from crispseg.train.step import Part, Stepper, can_graph, step_seed
from tests.train.tiny import Plain


def stepper(**values):
    torch.manual_seed(0)
    config = config_from({"optimizer": {"lr": 1e-3, "clip": 0}, "schedule": {"steps": 10, "warmup": 0}, **values})
    return Stepper(Plain(), config, Processes(torch.device("cpu")))


def batch(images=6, size=8):
    """Every image has another number of ignored pixels, and one has nothing else."""
    draws = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (images, size, size), generator=draws)
    for i in range(images):
        labels[i, : size * i // (images - 1)] = 255
    return Part(torch.randn(images, 2, size, size, generator=draws), labels, [str(i) for i in range(images)])


def gradients(made, parts, monkeypatch):
    kept = {}

    def keep(self, steps_done):
        kept.update({name: p.grad.clone() for name, p in self.model.named_parameters()})
        return torch.zeros(())

    monkeypatch.setattr(Stepper, "update", keep)
    said = made.step(0, parts)
    return kept, said


def cut(part, count):
    return [Part(part.images[i::count], part.labels[i::count], part.names[i::count]) for i in range(count)]


@pytest.mark.parametrize(
    "loss",
    [
        {},
        {"smoothing": 0.1, "class_weights": [1.0, 0.2, 3.0]},
        {"mean_over": "all", "auxiliary": 1.0, "orth": 1.0, "margin": 2.0},
    ],
)
def test_parts_add_up_to_the_whole(loss, monkeypatch):
    whole, said = gradients(stepper(loss=loss), [batch()], monkeypatch)
    parted, said_in_parts = gradients(stepper(loss=loss, accumulate=3), cut(batch(), 3), monkeypatch)
    for name, gradient in whole.items():
        torch.testing.assert_close(parted[name], gradient, msg=name)
    assert {k: v.item() for k, v in said_in_parts.items()} == pytest.approx({k: v.item() for k, v in said.items()})


def test_the_whole_is_the_plain_loss(monkeypatch):
    made, part = stepper(), batch()
    kept, said = gradients(made, [part], monkeypatch)
    made.optimizer.zero_grad()
    normalised = (part.images - 0.5) / 2.0
    terms = segmentation_loss(made.model(normalised), part.labels, LossConfig())
    terms["total"].backward()
    torch.testing.assert_close(said["loss"], terms["total"].detach())
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(kept[name], parameter.grad, msg=name)


def test_a_batch_of_ignored_pixels_moves_nothing_by_itself():
    made = stepper(loss={"orth": 0.0, "margin": 0.0}, optimizer={"lr": 1e-3, "weight_decay": 0.0})
    part = batch()
    part.labels.fill_(255)
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    said = made.step(0, [part])
    assert said["loss"].item() == 0.0
    assert all(torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precisions_train(precision):
    made = stepper(precision=precision, optimizer={"lr": 1e-2})
    losses = [made.step(i, [batch()])["loss"].item() for i in range(10)]
    assert losses[-1] < losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in made.model.parameters())


def test_clipping_bounds_the_step():
    """With one axis of freedom per parameter Adam hides the size of a gradient; its first moment does not."""
    made = stepper(optimizer={"lr": 1e-3, "clip": 1e-3})
    said = made.step(0, [batch()])
    assert said["grad_norm"] > 1e-3
    moments = [made.optimizer.state[parameter]["exp_avg"] / 0.1 for parameter in made.model.parameters()]
    total = torch.stack([moment.norm() for moment in moments]).norm()
    assert total.item() == pytest.approx(1e-3, rel=1e-3)


def test_random_numbers_depend_on_all_that_names_a_part():
    seeds = {step_seed(s, t, p, r) for s in range(3) for t in range(3) for p in range(3) for r in range(3)}
    assert len(seeds) == 81
    assert step_seed(1, 2, 3, 4) == step_seed(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("device", "values", "possible"),
    [
        ("cuda", {}, True),
        ("cuda", {"graph": False}, False),
        ("cuda", {"accumulate": 2}, False),
        ("cuda", {"precision": "fp16"}, False),
        ("cuda", {"loss": {"class_weights": [1.0, 2.0]}}, False),
        ("cpu", {"graph": True}, False),
    ],
)
def test_when_a_step_can_be_recorded(device, values, possible):
    assert can_graph(config_from(values), Processes(torch.device(device))) is possible
