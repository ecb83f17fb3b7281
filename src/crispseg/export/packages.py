"""Programs for torch itself: `.pt2` files, as they were captured or compiled ahead of time."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.export.verify import Answer
from crispseg.reading import reason


def save_program(program: torch.export.ExportedProgram, path: Path, metadata: dict[str, str]) -> Answer:
    """Write what torch.export captured; returns what the file answers."""
    with path.open("wb") as file, _quietly():
        torch.export.save(program, file, extra_files=metadata)
    with path.open("rb") as file, _quietly():
        return _answers(torch.export.load(io.BytesIO(file.read())).module())


def save_compiled(program: torch.export.ExportedProgram, path: Path, metadata: dict[str, str]) -> Answer:
    """Compile ahead of time for this machine's kind of CPU; returns what the package answers."""
    from torch import _inductor as inductor

    package = path.with_suffix(".pt2")  # AOTInductor insists on the suffix
    try:
        with _quietly():
            inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs={"aot_inductor.metadata": metadata}
            )
            package.rename(path)
            return _answers(inductor.aoti_load_package(str(path)))
    except Exception as error:  # whatever the compilers below it raise
        raise UserError(f"AOTInductor cannot compile this model here: {reason(error)}") from error
    finally:
        if package != path:
            package.unlink(missing_ok=True)


def _answers(function: Answer) -> Answer:
    def answer(image: Tensor) -> Tensor:
        with torch.no_grad():
            return function(image)

    return answer


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    logger = logging.getLogger("torch")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)
