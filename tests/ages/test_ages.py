"""What every released version has saved can be opened, or is refused in one sentence."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import crispseg
from crispseg.errors import UserError
from crispseg.models.folder import load
from crispseg.train.checkpoint import load_checkpoint
from crispseg.train.loop import resume
from tests.train import tiny

VERSIONS = sorted(Path(__file__).parent.glob("v*"))


def image():
    values = (np.arange(32 * 32 * 3).reshape(1, 3, 32, 32) % 255).astype(np.float32) / 100
    return torch.from_numpy(values)


def test_every_released_version_is_here():
    assert f"v{crispseg.__version__}" >= VERSIONS[-1].name >= "v0.1.0"


@pytest.mark.parametrize("age", VERSIONS, ids=lambda age: age.name)
def test_a_model_folder(age):
    model = load(age / "model")
    assert model.info.classes == ("ground", "square")
    with torch.no_grad():
        logits = model(image()).flatten()[::97]
    assert torch.allclose(logits, torch.tensor(json.loads((age / "logits.json").read_text())), atol=1e-3)


@pytest.mark.parametrize("age", VERSIONS, ids=lambda age: age.name)
def test_a_checkpoint(age, tmp_path):
    """The run goes on to its end, or says in a sentence why it cannot."""
    run = Path(shutil.copytree(age / "run", tmp_path / "run"))
    data = tiny.make_folder(tmp_path / "squares")
    try:
        result = resume(run, [f"data={data}"], quiet=True)
    except UserError as error:
        assert "\n" not in str(error)
        assert age.name != "v0.1.0", error  # what is known to go on
        return
    assert result.finished and result.values["steps"] == 4
    assert load(run / "best").num_classes == 2


def test_what_a_later_version_saved_is_refused_in_a_sentence(tmp_path):
    model = Path(shutil.copytree(VERSIONS[-1] / "model", tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"format": 2, "crispseg": "9.0"}))
    with pytest.raises(UserError, match=r"^[^\n]*saved by crispseg 9\.0 in a newer format[^\n]*upgrade crispseg$"):
        load(model)
    torch.save({"format": 2, "model": {}}, tmp_path / "last.pt")
    with pytest.raises(UserError, match=r"^[^\n]*or of another version of crispseg$"):
        load_checkpoint(tmp_path / "last.pt")
