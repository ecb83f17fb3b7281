"""Networks that nobody here wrote, registered by one line: plain modules, and segmentation_models.pytorch's."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import crispseg
from crispseg.cli.main import main
from crispseg.models import plugins, registry
from crispseg.models.base import Output
from tests.train.tiny import make_folder, settings

HAS_SMP = importlib.util.find_spec("segmentation_models_pytorch") is not None

REGISTERS = """
import crispseg, torch
def build(num_classes, in_channels): return torch.nn.Conv2d(in_channels, num_classes, 1)
crispseg.register_network('mine', build)
"""


@pytest.fixture(autouse=True)
def _own_names(monkeypatch):
    """What a test registers is forgotten after it."""
    registry.entries()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


class Net(nn.Module):
    """Needs sides that are multiples of 4, and answers at half the size."""

    def __init__(self, num_classes, in_channels, answer="tensor"):
        super().__init__()
        self.conv, self.answer = nn.Conv2d(in_channels, num_classes, 4, stride=4), answer

    def forward(self, x):
        assert x.shape[-1] % 4 == 0 and x.shape[-2] % 4 == 0
        y = nn.functional.interpolate(self.conv(x), scale_factor=2.0)
        return {"tensor": y, "tuple": (y, 2 * y), "dict": {"aux": 2 * y, "out": y}, "nothing": None}[self.answer]


@pytest.mark.parametrize("answer", ["tensor", "tuple", "dict"])
def test_any_module_answers_at_the_images_size(answer):
    crispseg.register_network("net", Net, multiple=4)
    model = crispseg.create_model("net", 3, 2, answer=answer)
    image = torch.randn(2, 2, 21, 34)
    trained = model.train()(image)
    assert isinstance(trained, Output) and trained.logits.shape == (2, 3, 21, 34)
    assert len(trained.aux) == (answer != "tensor")
    for aux in trained.aux:
        torch.testing.assert_close(aux, 2 * trained.logits)
    assert torch.equal(model.eval()(image), trained.logits)


def test_it_is_saved_and_loaded_by_its_name(tmp_path):
    crispseg.register_network("net", Net, multiple=4)
    model = crispseg.create_model("net", 3, 2).eval()
    model.save(tmp_path / "saved")
    image = torch.randn(1, 2, 9, 10)
    assert torch.equal(crispseg.load(tmp_path / "saved")(image), model(image))
    del registry._ENTRIES["net"]
    with pytest.raises(crispseg.UserError, match="'net', which is not known here: .* name the file .* CRISPSEG_MODELS"):
        crispseg.load(tmp_path / "saved")


class Asking(Net):
    """Asks for numbers when it is made and when it runs, which tensors without data do not have."""

    def __init__(self, num_classes, in_channels):
        super().__init__(num_classes, in_channels)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]

    def forward(self, x):
        return super().forward(x) * (1 if x.abs().max().item() < 1e9 else 0)


def test_one_that_is_filled_up_is_exported_for_any_size(tmp_path):
    """The program is captured with sides that need no filling up."""
    from crispseg.export.run import export

    crispseg.register_network("net", Net, multiple=4)
    model = crispseg.create_model("net", 3, 2).eval()
    model.info = crispseg.models.base.ModelInfo(mean=(1.0,) * 2, std=(2.0,) * 2)
    assert export(model, tmp_path / "net.pt2").error < 1e-5


def test_one_that_asks_for_numbers_is_counted(capsys):
    crispseg.register_network("plain", Net, multiple=4)
    crispseg.register_network("asking", Asking, multiple=4)
    counted = []
    for name in ("plain", "asking"):
        assert main(["info", name, "--size", "64", "--classes", "3", "--json"]) == 0
        counted.append(json.loads(capsys.readouterr().out))
    assert counted[0]["macs"] == counted[1]["macs"] > 0 and counted[0]["parameters"] == counted[1]["parameters"]


def test_crisp_models_lists_them(tmp_path, monkeypatch, capsys):
    module = tmp_path / "mine_to_list.py"
    module.write_text(
        "import crispseg\nfrom torch import nn\n"
        "crispseg.register_network('mine_a', lambda num_classes, in_channels: nn.Conv2d(in_channels, num_classes, 1))\n"
        "crispseg.register_network('mine_b', lambda num_classes, in_channels: 1 / 0)\n"
    )
    monkeypatch.setenv(plugins.VARIABLE, str(module))
    plugins.import_plugins.cache_clear()
    assert main(["models", "mine_*", "--json"]) == 0
    a, b = json.loads(capsys.readouterr().out)["models"]
    assert (a["name"], a["parameters"], a["macs"]) == ("mine_a", 3 * 6 + 6, 3 * 6 * 512 * 512)
    assert b["name"] == "mine_b" and "cannot be counted: division by zero" in b["summary"]


def test_networks_that_give_something_else_are_told():
    crispseg.register_network("net", Net, multiple=4)
    with pytest.raises(crispseg.UserError, match="NoneType"):
        crispseg.create_model("net", answer="nothing")(torch.zeros(1, 3, 8, 8))
    crispseg.register_network("wrong", lambda num_classes, in_channels: nn.Conv2d(in_channels, 7, 1))
    with pytest.raises(crispseg.UserError, match="6 classes"):
        crispseg.create_model("wrong", 6)(torch.zeros(1, 3, 8, 8))
    crispseg.register_network("none", lambda num_classes, in_channels: "a net")
    with pytest.raises(crispseg.UserError, match="torch module, not str"):
        crispseg.create_model("none")


def test_options_that_a_network_does_not_take_are_told():
    def build(num_classes, in_channels, width=8):
        return nn.Conv2d(in_channels, num_classes, 1)

    crispseg.register_network("net", build)
    message = r"'net' takes \(num_classes, in_channels, width=8\): got an unexpected keyword argument 'widht'"
    with pytest.raises(crispseg.UserError, match=message):
        crispseg.create_model("net", widht=4)
    crispseg.register_network("other", lambda classes: nn.Conv2d(3, classes, 1))
    with pytest.raises(crispseg.UserError, match=r"'other' takes \(classes\): missing a required argument: 'classes'"):
        crispseg.create_model("other")
    crispseg.register_network("any", lambda num_classes, **others: nn.Conv2d(others["in_channels"], num_classes, 1))
    crispseg.create_model("any", whatever=1)


def test_a_notebooks_cell_registers_again_and_the_names_of_others_stay_theirs(tmp_path, monkeypatch):
    crispseg.register_network("net", Net)
    crispseg.register_network("net", lambda num_classes, in_channels: nn.Conv2d(in_channels, num_classes, 1))
    assert isinstance(crispseg.create_model("net").network, nn.Conv2d)
    with pytest.raises(crispseg.UserError, match="there is a model 'crisp_nano' of crispseg already"):
        crispseg.register_network("crisp_nano", Net)
    monkeypatch.setattr(Net, "__module__", "elsewhere")
    with pytest.raises(crispseg.UserError, match=f"there is a model 'net' of {__name__} already"):
        crispseg.register_network("net", Net)
    with pytest.raises(crispseg.UserError, match="'other' is registered by a function that makes it, not 5"):
        crispseg.register_network("other", 5)


def test_the_environment_names_modules_that_register(tmp_path, monkeypatch):
    plugins.import_plugins.cache_clear()
    file = tmp_path / "mine.py"
    file.write_text(REGISTERS)
    monkeypatch.setenv(plugins.VARIABLE, str(file))
    assert "mine" in crispseg.list_models()
    monkeypatch.setenv(plugins.VARIABLE, "no_such_module_anywhere")
    with pytest.raises(crispseg.UserError, match="CRISPSEG_MODELS names no_such_module_anywhere"):
        crispseg.list_models()
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "gone.py"))
    with pytest.raises(crispseg.UserError, match="no such file"):
        crispseg.list_models()


def test_a_module_that_registers_may_use_its_models_at_once(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        REGISTERS + "model = crispseg.create_model('mine')\nprint(model.name, crispseg.list_models('mine'))\n"
    )
    environment = {**os.environ, plugins.VARIABLE: str(file)}
    as_program = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=False)
    assert as_program.stdout == "mine ['mine']\n", as_program.stderr
    monkeypatch.setenv(plugins.VARIABLE, str(file))
    plugins.import_plugins.cache_clear()
    assert crispseg.list_models("mine") == ["mine"]


def test_a_module_that_raises_is_told_each_time(tmp_path, monkeypatch):
    file = tmp_path / "broken.py"
    file.write_text("raise OSError('no such luck')")
    monkeypatch.setenv(plugins.VARIABLE, str(file))
    plugins.import_plugins.cache_clear()
    for _ in range(2):
        with pytest.raises(crispseg.UserError, match="broken.py, which cannot be imported: no such luck"):
            crispseg.list_models()


def test_a_package_whose_entry_point_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    information = tmp_path / "their_nets-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-nets\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[crispseg.models]\nnets = their_nets\n")
    (tmp_path / "their_nets.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.import_plugins.cache_clear()
    with pytest.raises(crispseg.UserError, match="their-nets declares their_nets as crispseg.models, which cannot be"):
        crispseg.load("crisp_nano_aerial")


def smp_network(kind, encoder):
    def build(num_classes, in_channels):
        import segmentation_models_pytorch as smp

        return getattr(smp, kind)(encoder, encoder_weights=None, in_channels=in_channels, classes=num_classes)

    return build


@pytest.mark.skipif(not HAS_SMP, reason="segmentation_models_pytorch is not installed")
def test_smp_unet_trains_evaluates_predicts_and_exports(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    from crispseg.export.run import export
    from crispseg.train.config import TrainConfig
    from crispseg.train.loop import train

    crispseg.register_network("smp_unet", smp_network("Unet", "resnet18"), multiple=32)
    data = make_folder(tmp_path / "data")
    values = settings(data, tmp_path / "run", model={"name": "smp_unet"}, schedule={"steps": 2}, val_every=2)
    train(crispseg.config.build(TrainConfig, values))
    assert main(["eval", str(tmp_path / "run"), str(data), "-o", str(tmp_path / "report"), "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)
    model = crispseg.load(tmp_path / "run" / "best")
    scene = np.random.default_rng(1).integers(0, 255, (70, 99, 3), dtype=np.uint8)
    export(model, tmp_path / "unet.onnx", size=(64, 64))
    ours, theirs = (crispseg.segment(scene, which, tile=64) for which in (model, tmp_path / "unet.onnx"))
    assert ours.shape == (70, 99) and (ours != theirs).mean() < 1e-3


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SMP, reason="segmentation_models_pytorch is not installed")
def test_smp_segformer_exports(tmp_path):
    pytest.importorskip("onnxruntime")
    from crispseg.export.run import export

    crispseg.register_network("smp_segformer", smp_network("Segformer", "mit_b0"), multiple=32)
    model = crispseg.create_model("smp_segformer", 3).eval()
    model.info = crispseg.models.base.ModelInfo(mean=(1.0,) * 3, std=(2.0,) * 3)
    assert model(torch.zeros(1, 3, 70, 99)).shape == (1, 3, 70, 99)
    assert export(model, tmp_path / "m.onnx", size=(64, 96)).error < 1e-4
