"""Every registered model becomes an ONNX file, for any size or it says why not; onnxruntime gives its logits.

`make test` takes one small network of each kind of arithmetic; `make test-slow` takes all of them as they are.
"""

import dataclasses

import onnxruntime
import pytest
import torch

import crispseg
from crispseg.models.registry import entries, missing_requirement
from tests.conftest import relative_error
from tests.export.conftest import CARD, expected, raw_images

SHRUNK = {"width": 8, "depths": (1, 1, 1, 1), "heads": (1, 1, 2, 2), "state": 4}
SMALL = {
    "vssd_nano_upernet": SHRUNK | {"channels": 16, "aux_channels": 8},
    "abcnet_r18": {},
}  # CRISP itself: tests/export/test_run.py
IMAGE = (2, 3, 141, 75)


def exported(name, folder, **options):
    """The largest error against the model: what export saw at its own sizes, and what is seen here."""
    if missing_requirement(entries()[name]):
        pytest.skip(missing_requirement(entries()[name]))
    torch.manual_seed(0)
    model = crispseg.create_model(name, 3, 3, **options).eval()
    model.info = dataclasses.replace(CARD)
    made = crispseg.export(model, folder / "model.onnx", size=IMAGE[2:] if model.one_size_because else None)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    image = raw_images(*IMAGE)
    found = torch.from_numpy(session.run(None, {"image": image.numpy()})[0])
    return max(made.error, relative_error(found, expected(model, image)))


@pytest.mark.parametrize("name", SMALL)
def test_small_ones(name, tmp_path):
    assert exported(name, tmp_path, **SMALL[name]) < 1e-4


def test_one_that_cannot_be_of_any_size_says_why(tmp_path):
    pytest.importorskip("timm")
    with torch.device("meta"):
        model = crispseg.create_model("pyramidmamba_swinb", 3, 3)
    with pytest.raises(crispseg.UserError, match=r"for one size only, as its scan .*; give --size HEIGHT WIDTH"):
        crispseg.export(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", crispseg.list_models())
def test_all_as_they_are(name, tmp_path):
    assert exported(name, tmp_path) < 5e-4  # untrained BANet's own float32 is 1e-4 from its float64
