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
    made = io.BytesIO()  # at a full disk torch's own writer ends the process
    with _quietly():
        torch.export.save(program, made, extra_files=metadata)
    path.write_bytes(made.getbuffer())
    with path.open("rb") as file, _quietly():
        return _answers(torch.export.load(io.BytesIO(file.read())).module())


def save_compiled(program: torch.export.ExportedProgram, path: Path, metadata: dict[str, str]) -> Answer:
    """Compile ahead of time for this machine's kind of CPU; returns what the package answers."""
    from torch import _inductor as inductor

    made = io.BytesIO()
    try:
        with _quietly():
            inductor.aoti_compile_and_package(
                program, package_path=made, inductor_configs={"aot_inductor.metadata": metadata}
            )
    except Exception as error:  # whatever the compilers below it raise
        raise UserError(f"AOTInductor cannot compile this model here: {reason(error)}") from error
    path.write_bytes(made.getbuffer())
    with _quietly():
        return _answers(inductor.aoti_load_package(str(path)))


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
