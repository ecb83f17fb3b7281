"""Times whole networks: every model at every size, batch, precision and mode."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from crispseg import config as configs
from crispseg import exact, ops
from crispseg.bench import specs
from crispseg.bench.check import NETWORK_BOUNDS, OPERATOR_BOUNDS
from crispseg.bench.contest import Entry, Say, contest, what_happened
from crispseg.bench.environment import describe, switches
from crispseg.bench.inputs import random_images
from crispseg.bench.modes import Function, Make, Tensors, compiled
from crispseg.bench.operator import operator_error
from crispseg.bench.result import Cell, ModelCell, Result, Skipped
from crispseg.bench.settings import DTYPES, Settings
from crispseg.errors import UserError, unknown
from crispseg.models.base import SegmentationModel
from crispseg.models.onnx_file import OnnxModel
from crispseg.models.summary import summarize
from crispseg.models.vssd import NCSSDMixer

Keep = Callable[[Result], None]  # called with what there is whenever more is known
Group = Sequence[tuple[int, int]]  # sizes and batches that are timed together

# A truth is computed for so many pixels at a time, so that it needs less memory than what is timed; of an image that is
# larger than can be computed at once in float32, in bands.
_TRUTH_PIXELS = 2**20
_LARGEST_AT_ONCE, _STREAM_BYTES = 2**26, 2**36


def bench_models(words: Iterable[str], settings: Settings, say: Say = print, keep: Keep | None = None) -> Result:
    """Models by name, `name:key=value`, pattern or folder. Cells of one size, batch and precision are timed in turn."""
    groups = [[(size, batch)] for size in settings.sizes for batch in settings.batches]
    return run_groups("models", words, groups, settings, say, keep or _drop)


def run_groups(
    kind: Literal["models", "scaling"],
    words: Iterable[str],
    groups: Sequence[Group],
    settings: Settings,
    say: Say,
    keep: Keep,
) -> Result:
    asked = specs.parse(words)
    _check_skipped(asked, settings)
    with switches(settings):
        models, skipped = _build_all(asked, settings)
        checks = {precision: operator_error(precision, settings) for precision in settings.precisions}
        result = Result(
            kind, describe(settings), configs.to_dict(settings), skipped=tuple(skipped), operator_check=checks
        )
        for group in groups:
            for precision in settings.precisions:
                entries = _entries(models, group, precision, checks[precision], settings)
                cells = [_with_throughput(_seen(cell, models)) for cell in contest(entries, settings, say)]
                result = dataclasses.replace(result, cells=(*result.cells, *cells))
                keep(result)
    return result


def _check_skipped(asked: Sequence[specs.Spec], settings: Settings) -> None:
    labels = [spec.label for spec in asked]
    for word in settings.skip:
        if word.rpartition("@")[0] not in labels:
            raise unknown("model to skip", word.rpartition("@")[0], labels)
    if all(f"{label}@{mode}" in settings.skip for label in labels for mode in settings.modes):
        raise UserError("--skip leaves nothing to be timed")


def _build_all(asked: Sequence[specs.Spec], settings: Settings) -> tuple[dict[str, SegmentationModel], list[Skipped]]:
    models: dict[str, SegmentationModel] = {}
    skipped = []
    for spec in asked:
        if missing := specs.skipped(spec):
            skipped.append(missing)
            continue
        try:
            models[spec.label] = specs.build(spec, settings)
        except UserError:
            raise
        except Exception as problem:  # a model that cannot be built here does not stop the others
            skipped.append(Skipped(spec.label, what_happened(problem)["reason"]))
    return models, skipped


def _entries(
    models: dict[str, SegmentationModel], group: Group, precision: str, operator: float | None, settings: Settings
) -> Iterator[Entry]:
    for size, batch in group:
        for label, model in models.items():
            if isinstance(model, OnnxModel) and precision != "fp32":
                continue  # a file has the precision it was exported in, and is timed once
            yield from _model_entries(label, model, size, batch, precision, operator, settings)


def _model_entries(
    label: str,
    model: SegmentationModel,
    size: int,
    batch: int,
    precision: str,
    operator: float | None,
    settings: Settings,
) -> Iterator[Entry]:
    """One model's entries, one per mode. They share inputs and truths, which go when the next model comes."""

    @functools.cache
    def images() -> list[Tensor]:
        return [random_images(batch, model.in_channels, size, settings, seed) for seed in range(settings.inputs)]

    cast = functools.cache(lambda: specs.in_precision(model, precision, settings))
    entry = Entry(
        cell=ModelCell(
            model=label,
            size=size,
            batch=batch,
            precision=precision,
            mode="",
            device=settings.device,
            check_bound=NETWORK_BOUNDS[precision],
        ),
        make=_maker(cast, precision, settings),
        inputs=functools.cache(lambda: [(_as_input(x, precision, settings),) for x in images()]),
        truths=functools.cache(lambda: [_truth(model, x) for x in images()]),
        facts=functools.cache(lambda: _facts(model, size, 1 if settings.on_cuda else batch)),
        refused=_refusal(model, precision, operator),
    )
    for mode in ("eager",) if isinstance(model, OnnxModel) else settings.modes:
        if f"{label}@{mode}" in settings.skip:
            continue
        make = _fused_maker(model, precision) if mode == "fused" else entry.make
        yield dataclasses.replace(entry, make=make, cell=dataclasses.replace(entry.cell, mode=mode))


