"""A saved model as the start of a training on other classes and bands."""

import pytest
import torch
from torch import nn

import crispseg
from crispseg.errors import UserError
from crispseg.models import registry
from crispseg.models.base import ModelInfo, Output, SegmentationModel
from crispseg.models.pretrained import PICTURE_BANDS, STEM, adapted_stem
from crispseg.train.start import start_from
from tests.models.test_registered import SHRINK_CRISP, SHRINK_UPER

FOUND = "backbone." + STEM
SAVED = ("building", "land", "road", "water")
OURS = ("tree", "road", "building", "car", "lawn")  # road and building are known, at other places
CASES = {  # how many rows of each tensor are a class's
    "crisp": (
        "crisp_nano",
        SHRINK_CRISP,
        {
            "head.tokens.embedding": 1,
            "head.tokens.weigh.2.weight": 4,
            "head.tokens.weigh.2.bias": 4,
            **{f"head.hyper.{kind}.{i}": 1 for kind in ("weights", "biases") for i in range(3)},
        },
    ),
    "one hyper-network": (
        "crisp_nano",
        SHRINK_CRISP | {"neck": "concat"},
        {"head.tokens.embedding": 1, "head.tokens.weigh.2.weight": 4, "head.tokens.weigh.2.bias": 4},
    ),
    "uper": (
        "vssd_nano_upernet",
        SHRINK_UPER,
        {f"{part}.{kind}": 1 for part in ("head.classify", "auxiliary.2") for kind in ("weight", "bias")},
    ),
    "rival": (
        "banet_restlite",
        {},
        {"conv_out.conv_out.weight": 64, "conv_out.conv_out.bias": 64},
    ),
}


def make(name, classes, options=None, bands=(), count=3):
    """A number of classes or their names; no two values are alike, those that start at zero included."""
    number = classes if isinstance(classes, int) else len(classes)
    model = crispseg.create_model(name, number, len(bands) or count, **(options or {})).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.05 * torch.rand_like(tensor))
    model.info = ModelInfo(classes=() if isinstance(classes, int) else classes, bands=bands)
    return model


