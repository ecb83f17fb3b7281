"""What a pretraining run learns from, told by folders: there may be millions of pictures."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from crispseg.fingerprint import stamps
from crispseg.pretrain.feed import LearningSet

_WHOLE = 1 << 30  # bytes of all pictures; of more than that, sizes and times of writing must do


def describe(sets: Sequence[LearningSet]) -> dict[str, str]:
    """A stamp of every folder of every set, by the set's and the folder's names and not by place: data may move."""
    files = {one.name: sorted({path for part in one.parts for path in part.source.files}) for one in sets}
    facts = {path: os.stat(path) for paths in files.values() for path in paths}
    if sum(fact.st_size for fact in facts.values()) <= _WHOLE:
        known = stamps(facts, moves=True)
    else:
        known = {os.path.abspath(path): f"{fact.st_size}-{fact.st_mtime_ns}" for path, fact in facts.items()}
    roots = {one.name: Path(one.config.path) for one in sets}
    parts = [_by_folder(name, roots[name], paths, known) for name, paths in files.items()]
    return {key: value for part in parts for key, value in part.items()}


def _by_folder(name: str, root: Path, paths: Sequence[Path], known: dict[str, str]) -> dict[str, str]:
    digests: dict[str, hashlib.blake2b] = defaultdict(lambda: hashlib.blake2b(digest_size=16))
    for path in paths:
        folder = name if path.parent == root else path.parent.name  # the set's own may be called otherwise now
        digests[f"{name}/{folder}"].update(f"{path.name}\0{known[os.path.abspath(path)]}\n".encode())
    return {folder: digest.hexdigest() for folder, digest in digests.items()}
