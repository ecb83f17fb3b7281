"""Kernels compiled ahead: on a GPU nothing is left to compile; without one nothing happens."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crispseg.ops import compile_ahead as room
from crispseg.ops.dispatch import HAS_TRITON

needs_gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton")

CAPTURED = {"capture_output": True, "text": True, "check": True}


def test_without_a_gpu_the_work_is_not_even_rehearsed():
    assert room.compile_ahead(lambda: 1 / 0, torch.device("cpu")) == 0


def test_a_kernel_is_known_by_all_it_is_made_of():
    if not HAS_TRITON:
        pytest.importorskip("triton")
    kernel = room.Kernel("module", "name", "{}")
    assert kernel.identity == room.Kernel("module", "name", "{}").identity
    others = [kernel._replace(module="other"), kernel._replace(name="other"), kernel._replace(specialization="[]")]
    assert len({kernel.identity, *(other.identity for other in others)}) == 4


def test_constants_are_no_names_of_types():
    """Such a string comes back from Triton's own description as the type, and another kernel would be compiled."""
    tl = pytest.importorskip("triton.language")
    from crispseg.ops.nc_ssd.launch import product_of

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert not tl.dtype.is_dtype(product_of(torch.zeros(1, dtype=dtype)))


KEYS = """
import importlib, json, pkgutil, sys, torch
torch.version.cuda = torch.version.cuda or "none"
from triton.runtime.jit import JITFunction
import crispseg.ops
from crispseg.ops.compile_ahead import key_callees_first
modules = [m.name for m in pkgutil.walk_packages(crispseg.ops.__path__, "crispseg.ops.") if "cpu" not in m.name]
found = {}
for module in map(importlib.import_module, modules):
    found |= {f"{x.module}.{x.fn.__name__}": x for x in vars(module).values() if isinstance(x, JITFunction)}
for name in sorted(found, reverse=sys.argv[1] == "backwards"):
    key_callees_first(found[name])
print(json.dumps({name: found[name].cache_key for name in found}))
"""


def test_processes_know_a_kernel_by_the_same_key_whatever_they_compiled_before():
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    keys = [
        json.loads(subprocess.run([sys.executable, "-c", KEYS, order], env=environment, **CAPTURED).stdout)
        for order in ("forwards", "backwards")
    ]
    assert len(keys[0]) > 50
    assert keys[0] == keys[1]


ANSWERS = "import sys; [print(n, 'failed: E' if n % 2 else 'compiled') for n, line in enumerate(sys.stdin)]"


def test_kernels_are_handed_over_and_remembered(tmp_path, monkeypatch, capsys):
    """With a compiler that fails at every other kernel: on a new machine it is started before the rehearsal."""
    happened = []
    kernels = [room.Kernel("module", f"kernel{i}", "{}") for i in range(8)]

    def start(device):
        happened.append("start")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", ANSWERS], **pipes)

    def rehearse(work):
        happened.append("rehearse")
        return work()

    changes = {
        "kernels_wanted": lambda: True, "HAS_TRITON": True, "available_cores": lambda: 2, "start_compiler": start,
        "rehearse": rehearse, "_marks": lambda: tmp_path / "marks", "_triton_version": lambda: "1", "_KNOWN": set(),
        "_LOADING": [],
    }  # fmt: skip
    for name, value in changes.items():
        monkeypatch.setattr(room, name, value)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    device = torch.device("cuda", 0)
    assert room.compile_ahead(lambda: kernels[:1], device) == 1  # too few to hand over
    assert happened == ["start", "rehearse"]
    room.expect_work(device)
    room.expect_work(device)  # one is enough
    assert happened[2:] == ["start"]
    assert room.compile_ahead(lambda: kernels, device) == 8
    said = capsys.readouterr().err
    assert happened[2:] == ["start", "rehearse"]
    room.expect_work(device)  # no new machine any more
    assert "compiled 4 kernels" in said and "4 are left to their first" in said
    assert len(list((tmp_path / "marks").iterdir())) == 4
    assert room.compile_ahead(lambda: kernels[:4], device) == 2  # those that failed, left to their launches
    assert happened[4:] == ["rehearse"]


