"""Runs the notebooks of docs/tutorial/ and keeps what they printed and drew, so that the site shows it.

    python tools/notebooks.py                     all of them, in place
    python tools/notebooks.py docs/tutorial/inside-out.ipynb

Each runs in an empty folder. Whatever would differ on another machine (times, numbers of processes) is cleaned away.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorial"


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def run(path: Path, folder: str | os.PathLike[str]) -> Any:
    """The notebook, executed in `folder` by this interpreter; a cell that fails raises."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"  # for lines that begin with !crisp
    try:
        place = {"metadata": {"path": os.fspath(folder)}}
        nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3", resources=place).execute()
    finally:
        os.environ["PATH"] = before
    return notebook


def clean(notebook: Any) -> Any:
    """Without what is different every time it is run."""
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).clear()
            if "text" in output:
                output.text = re.sub(r"\x1b\[[0-9;]*m", "", output.text)  # colours of a terminal
    return notebook


def main() -> None:
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=notebooks())
    for path in parser.parse_args().paths:
        with tempfile.TemporaryDirectory() as folder:
            print(path.name, flush=True)
            nbformat.write(clean(run(path, folder)), path)


if __name__ == "__main__":
    main()
