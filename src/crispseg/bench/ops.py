"""Times the operator alone, with the shapes it has in a CRISP-tiny, and says what bandwidth that amounts to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from crispseg import config as configs
from crispseg.bench.check import OPERATOR_BOUNDS
from crispseg.bench.contest import Entry, Say, contest
from crispseg.bench.environment import describe, switches
from crispseg.bench.modes import Tensors
from crispseg.bench.operator import DIRECTIONS, Shape, error, function, least_bytes, random_inputs, shape_at, truth
from crispseg.bench.result import Cell, OperatorCell, Result
from crispseg.bench.settings import Settings
from crispseg.errors import UserError, unknown
from crispseg.ops import BACKENDS


def bench_ops(
    settings: Settings,
    backends: Sequence[str] | None = None,
    stages: Sequence[int] = (1,),
    say: Say = print,
    keep: Callable[[Result], None] | None = None,
) -> Result:
    """Every backend at every size, batch, precision and mode: forward alone, and forward with backward."""
    for name in backends or ():
        if name not in BACKENDS:
            raise unknown("operator backend", name, BACKENDS)
    if not set(stages) <= {1, 2, 3, 4}:
        raise UserError(f"stages are numbered 1 to 4, not {', '.join(map(str, stages))}")
    result = Result("ops", describe(settings), configs.to_dict(settings))
    places = [(stage, size, batch) for stage in stages for size in settings.sizes for batch in settings.batches]
    with switches(settings):
        for stage, size, batch in places:
            for precision in settings.precisions:
                entries = _entries(backends or _usable(settings), stage, size, batch, precision, settings)
                cells = contest(entries, settings, say)
                result = dataclasses.replace(result, cells=(*result.cells, *map(_with_bandwidth, cells)))
                if keep is not None:
                    keep(result)
    return result


def _usable(settings: Settings) -> list[str]:
    return [name for name in BACKENDS if name != "triton" or settings.on_cuda]


def _entries(
    backends: Sequence[str], stage: int, size: int, batch: int, precision: str, settings: Settings
) -> Iterator[Entry]:
    shape = shape_at(stage, size, batch)
    for direction in DIRECTIONS:
        inputs = functools.cache(functools.partial(_inputs, shape, precision, direction, settings))
        truths = functools.cache(functools.partial(_truths, shape, direction, inputs))
        for backend in backends:
            for mode in (mode for mode in settings.modes if mode != "fused"):  # which is for whole networks
                cell = OperatorCell(
                    backend=backend,
                    direction=direction,
                    stage=stage,
                    tokens=shape.tokens,
                    bytes=least_bytes(shape, precision, direction),
                    size=size,
                    batch=batch,
                    precision=precision,
                    mode=mode,
                    device=settings.device,
                    check_bound=OPERATOR_BOUNDS[precision],
                )
                make = functools.partial(function, backend, shape, direction)
                yield Entry(cell, make, inputs, truths, error=functools.partial(error, precision))


def _inputs(shape: Shape, precision: str, direction: str, settings: Settings) -> list[Tensors]:
    return [random_inputs(shape, precision, direction, settings, seed) for seed in range(settings.inputs)]


def _truths(shape: Shape, direction: str, inputs: Callable[[], list[Tensors]]) -> list[Tensors]:
    return [truth(shape, direction, given) for given in inputs()]


def _with_bandwidth(cell: Cell) -> Cell:
    if not isinstance(cell, OperatorCell) or cell.latency_ms is None:
        return cell
    return dataclasses.replace(cell, gigabytes_per_second=cell.bytes / cell.latency_ms.median / 1e6)
