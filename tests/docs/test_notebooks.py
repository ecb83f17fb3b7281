"""The notebooks of the tutorial run from beginning to end, and show what they showed when they were written."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from notebooks import notebooks, run  # noqa: E402


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_kept_as_it_ran(path):
    """Every code cell was run, in order, without an error; nothing tells whose machine it was."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    text = "".join(
        out.get("text", "") if isinstance(out.get("text"), str) else "".join(out.get("text", ()))
        for cell in cells
        for out in cell["outputs"]
    )
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert path.stat().st_size < 1_500_000


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_run(path, tmp_path):
    for needed in ("nbclient", "ipykernel", "matplotlib", *(["ray"] if path.stem == "cluster" else [])):
        pytest.importorskip(needed)
    run(path, tmp_path)
