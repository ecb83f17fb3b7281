"""The names, and what a user is told who asks for something that is not there."""

import importlib.util
import subprocess
import sys

import pytest

import crispseg.peers
from crispseg.errors import UserError
from crispseg.models import registry
from tests.peers.facts import PEERS, VARIANTS


def test_all_names_are_listed() -> None:
    assert {*PEERS, *VARIANTS} <= set(registry.list_models())


def test_registering_imports_neither_timm_nor_a_network() -> None:
    code = (
        "import sys, crispseg.peers; "
        "print([m for m in sys.modules if m.startswith(('timm', 'torchvision', 'crispseg.peers.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_timm_a_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "timm" else real(name, *a))
    with pytest.raises(UserError, match=r"'unetformer_r18' needs timm: pip install 'crispseg\[peers\]'"):
        registry.create_model("unetformer_r18")
    assert registry.create_model("banet_restlite", num_classes=2).num_classes == 2


def test_a_mistyped_option_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown model option 'dropuot'; did you mean 'dropout'"):
        crispseg.peers._lazy("unetformer")(num_classes=2, in_channels=3, dropuot=0.2)


def test_a_network_without_options_says_so() -> None:
    with pytest.raises(UserError, match="BANet has no options to choose, but was given width"):
        registry.create_model("banet_restlite", width=3)
