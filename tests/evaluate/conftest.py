from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crispseg.data.folder import Folder, open_folder
from tests.evaluate.toy import Array, labels, spoilt, write_folder

Pairs = dict[str, tuple[Array, Array]]


@pytest.fixture(scope="session")
def pairs() -> Pairs:
    """Three images of awkward sizes: what they show, and their masks (with ignored pixels)."""
    made: Pairs = {}
    for number, size in enumerate([(61, 90), (33, 47), (70, 40)]):
        true = labels(number, size)
        shown = spoilt(true, 10 + number)
        true[:4, 5:20] = 255
        made[f"site{number}"] = (shown, true)
    return made


@pytest.fixture(scope="session")
def folder(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return open_folder(write_folder(tmp_path_factory.mktemp("data") / "meadows", pairs))


@pytest.fixture
def perfect(tmp_path: Path) -> Folder:
    """Images that show their masks."""
    images = {f"site{n}": (labels(n, (40, 50)),) * 2 for n in range(3)}
    return open_folder(write_folder(tmp_path / "perfect", images))


def total(pairs: Pairs) -> np.ndarray:
    from tests.evaluate.toy import counted

    return sum((counted(shown, true) for shown, true in pairs.values()), np.zeros((3, 3), np.int64))
