"""One export: capture, translate, check, and only then put the file in place."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crispseg import config as configs
from crispseg.errors import UserError, unknown
from crispseg.export import onnx_graph, packages, verify
from crispseg.export.capture import Size, capture
from crispseg.export.deployed import HEADS, Deployed, Head, deploy
from crispseg.models import onnx_card
from crispseg.models.base import SegmentationModel
from crispseg.outputs import making

FORMATS = ("onnx", "pt2", "aoti")
PRECISIONS = ("float32", "float16", "int8")
Say = Callable[[str], None]
_WINDOWS = 24


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is to be exported."""

    format: str = "onnx"  # or pt2 (torch.export), aoti (compiled ahead of time by AOTInductor)
    output: Head = "logits"  # or softmax, argmax
    precision: str = "float32"  # or float16, int8
    size: tuple[int, int] | None = None  # (height, width); None: any
    batch: int | None = None  # None: any
    calibrate: str | None = None  # a folder of images, for int8
    protocol: str | None = None  # of that folder, e.g. "dubai/own5"; None: its own
    max_loss: float = 5.0  # points of mIoU that int8 may lose


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the model."""

    path: str
    choice: Choice
    bytes: int
    seconds: float
    checks: tuple[verify.Check, ...]
    loss: Any = None  # of int8, in mIoU

    @property
    def error(self) -> float:
        """The largest relative error of all that was tried."""
        return max(check.error for check in self.checks)


def export(
    model: SegmentationModel | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    say: Say | None = None,
    existing: str = "refuse",
    **choice: Any,
) -> Exported:
    """Write a model as a file for other programs.

        crispseg.export("crisp_nano_aerial", "model.onnx", output="argmax")

    The file takes raw pixels, float32 (N, bands, H, W), and gives logits, probabilities or class ids. It appears only
    if its answers are the model's.

    Args:
        model: A model, the folder of a saved one, or a shipped model's name.
        path: The file: its ending, `.onnx` or `.pt2`, says which kind.
        say: Is told what is being done.
        existing: When the file is there already: `refuse` or `replace`.
        choice: Fields of `Choice`: size, output, precision and more.

    Returns:
        The file's name and size, and the checks that it passed.
    """
    configs.check_arguments(export, locals())
    from crispseg.models.folder import load

    target = Path(path)
    chosen = _checked(configs.build(Choice, {"format": _format_of(target)} | choice), target)
    if not isinstance(model, SegmentationModel):
        model = load(model)
    if model.normalises:
        raise UserError("this model is an exported file already; export the model it was made from")
    if model.one_size_because and chosen.size is None:
        raise UserError(
            f"{model.name} can be exported for one size only, as {model.one_size_because}; give --size HEIGHT WIDTH"
        )
    start = time.monotonic()
    tell = say or (lambda _: None)
    with making(target, existing) as aside:
        checks, loss = (_write_onnx if chosen.format == "onnx" else _write_program)(model, aside, chosen, tell)
        size = aside.stat().st_size
    return Exported(str(target), chosen, size, time.monotonic() - start, tuple(checks), loss)


def _format_of(target: Path) -> str:
    formats = {".onnx": "onnx", ".pt2": "pt2"}
    if target.suffix.lower() not in formats:
        raise UserError(f"an exported model ends in .onnx or .pt2, not {target.name!r}")
    return formats[target.suffix.lower()]


def _checked(choice: Choice, target: Path) -> Choice:
    for what, word, known in (
        ("format", choice.format, FORMATS),
        ("output", choice.output, HEADS),
        ("precision", choice.precision, PRECISIONS),
    ):
        if word not in known:
            raise unknown(what, word, known)
    suffix = ".onnx" if choice.format == "onnx" else ".pt2"
    if target.suffix.lower() != suffix:
        raise UserError(f"format {choice.format} is written to a file that ends in {suffix}, not {target.name!r}")
    if target.is_dir():
        raise UserError(f"{target} is a folder; name a file that ends in {suffix}")
    for what, number in (("height", choice.size and choice.size[0]), ("width", choice.size and choice.size[1])):
        if number is not None and number < 1:
            raise UserError(f"the {what} must be at least 1 px, not {number}")
    if choice.batch is not None and choice.batch < 1:
        raise UserError(f"the batch must be at least 1, not {choice.batch}")
    if choice.precision == "int8" and (choice.calibrate is None or choice.format != "onnx"):
        raise UserError("int8 is for ONNX and needs --calibrate FOLDER: images like those it will see")
    if choice.precision == "int8" and choice.output == "argmax":
        raise UserError("int8 is scored by its logits or probabilities; leave out --output argmax")
    if choice.calibrate is not None and choice.precision != "int8":
        raise UserError("--calibrate is for --precision int8")
    return choice


def _size(choice: Choice) -> Size:
    height, width = choice.size or (None, None)
    return Size((choice.batch, height, width))


def _captured(model: SegmentationModel, choice: Choice, say: Say) -> torch.export.ExportedProgram:
    dtype = torch.float16 if choice.precision == "float16" else torch.float32
    deployed = deploy(model, choice.output, dtype)
    size = _size(choice)
    say(f"capturing {model.name} for {_words(size)}")
    try:
        return capture(deployed, model.in_channels, size)
    except Exception as error:  # torch.export raises what it likes
        raise UserError(
            f"torch.export cannot follow {model.name} for {_words(size)}: {_first_line(error)}{_way_out(size)}"
        ) from error


def _way_out(size: Size) -> str:
    return "; give --size HEIGHT WIDTH to export it for one size" if size.dynamic else ""


def _cause(error: BaseException) -> str:
    """What was first raised: the exporter's own messages are pages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {_first_line(error)}"


