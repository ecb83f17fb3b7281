"""The front door is light, and the rooms that must run anywhere import nothing but torch, numpy and safetensors."""

import subprocess
import sys

import crispseg

HEAVY = ("rasterio", "matplotlib", "scipy", "PIL", "yaml", "rich", "shapely", "pyogrio", "timm", "pandas")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_front_door_imports_nothing():
    loaded = run("import sys, crispseg; print(' '.join(sys.modules))").split()
    assert not [name for name in (*HEAVY, "torch", "numpy") if name in loaded]


def test_every_name_at_the_front_door_is_there():
    for name in crispseg.__all__:
        assert getattr(crispseg, name) is not None
    assert set(crispseg.__all__) <= set(dir(crispseg))


def test_models_losses_and_metrics_need_little():
    """With every other package forbidden, a model is made, run, saved and loaded."""
    code = f"""
import sys, tempfile
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}: raise ImportError(name + " is not on this machine")
sys.meta_path.insert(0, Forbid())
import torch, crispseg, crispseg.losses, crispseg.metrics
model = crispseg.create_model("crisp_nano", num_classes=2).eval()
with tempfile.TemporaryDirectory() as folder:
    model.save(folder)
    crispseg.load(folder)(torch.zeros(1, 3, 32, 32))
crispseg.create_model("vssd_nano_upernet", num_classes=2)
print("fine")
"""
    assert run(code) == "fine"


def test_a_prediction_loads_no_compiler():
    """torch's takes a second or two to load, and what is compiled for a fused model is compiled by Triton."""
    code = """
import sys, numpy, warnings
warnings.simplefilter("ignore")
import crispseg
crispseg.segment(numpy.zeros((64, 64, 3), numpy.uint8))
print("torch._dynamo" in sys.modules)
"""
    assert run(code) == "False"
