"""What the pages name is there: files of the checkout, tests, functions, options of commands, keys of configs."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import re
import subprocess
import typing
from collections.abc import Iterator

import pytest

from crispseg.cli.main import VERBS, verb_parser
from crispseg.pretrain.config import PretrainConfig
from crispseg.train.config import TrainConfig
from tests.docs.blocks import ROOT

ROOMS = r"(?:src|tests|docs|benchmarks|tools|campaigns|labels|docker)"
FOR_EXAMPLE = re.compile(r"scale_shift|test_\.\.\.")  # files that a page tells the reader to write
OTHERS = {  # options of docker, pip, sbatch, tensorboard and torchrun
    *("--rm", "--no-index", "--find-links", "--array", "--gres", "--logdir"),
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"),
}
KEYS = r"`((?:data|model|loss|augment|optimizer|schedule|teacher|changes)\.\w[\w.]*)(?:=[^`]*)?`"
ATTRIBUTES = {"model.save", "model.fused", "model.origin", "model.info.started_from"}


def pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout", allow_module_level=True)
    return listed.stdout.split()


CURRENT = [page for page in pages() if not page.startswith("benchmarks/")]  # results name options of their day


def spans(page: str) -> list[str]:
    """What stands between backticks, outside of code blocks."""
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", pages())
def test_files_are_there(page: str) -> None:
    for span in spans(page):
        if re.fullmatch(rf"{ROOMS}/[\w./-]*(::\w+)?", span) and not FOR_EXAMPLE.search(span):
            path, _, name = span.partition("::")
            assert (ROOT / path).exists(), f"{page} names {path}"
            assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8") if name else True, f"{page} names {span}"


@pytest.mark.parametrize("page", pages())
def test_functions_are_there(page: str) -> None:
    for span in spans(page):
        if found := re.fullmatch(r"(crispseg(?:\.\w+)+)(?:\(.*)?", span):
            assert is_there(found[1]), f"{page} names {found[1]}"


def is_there(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings


@functools.cache
def known_options() -> set[str]:
    """Of commands, and of scripts in the checkout."""
    scripts = subprocess.run(
        ["git", "grep", "-hoE", r'"--[a-z][a-z-]*"', "--", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours = {option for verb in VERBS for option in options(verb_parser(verb))}
    return ours | OTHERS | set(scripts.stdout.replace('"', "").split())


@pytest.mark.parametrize("page", CURRENT)
def test_options_are_some_commands(page: str) -> None:
    told = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", (ROOT / page).read_text(encoding="utf-8")))
    assert told <= known_options(), f"{page}: {sorted(told - known_options())}"


@pytest.mark.parametrize("page", pages())
def test_verbs_are_there(page: str) -> None:
    told = set(re.findall(r"`crisp ([a-z]+)", (ROOT / page).read_text(encoding="utf-8")))
    assert told <= set(VERBS), f"{page}: {sorted(told - set(VERBS))}"


def keys(config: type, before: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(config).items():
        yield before + name
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from keys(part, f"{before}{name}.")


@pytest.mark.parametrize("page", CURRENT)
def test_keys_are_some_configs(page: str) -> None:
    known = {*keys(TrainConfig), *keys(PretrainConfig), *ATTRIBUTES}
    for key in re.findall(KEYS, (ROOT / page).read_text(encoding="utf-8")):
        if not key.startswith("model.options.") and not re.search(r"\.(json|safetensors|onnx|pt2)$", key):
            assert key in known, f"{page} names the key {key}"
