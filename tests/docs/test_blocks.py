"""Every code block of README and docs is run, with small stand-ins for what the reader has; commands are parsed with
the parsers they would meet, and cheap ones are run.

A block that cannot run here is named in LEFT_OUT with the reason, and compiled all the same.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import crispseg
from crispseg.cli.main import VERBS, main, verb_parser
from crispseg.configs import find_config, find_table
from crispseg.errors import UserError
from crispseg.models import registry
from crispseg.models.base import ModelInfo
from tests.docs.blocks import ROOT, Block, Command, blocks, commands
from tests.train import tiny

# What a block must hold to be left out, and why.
LEFT_OUT = {
    "import optuna": "a search takes hours",
    "load_authors_checkpoint": "the authors' weights are theirs to give",
}
NEEDS_CUDA = (".cuda()", 'device="cuda"')
CLASSES = ("dark", "bright")
CHEAP = ("models", "configs", "completion")


def small_model() -> crispseg.models.base.SegmentationModel:
    model = crispseg.create_model("crisp_nano", num_classes=2, **tiny.OPTIONS).eval()
    model.info = ModelInfo(classes=CLASSES, palette=((0, 0, 0), (255, 255, 0)), mean=(90.0,) * 3, std=(50.0,) * 3)
    return model


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder: the names that the blocks use, each with something small behind it."""
    home = tmp_path_factory.mktemp("reader")
    data = tiny.make_folder(home / "my_folder", count=4)
    (data / "classes.csv").write_text("name,id\ndark,0\nbright,1\n")
    for name in ("my_data", "mydata"):
        shutil.copytree(data, home / name)
    for name in ("my_model", "model", "runs/my_model/model"):
        small_model().save(home / name)
    pixels = np.random.default_rng(0).integers(0, 255, (96, 80, 3)).astype(np.uint8)
    for name in ("city.tif", "photo.png", "ortho.tif"):
        Image.fromarray(pixels).save(home / name)
    public = crispseg.create_backbone("vssd_tiny", fusion="raw", dco=False, last_stage="attention")
    torch.save({"model": public.state_dict()}, home / "vssd_tiny.pth")
    return home


def names_at_hand() -> dict[str, Any]:
    """Variables that a block may take for granted."""
    image = torch.rand(3, 64, 64)
    return {
        "model": small_model(),
        "image": image,
        "images": torch.rand(2, 3, 64, 64),
        "height": 64,
        "width": 64,
        "read_rows": lambda top, bottom: image[:, top:bottom],
        "write_rows": lambda top, logits: None,
    }


PAIRS = [(np.zeros((8, 8), np.int64), np.ones((8, 8), np.int64))]
OWN_NAMES: Mapping[str, Mapping[str, Any]] = {"docs/reference/metrics.md": {"images": PAIRS}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes by default takes a moment."""
    monkeypatch.setattr("crispseg.train.setup._STEPS", {"cpu": 2, "cuda": 2})
    monkeypatch.setattr("crispseg.train.setup._LARGEST_CROP", {"cpu": 32, "cuda": 32})
    registry.entries()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))  # what a block registers is forgotten after it
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # two threads on shared cores wait for each other
    monkeypatch.setattr("crispseg.train.setup._MODEL", {"cpu": "crisp_nano", "cuda": "crisp_nano"})


@pytest.mark.parametrize("block", list(blocks("python")), ids=str)
def test_python_runs(block: Block, reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    code = compile(block.code, str(block), "exec")
    for words, reason in LEFT_OUT.items():
        if words in block.code:
            pytest.skip(reason)
    if any(words in block.code for words in NEEDS_CUDA) and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for name in imported(block.code):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    home = tmp_path / "home"
    shutil.copytree(reader, home)
    monkeypatch.chdir(home)
    exec(code, {"__name__": "block", **names_at_hand(), **OWN_NAMES.get(block.page, {})})


def imported(code: str) -> set[str]:
    """The packages that a block imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_all_that_is_left_out_is_there() -> None:
    text = "\n".join(block.code for block in blocks("python"))
    assert all(words in text for words in LEFT_OUT), "a reason for nothing: remove it"


@pytest.mark.parametrize("block", list(blocks("yaml")), ids=str)
def test_yaml_is_valid(block: Block) -> None:
    import yaml

    assert yaml.safe_load(block.code) is not None


@pytest.mark.parametrize("command", list(commands()), ids=str)
def test_commands_are_understood(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = command.words
    if program == "torchrun":
        program, words = "crisp", words[words.index("crispseg.cli.main") + 1 :]
    {"crisp": check_crisp, "pip": check_pip, "make": check_make, "python": check_python}[program](words)


def check_crisp(words: list[str]) -> None:
    verb, *rest = words
    assert verb in VERBS
    try:
        args = verb_parser(verb).parse_intermixed_args(rest)
    except SystemExit:
        pytest.fail(f"crisp {' '.join(words)} is not understood")
    if verb == "train" and not args.resume:
        check_config(args.words)
    if verb == "ablate":
        check_tables(args)
    if verb in CHEAP:
        assert main(words) == 0


def check_config(words: list[str]) -> None:
    from crispseg.train.config import train_config

    named = [word for word in words if "=" not in word and not looks_like_data(word)]
    keys = [word for word in words if "=" in word]
    try:
        train_config(find_config(named[0]) if named else None, keys)
    except UserError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))


def check_tables(args: Any) -> None:
    for word in args.words:
        if "=" not in word:
            find_table(word)
    for word in args.data:
        if not looks_like_data(word):
            find_config(word.split("=")[0])


def looks_like_data(word: str) -> bool:
    """A folder of the reader's own."""
    return word.startswith("my") or "/" in word


def check_pip(words: list[str]) -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for word in words:
        for found in re.findall(r"\[([\w,]+)\]", word):
            assert set(found.split(",")) <= extras


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(words) <= set(targets)


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
    elif not words[0].startswith("-"):
        assert (ROOT / words[0]).is_file()