def test_kernels_that_take_long_are_begun_first(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_remember", lambda kernel: None)
    modules = ["nc_ssd.kernels", "infer.token_attention_kernels", "maps.normalize_kernels", "maps.convolution_kernels"]
    kernels = [room.Kernel(f"crispseg.ops.{name}", "kernel", "{}") for name in modules]
    heard = tmp_path / "heard"
    script = f"import sys; open({str(heard)!r}, 'w').write(sys.stdin.read())"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    room.compile_side_by_side(kernels, subprocess.Popen([sys.executable, "-c", script], **pipes))
    assert [kernels.index(room.Kernel(*json.loads(line))) for line in heard.open()] == [1, 3, 0, 2]
    for name in room._LONG:
        assert list(Path(room.__file__).parent.glob(f"**/{name}.py"))


LISTED = """
import json
from tests.ops import ahead_of_time as ahead
ahead.pretend(90)
found = list(ahead.rehearsed("predict", "crisp_nano", size=32))
print(json.dumps(found[:3]))
"""
COMPILER = """
import torch
torch.version.cuda = torch.version.cuda or "none"
from crispseg.ops.compile_ahead import serve
serve(90, 2)
"""
FOUND = """
import json, sys, torch
torch.version.cuda = torch.version.cuda or "none"
from triton import knobs
from triton.runtime import driver
from crispseg.ops import compile_ahead as room
driver.set_active(room.OnlyATarget(90))
hits = []
knobs.compilation.listener = lambda *, src, metadata, metadata_group, times, cache_hit: hits.append(cache_hit)
for kernel in map(json.loads, sys.stdin):
    room.importlib.import_module(kernel[0])
    assert room._compile(room.Kernel(*kernel)) == "compiled"
print(json.dumps(hits))
"""


def test_kernels_are_compiled_without_a_gpu_and_found_by_another_process(tmp_path):
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(script, given=""):
        return subprocess.run([sys.executable, "-c", script], input=given, env=environment, **CAPTURED).stdout

    kernels = json.loads(run(LISTED).splitlines()[-1])
    lines = "".join(json.dumps([*kernel]) + "\n" for kernel in [*kernels, ["crispseg.ops.dispatch", "gone", "{}"]])
    said = sorted(run(COMPILER, lines).splitlines())
    assert [line.split()[1] for line in said] == ["compiled"] * len(kernels) + ["failed:"] and len(kernels) == 3
    hits = json.loads(run(FOUND, "".join(lines.splitlines(True)[:-1])).splitlines()[-1])
    assert hits == [True] * 3


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("how", ["training", "validation", "fused"])
def test_nothing_is_left_to_compile(tmp_path, how):
    """In a process of its own, with an empty cache."""
    script = """
import sys, torch, crispseg, json
from triton import knobs
from crispseg.ops.compile_ahead import compile_ahead
how = sys.argv[1]
torch.manual_seed(0)
model = crispseg.create_model("crisp_nano", num_classes=3).cuda()
image = torch.randn(2, 3, 64, 64, device="cuda")
network = model.train(how == "training")
if how == "fused":
    network = network.fused(torch.bfloat16, graphs=False)

def work():
    with torch.autocast("cuda", torch.bfloat16, enabled=how != "fused"), torch.inference_mode(how != "training"):
        out = network(image)
    if how == "training":
        out.logits.sum().backward()

found = compile_ahead(work, torch.device("cuda", 0))
late = []
def listen(*, src, metadata, metadata_group, times, cache_hit):
    if not cache_hit:
        late.append(src.name)
knobs.compilation.listener = listen
work()
torch.cuda.synchronize()
print(json.dumps([found, late]))
"""
    found, late = json.loads(_run(script, how, tmp_path))
    assert found > 10 and not late


def _run(script, word, cache):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    command = ["taskset", "-c", f"0-{os.cpu_count() - 1}", sys.executable, "-c", script, word]  # on all cores
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