def started(model, other, folder):
    """The values before, and after a start from the other."""
    other.save(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start_from(model, folder)
    return before, model.state_dict()


@pytest.mark.parametrize("case", CASES)
def test_classes_are_taken_over_by_their_names(case, tmp_path):
    name, options, rows_of = CASES[case]
    model, other = make(name, OURS, options), make(name, SAVED, options)
    given = other.state_dict()
    before, after = started(model, other, tmp_path)
    for tensor in after:
        if tensor not in rows_of:
            assert torch.equal(after[tensor], given[tensor]), tensor
            continue
        rows = rows_of[tensor]
        assert len(after[tensor]) == rows * len(OURS)
        for i, row in enumerate(after[tensor]):
            known = OURS[i // rows] in SAVED
            expected = given[tensor][SAVED.index(OURS[i // rows]) * rows + i % rows] if known else before[tensor][i]
            assert torch.equal(row, expected), (tensor, i)
    assert model.origin == f"{tmp_path} (classes road, building as there, 3 new)"


@pytest.mark.parametrize("case", CASES)
def test_a_class_scores_as_before_wherever_it_now_stands(case, tmp_path):
    """What a network of the same classes in another order finds, whatever lies within its tensors."""
    name, options, _ = CASES[case]
    other, model = make(name, SAVED, options), make(name, SAVED[::-1], options)
    started(model, other, tmp_path)
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(image), other(image).flip(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "bands"),
    [("crisp", ()), ("crisp", PICTURE_BANDS), ("uper", ("near_infrared", "red", "green")), ("rival", PICTURE_BANDS)],
)
def test_the_same_classes_and_bands_are_taken_over_bit_for_bit(case, bands, tmp_path):
    name, options, _ = CASES[case]
    model, other = make(name, SAVED, options, bands), make(name, SAVED, options, bands)
    state = torch.random.get_rng_state()
    crispseg.create_model(name, len(SAVED), **options)  # as loading it does
    drawn = torch.rand(1)
    torch.random.set_rng_state(state)
    _, after = started(model, other, tmp_path)
    assert torch.equal(torch.rand(1), drawn)  # a start takes no more chance than before
    for tensor, values in other.state_dict().items():
        assert torch.equal(after[tensor], values), tensor
    assert model.origin == str(tmp_path)


def test_classes_without_names_go_by_their_number_if_there_are_as_many(tmp_path):
    for ours, theirs in ((SAVED, 4), (4, SAVED), (4, 4)):
        model, other = make("crisp_nano", ours, SHRINK_CRISP), make("crisp_nano", theirs, SHRINK_CRISP)
        _, after = started(model, other, tmp_path)
        assert all(torch.equal(after[name], values) for name, values in other.state_dict().items())
        assert model.origin == str(tmp_path)
    model, other = make("crisp_nano", 3, SHRINK_CRISP), make("crisp_nano", SAVED, SHRINK_CRISP)
    before, after = started(model, other, tmp_path)
    assert torch.equal(after["head.tokens.embedding"], before["head.tokens.embedding"])
    assert torch.equal(after["head.tokens.expand.weight"], other.state_dict()["head.tokens.expand.weight"])
    assert model.origin == f"{tmp_path} (all classes new)"


def test_as_many_classes_of_other_names_are_no_reason_to_take_them(tmp_path):
    model = make("crisp_nano", ("a", "b", "c", "d"), SHRINK_CRISP)
    before, after = started(model, make("crisp_nano", SAVED, SHRINK_CRISP), tmp_path)
    assert torch.equal(after["head.tokens.embedding"], before["head.tokens.embedding"])
    assert model.origin == f"{tmp_path} (all classes new)"


@pytest.mark.parametrize("case", ["crisp", "uper"])
@pytest.mark.parametrize("named", [(), PICTURE_BANDS])
@pytest.mark.parametrize(
    ("bands", "count"),
    [
        (("near_infrared", "red", "green"), 3),
        (("red", "green", "blue", "near_infrared"), 4),
        ((), 1),
        (("blue", "green", "red"), 3),
    ],
)
def test_the_first_convolution_is_adapted_to_the_bands(case, named, bands, count, tmp_path):
    name, options, _ = CASES[case]
    model, other = make(name, OURS, options, bands, count), make(name, SAVED, options, named)
    given = other.state_dict()
    _, after = started(model, other, tmp_path)
    assert torch.equal(after[FOUND], adapted_stem(given[FOUND], bands, count))
    assert all(torch.equal(after[n], given[n]) for n in after if n.startswith("backbone.") and n != FOUND)
    adapted = f"first convolution adapted from red, green, blue to {', '.join(bands) or 'one band'}"
    assert model.origin == f"{tmp_path} (classes road, building as there, 3 new; {adapted})"


def test_other_bands_than_a_pictures_are_copied_or_refused(tmp_path):
    infrared = ("near_infrared", "red", "green")
    model, other = (make("crisp_nano", SAVED, SHRINK_CRISP, bands) for bands in (PICTURE_BANDS, infrared))
    _, after = started(model, other, tmp_path)
    assert torch.equal(after[FOUND], other.state_dict()[FOUND]) and model.origin == str(tmp_path)
    model = make("crisp_nano", SAVED, SHRINK_CRISP, (*infrared, "elevation"))
    with pytest.raises(UserError, match="takes 3 bands, but the images have 4; start from another model or from scr"):
        start_from(model, tmp_path)


def test_networks_without_a_vssd_keep_their_bands(tmp_path):
    make("banet_restlite", SAVED, bands=PICTURE_BANDS).save(tmp_path)
    with pytest.raises(UserError, match="takes 3 bands, but the images have 4"):
        start_from(make("banet_restlite", SAVED, count=4), tmp_path)
    model = make("banet_restlite", SAVED, bands=("near_infrared", "red", "green"))
    start_from(model, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), crispseg.load(tmp_path).parameters(), strict=True))


def test_another_head_starts_from_the_backbone_alone_and_says_so(tmp_path):
    options = SHRINK_CRISP | {"depths": (3, 3, 3, 3)}
    model = make("vssd_nano_upernet", SAVED, SHRINK_UPER | {"depths": (3, 3, 3, 3), "fusion": "normalized"})
    other = make("crisp_nano", SAVED, options | {"dco": False, "fusion": "normalized"})
    _, after = started(model, other, tmp_path)
    assert torch.equal(after[FOUND], other.state_dict()[FOUND])
    fresh = sum(not name.startswith("backbone.") for name in after)
    assert model.origin == f"{tmp_path} (all classes new; {fresh} of our tensors fresh)"
    with pytest.raises(UserError, match="is a crisp_nano and does not fit banet_restlite with these options"):
        start_from(make("banet_restlite", SAVED), tmp_path)


def test_many_classes_are_counted_and_not_named(tmp_path):
    names = tuple(f"kind {i}" for i in range(9))
    model, other = make("crisp_nano", names[:-1], SHRINK_CRISP), make("crisp_nano", names, SHRINK_CRISP)
    started(model, other, tmp_path)
    assert model.origin == f"{tmp_path} (8 classes as there)"
    started(model := make("crisp_nano", names[:1], SHRINK_CRISP), other, tmp_path)
    assert model.origin == f"{tmp_path} (class kind 0 as there)"


class Odd(SegmentationModel):
    """Scores in the second dimension of a weight, a table of classes by classes, and one row for none of them."""

    def __init__(self, num_classes, in_channels, only=None):
        super().__init__()
        if only not in (None, num_classes):
            raise ValueError("made for so many classes alone")
        if torch.ones(1).sum().item() != 1:  # cannot be made on the meta device
            raise ValueError
        self.base = nn.Sequential(*(nn.Conv2d(in_channels, in_channels, 1) for _ in range(4)))
        self.up = nn.ConvTranspose2d(in_channels, num_classes, 2, 2)
        self.table = nn.Parameter(torch.eye(num_classes))
        self.bias = nn.Parameter(torch.zeros(num_classes + 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor | Output:
        return self.up(self.base(image))


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    registry.register("odd", Odd, "a network of one's own")


def test_a_network_of_ones_own(odd, tmp_path):
    model, other = make("odd", OURS[:4]), make("odd", SAVED)
    before, after = started(model, other, tmp_path)
    given = other.state_dict()
    for i, name in enumerate(OURS[:4]):
        known = name in SAVED
        expected = given["up.weight"][:, SAVED.index(name)] if known else before["up.weight"][:, i]
        assert torch.equal(after["up.weight"][:, i], expected)
    # nobody knows whose values these are
    assert torch.equal(after["table"], before["table"]) and torch.equal(after["bias"], before["bias"])
    assert model.origin == f"{tmp_path} (classes road, building as there, 2 new; 2 of our tensors fresh)"
    model = make("odd", SAVED)
    started(model, other, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_network_for_one_number_of_classes_goes_by_shapes(odd, tmp_path):
    model, other = make("odd", OURS[:4], {"only": 4}), make("odd", SAVED, {"only": 4})
    started(model, other, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert model.origin == str(tmp_path)