def _words(size: Size) -> str:
    batch, height, width = size
    return f"{'any size' if height is None else f'{width} x {height} px'}, batch {'any' if batch is None else batch}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _truth(model: SegmentationModel, choice: Choice) -> Deployed:
    """What the model itself says, as it is, in float32 on the CPU."""
    own = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    return Deployed(own, model, choice.output, torch.float32).eval()


def _check(answer: verify.Answer, model: SegmentationModel, choice: Choice, say: Say) -> list[verify.Check]:
    say("checking it against the model")
    precision = "float16" if choice.precision == "float16" else "float32"
    bounds = verify.IDS_BOUNDS if choice.output == "argmax" else verify.BOUNDS
    return verify.check(answer, _truth(model, choice), model, _size(choice), bounds[precision])


def _write_program(model: SegmentationModel, aside: Path, choice: Choice, say: Say) -> tuple[list[verify.Check], Any]:
    program = _captured(model, choice, say)
    card = onnx_card.write_metadata(_card(model, choice))
    say("compiling it" if choice.format == "aoti" else "writing it")
    save = packages.save_compiled if choice.format == "aoti" else packages.save_program
    return _check(save(program, aside, {onnx_card.KEY: card[onnx_card.KEY]}), model, choice, say), None


def _card(model: SegmentationModel, choice: Choice) -> onnx_card.Card:
    return onnx_card.card_of(
        model,
        output=choice.output,
        precision=choice.precision,
        size=tuple(_size(choice)),
    )


def _write_onnx(model: SegmentationModel, aside: Path, choice: Choice, say: Say) -> tuple[list[verify.Check], Any]:
    onnx_graph.require_onnx()
    import onnx

    windows = _windows(model, choice) if choice.precision == "int8" else None  # before the long part
    program = _captured(model, choice, say)
    say("translating it to ONNX")
    entries = onnx_card.write_metadata(_card(model, choice))
    try:
        graph = onnx_graph.to_onnx(program, choice.output, entries)
    except torch.onnx.OnnxExporterError as error:
        raise UserError(
            f"torch.onnx cannot translate {model.name}: {_cause(error)}{_way_out(_size(choice))}"
        ) from error
    content = graph.SerializeToString()
    checks = _check(_onnx_answer(content), model, choice, say)
    loss = None
    if windows is not None:
        from crispseg.export import quantise

        say(f"calibrating int8 on {len(windows.calibration)} windows of {choice.calibrate}")
        for note in windows.notes:
            say(note)
        whole, content = content, _with_metadata(quantise.quantise(graph, windows.calibration), entries)
        loss = quantise.measure_loss(whole, content, windows, model.num_classes)
        say(loss.sentence())
        quantise.refuse_loss(loss, choice.max_loss)
    onnx.checker.check_model(content)
    aside.write_bytes(content)
    return checks, loss


def _windows(model: SegmentationModel, choice: Choice) -> Any:
    from crispseg.export.windows import read_windows

    assert choice.calibrate is not None  # int8 was checked to have it
    return read_windows(choice.calibrate, model, choice.size, _WINDOWS, choice.protocol)


def _with_metadata(graph: Any, entries: dict[str, str]) -> bytes:
    del graph.metadata_props[:]
    for key, value in entries.items():
        graph.metadata_props.add(key=key, value=value)
    return bytes(graph.SerializeToString())


def _onnx_answer(content: bytes) -> verify.Answer:
    from crispseg.models.onnx_file import open_session

    session = open_session(content, "the exported model", torch.get_num_threads())

    def answer(image: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {onnx_card.INPUT: image.numpy()})[0])

    return answer
