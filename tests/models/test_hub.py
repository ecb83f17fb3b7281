"""Models on the hub: found in a local cache as huggingface_hub lays it out, and without a network said plainly."""

import importlib
import shutil
from pathlib import Path

import pytest
import torch

import crispseg
from crispseg.cli.main import main
from crispseg.models import hub

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", 2, width=8, depths=(1, 1, 1, 1), state=4, dim=16, mlp_dim=16).eval()
    model.save(tmp_path / "saved")
    return model, tmp_path / "saved"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    folder = tmp_path / "cache"
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda **words: download(cache_dir=folder, **words))
    return folder


def fill(cache: Path, folder: Path, name: str) -> None:
    repo = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)


@pytest.mark.parametrize("word", ["hf:org/city", f"hf:org/city@{COMMIT}"])
def test_what_was_fetched_once_is_loaded_without_a_network(saved, cache, word):
    model, folder = saved
    fill(cache, folder, "org/city")
    image = torch.randn(1, 3, 40, 40)
    assert torch.equal(crispseg.load(word)(image), model(image))


def test_what_was_not_is_said(cache):
    with pytest.raises(crispseg.UserError, match="cannot fetch hf:org/none: the hub cannot be reached.*local cache"):
        crispseg.load("hf:org/none")


@pytest.mark.parametrize("word", ["hf:city", "hf:a/b/c", "hf:", "hf:../../etc"])
def test_names_that_are_none(word):
    with pytest.raises(crispseg.UserError, match="org/name"):
        crispseg.load(word)


def test_push_sends_the_folders_own_files(saved, monkeypatch, capsys):
    sent = {}

    class Api:
        def create_repo(self, name, private, exist_ok):
            sent.update(name=name, private=private)
            return f"https://hub/{name}"

        def upload_folder(self, **words):
            sent.update(words)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    (saved[1] / "secrets.txt").write_text("not for others")
    assert main(["push", str(saved[1]), "org/city", "--private"]) == 0
    assert sent["name"] == sent["repo_id"] == "org/city" and sent["private"]
    chosen = {p.name for p in saved[1].iterdir() if any(p.match(pattern) for pattern in sent["allow_patterns"])}
    assert chosen == {"config.json", "model.safetensors", "README.md"}
    assert "https://hub/org/city" in capsys.readouterr().out


def test_push_without_a_network_or_a_model_says_so(saved, cache, tmp_path, capsys):
    assert main(["push", str(saved[1]), "org/city"]) == 1
    assert "cannot push to hf:org/city: the hub cannot be reached from here; try again" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(crispseg.UserError, match="is not a model folder"):
        hub.push(tmp_path / "empty", "org/city")
