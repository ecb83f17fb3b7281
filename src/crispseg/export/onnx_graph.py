"""From a captured program to an ONNX model: translated by torch, then made small.

torch.onnx first takes every operation apart that it has no translation for, which means tracing the program twice more
with symbolic sizes: two thirds of the time an export took. `capture` leaves nothing to take apart, so that step is
left out where torch can do without; where it cannot (a network with an operation it has no translation for), it is
done after all. torch's own optimiser, which compares every node with every rule, is left out for the same reason:
runtimes have better ones, and folding constants is what makes the file small.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from crispseg.errors import UserError
from crispseg.models.onnx_card import INPUT, OUTPUTS

if TYPE_CHECKING:
    import onnx
    import onnx_ir

OPSET = 18  # the newest that onnxruntime, OpenVINO and TensorRT's parser have all had for years
_FOLDED = 1 << 28  # elements of the largest constant that is computed now
_AXES = ("batch", "height", "width")


def require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {' and '.join(missing)}: pip install 'crispseg[export]'")


def to_onnx(program: torch.export.ExportedProgram, output: str, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """The ONNX model of a program of one input and one output; `output` is the kind of the latter."""
    import onnx_ir

    model = _translated(program)
    with _quietly():
        _shrink(model)
    _name(model, OUTPUTS[output])
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    model.producer_name, model.producer_version, model.doc_string = "crispseg", "", None
    return onnx_ir.to_proto(model)


def _translated(program: torch.export.ExportedProgram) -> onnx_ir.Model:
    if _functional(program):
        decompose = program.run_decompositions
        program.run_decompositions = lambda table=None, **_: program
        try:
            return _translate(program)
        except torch.onnx.OnnxExporterError:
            program.run_decompositions = decompose
    return _translate(program)


def _translate(program: torch.export.ExportedProgram) -> onnx_ir.Model:
    with _quietly():
        made = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, optimize=False, verbose=False, input_names=[INPUT]
        )
    assert made is not None
    return made.model


def _functional(program: torch.export.ExportedProgram) -> bool:
    """Whether nothing works in place and no part is wrapped: then the program can be translated as it is."""
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return False
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable:
            return False
    return True


def _shrink(model: onnx_ir.Model) -> None:
    from onnx_ir.passes import common
    from onnxscript import optimizer

    common.ShapeInferencePass()(model)
    _settle_casts(model)
    optimizer.fold_constants(model, input_size_limit=_FOLDED, output_size_limit=_FOLDED)
    for tidy in (
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.ClearMetadataAndDocStringPass(),  # they hold the paths of source files
        common.RemoveUnusedOpsetsPass(),
    ):
        tidy(model)


def _settle_casts(model: onnx_ir.Model) -> None:
    """CastLike, which TensorRT's parser lacks, as Cast: the type is known by now."""
    import onnx_ir

    for node in model.graph:
        like = node.inputs[1] if node.op_type == "CastLike" else None
        if like is None or like.dtype is None:
            continue
        cast = onnx_ir.node("Cast", [node.inputs[0]], {"to": int(like.dtype)})
        cast.outputs[0].dtype, cast.outputs[0].shape = like.dtype, node.outputs[0].shape
        model.graph.insert_before(node, cast)
        onnx_ir.convenience.replace_all_uses_with(node.outputs[0], cast.outputs[0])
        model.graph.remove(node, safe=True)


def _name(model: onnx_ir.Model, output: str) -> None:
    """Names for the ends and their axes; sizes in between were torch's symbols, which runtimes infer anew."""
    import onnx_ir

    image, result = model.graph.inputs[0], model.graph.outputs[0]
    image.name, result.name = INPUT, output
    for node in model.graph:
        for value in node.outputs:
            if value is not result:
                value.shape = None
    for value, axes in ((image, (0, 2, 3)), (result, (0, -2, -1))):
        assert value.shape is not None
        shape: list[Any] = list(value.shape)
        for axis, name in zip(axes, _AXES, strict=True):
            if not isinstance(shape[axis], int):
                shape[axis] = name
        value.shape = onnx_ir.Shape(shape)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """torch.onnx prints and warns about itself; what matters it raises."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
