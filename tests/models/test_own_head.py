"""A head that nobody here knows, registered by one line: it trains, is fast where its backbone is, and runs over a
scene in bands where it says how."""

import pytest
import torch
from torch import nn

import crispseg
from crispseg import exact
from crispseg.errors import UserError
from crispseg.exact.parts import Pass, full_size
from crispseg.exact.resize import BandResize
from crispseg.exact.stream import apply, bands
from crispseg.models import registry
from crispseg.train.start import SCRATCH, default_weights
from tests.conftest import relative_error
from tests.fused.models import unsettled
from tests.train.tiny import make_folder, settings

SMALL = {"width": 8, "depths": (1, 1, 1, 1), "heads": (1, 1, 2, 2), "state": 4}


class FinestHead(nn.Module):
    """Looks at the finest map alone, through a convolution and its BatchNorm."""

    def __init__(self, widths, num_classes, channels=6):
        super().__init__()
        self.mix = nn.Sequential(nn.Conv2d(widths[0], channels, 1), nn.BatchNorm2d(channels), nn.ReLU())
        self.classify = nn.Conv2d(channels, num_classes, 1)

    def forward(self, features):
        assert len(features) == 4 and [x.shape[1] for x in features[1:]] == [16, 32, 64]
        return self.classify(self.mix(features[0]))


class BandedHead(FinestHead):
    """The same, which says how it runs in bands."""

    def streamed(self):
        return Banded(self)


class Banded:
    def __init__(self, head):
        self.head = head

    def passes(self, sizes):
        yield Pass("finest", sizes[0], 40 + full_size(self.head.classify.out_channels), 100)

    def maps(self, sizes):
        return iter(())

    def run(self, run, features):
        def logits():
            for top, bottom in bands(run.plan.sizes[0][0], run.plan.bands["finest"]):
                x = features.rows(0, top, bottom)
                yield (apply(self.head.classify, apply(self.head.mix, x)),)
                run.count("finest", bottom - top)

        scene = (run.plan.height, run.plan.width)
        return BandResize(run.plan.sizes[0], scene, run.like.dtype).stream(logits())


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """What a test registers is forgotten after it."""
    registry.entries()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    crispseg.register_head("finest", FinestHead, backbone="vssd_nano")
    crispseg.register_head("banded", BandedHead, backbone="vssd_nano")


def make(name, **options):
    return unsettled(crispseg.create_model(name, 3, 3, **SMALL | options))


def test_fused_its_backbone_is_fast_and_the_head_as_written():
    model, images = make("finest", channels=5), torch.randn(2, 3, 40, 56)
    fused = model.fused()
    assert type(fused.network.backbone).__name__ == "FusedVSSD" and type(fused.network.head) is FinestHead
    assert fused.as_written == ("head",) and "as written: head" in repr(fused)
    with torch.no_grad():
        assert relative_error(fused(images), model(images)) < 1e-5
    assert crispseg.create_model("crisp_nano", 3, **SMALL).eval().fused().as_written == ()


def test_a_head_that_declares_its_fused_form_gets_it():
    class Doubled(nn.Module):
        def __init__(self, head, dtype):
            super().__init__()
            self.head = head.to(dtype)

        def forward(self, features):
            return 2 * self.head(features)

    class Declaring(FinestHead):
        def for_evaluation(self, dtype):
            return Doubled(self, dtype)

    crispseg.register_head("declaring", Declaring, backbone="vssd_nano")
    model, images = make("declaring"), torch.randn(1, 3, 40, 56)
    fused = model.fused()
    assert fused.as_written == ()
    with torch.no_grad():
        assert relative_error(fused(images), 2 * model(images)) < 1e-5


def test_exact_where_it_says_how_and_a_plain_word_where_not():
    model, image = make("banded"), torch.randn(3, 70, 45)
    with torch.no_grad():
        whole = model(image[None])[0]
    for band in (None, 1, 3):
        assert relative_error(exact.logits(model, image, band=band), whole) < 1e-5
    with pytest.raises(
        UserError, match="'finest' cannot run a scene as one image, as its head cannot run in bands.*use"
    ):
        exact.logits(make("finest"), image)
    with pytest.raises(UserError, match="its backbone and head cannot run in bands"):
        exact.logits(nn.Conv2d(3, 3, 1).eval(), image)


def test_training_starts_from_the_backbone_that_comes_along():
    assert default_weights("finest", {"channels": 4}) == "vssd_nano"
    assert default_weights("finest", {"fusion": "raw"}) == SCRATCH
    crispseg.register_network("finest", lambda num_classes, in_channels: FinestHead((in_channels,), num_classes))
    assert default_weights("finest", {}) == SCRATCH


def test_it_trains_is_saved_and_maps(tmp_path):
    data = make_folder(tmp_path / "data")
    values = settings(
        data,
        tmp_path / "run",
        model={"name": "finest", "options": SMALL | {"channels": 4}},
        schedule={"steps": 2},
        val_every=2,
    )
    from crispseg.train.config import TrainConfig
    from crispseg.train.loop import train

    train(crispseg.config.build(TrainConfig, values))
    model = crispseg.load(tmp_path / "run" / "best")
    assert model.name == "finest" and model.head.classify.in_channels == 4
    scene = torch.randint(0, 255, (50, 70, 3), dtype=torch.uint8).numpy()
    assert crispseg.segment(scene, model, tile=32).shape == (50, 70)


def test_mistakes_are_told():
    with pytest.raises(UserError, match="unknown backbone 'vssd_nan'; did you mean 'vssd_nano'"):
        crispseg.register_head("mistaken", FinestHead, backbone="vssd_nan")
    crispseg.register_head("nothing", lambda widths, num_classes: None)
    with pytest.raises(UserError, match="must be a torch module, not NoneType"):
        crispseg.create_model("nothing", 3)
    crispseg.register_head(
        "many", lambda widths, num_classes: FinestHead(widths, num_classes + 1), backbone="vssd_nano"
    )
    with pytest.raises(
        UserError, match=r"'finest' takes \(.*channels.*\): got an unexpected keyword argument 'channel'"
    ):
        make("finest", channel=3)
    with pytest.raises(UserError, match=r"the head of 'many' gave \(1, 4, 8, 8\) where \(batch, 3 classes"):
        make("many")(torch.zeros(1, 3, 32, 32))