def _facts(model: SegmentationModel, size: int, batch: int) -> dict[str, Any]:
    """What is counted rather than measured, of one image."""
    if isinstance(model, OnnxModel):
        return {"parameters": model.parameter_count}
    summary = summarize(model, size, size, batch)
    return {"macs": summary.macs // batch, "parameters": summary.parameters}


def _truth(model: SegmentationModel, images: Tensor) -> Tensors:
    """The model's own float32 eager output, without any kernel of ours."""
    pixels = images.shape[-1] * images.shape[-2]
    images_at_once = max(1, _TRUTH_PIXELS // pixels)
    with ops.only("torch"):
        if pixels > _LARGEST_AT_ONCE:
            return (torch.stack([exact.logits(model, image, memory_limit=_STREAM_BYTES) for image in images]),)
        return (torch.cat([model(part) for part in images.split(images_at_once)]),)


def _as_input(images: Tensor, precision: str, settings: Settings) -> Tensor:
    return images.to(DTYPES[precision]) if settings.half == "weights" else images


def _maker(cast: Callable[[], SegmentationModel], precision: str, settings: Settings) -> Make:
    device = torch.device(settings.device).type
    autocast = settings.half == "autocast" and precision != "fp32"

    def make(compile_it: bool) -> Function:
        model: Callable[[Tensor], Tensor] = compiled(cast()) if compile_it else cast()

        def run(images: Tensor) -> Tensors:
            # a graph would record the cached casts of an earlier run instead of making its own
            with torch.autocast(device, DTYPES[precision], enabled=autocast, cache_enabled=False):
                return (model(images),)

        return run if autocast else lambda images: (model(images),)

    return make


def _fused_maker(model: SegmentationModel, precision: str) -> Make:
    """Casts its weights itself; the graph is recorded by the same code as the other modes'."""

    def make(compile_it: bool) -> Function:
        network = model.fused(DTYPES[precision], graphs=False)
        return lambda images: (network(images),)

    return make


def _refusal(model: SegmentationModel, precision: str, operator: float | None) -> str:
    """Why no number may be given: a model built on the operator needs the operator to be right."""
    uses_it = any(isinstance(module, NCSSDMixer) for module in model.modules())
    if not uses_it or (operator is not None and operator <= OPERATOR_BOUNDS[precision]):
        return ""
    amount = "values that are not finite" if operator is None else f"a relative error of {operator:.1e}"
    return f"the operator has {amount} against its float64 reference, allowed {OPERATOR_BOUNDS[precision]:.0e}"


def _with_throughput(cell: Cell) -> Cell:
    if not isinstance(cell, ModelCell) or cell.latency_ms is None:
        return cell
    return dataclasses.replace(cell, throughput=cell.batch / cell.latency_ms.median * 1e3)


def _seen(cell: Cell, models: dict[str, SegmentationModel]) -> Cell:
    """Without the memory of an exported file: torch does not see what onnxruntime takes."""
    if isinstance(cell, ModelCell) and isinstance(models[cell.model], OnnxModel):
        return dataclasses.replace(cell, peak_bytes=None, peak_source="")
    return cell


def _drop(result: Any) -> None:
    pass
