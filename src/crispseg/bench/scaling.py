"""Time and memory per pixel as images grow. Batches shrink so that the number of pixels stays the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from crispseg.bench.contest import Say
from crispseg.bench.models import Keep, run_groups
from crispseg.bench.result import Cell, ModelCell, PerPixel, Result, of_type
from crispseg.bench.settings import Settings
from crispseg.errors import UserError

BASE_SIZE = 512
LINEAR = 1.15  # the largest ratio to the figure at BASE_SIZE that still counts as linear


def bench_scaling(
    words: Iterable[str], settings: Settings, pixels: int | None = None, say: Say = print, keep: Keep | None = None
) -> Result:
    """All sizes are timed in turn. pixels: of all images of a batch together; the largest size's unless told."""
    words = list(words)
    if not words:
        raise UserError("which model? crisp bench scaling MODEL")
    if pixels is not None and pixels < 1:
        raise UserError(f"--pixels must be at least 1, not {pixels}")
    group = equal_pixels(settings.sizes, pixels or max(settings.sizes) ** 2)

    def keep_with_ratios(result: Result) -> None:
        if keep is not None:
            keep(_with_ratios(result))

    return _with_ratios(run_groups("scaling", words, [group], settings, say, keep_with_ratios))


def equal_pixels(sizes: Sequence[int], pixels: int) -> list[tuple[int, int]]:
    """(size, batch) so that batch x size² is `pixels`, as nearly as whole images allow."""
    return [(size, max(1, round(pixels / size**2))) for size in sorted(set(sizes))]


def per_pixel(cells: Iterable[Cell]) -> list[PerPixel]:
    """A row for each timed cell, compared with the same model's at BASE_SIZE, or at the smallest size."""
    timed = [cell for cell in of_type(tuple(cells), ModelCell) if cell.latency_ms is not None]
    rows = []
    for cell in timed:
        series = [x for x in timed if (x.model, x.precision, x.mode) == (cell.model, cell.precision, cell.mode)]
        base = min(series, key=lambda x: (x.size != BASE_SIZE, x.size))
        time, memory = _nanoseconds(cell), _bytes(cell)
        base_memory = _bytes(base)
        time_ratio = time / _nanoseconds(base)
        memory_ratio = memory / base_memory if memory is not None and base_memory else None
        linear = time_ratio <= LINEAR and (memory_ratio is None or memory_ratio <= LINEAR)
        rows.append(
            PerPixel(
                cell.model,
                cell.precision,
                cell.mode,
                cell.size,
                cell.batch,
                base.size,
                time,
                memory,
                time_ratio,
                memory_ratio,
                linear,
            )
        )
    return rows


def verdict(rows: Sequence[PerPixel]) -> list[str]:
    """A sentence per model, precision and mode, on the sizes above the base."""
    sentences = []
    for key in dict.fromkeys((row.model, row.precision, row.mode) for row in rows):
        larger = [row for row in rows if (row.model, row.precision, row.mode) == key and row.size > row.base_size]
        if not larger:
            continue
        last = max(larger, key=lambda row: row.size)
        linear = all(row.linear for row in larger)
        memory = f", {last.memory_ratio:.2f} x the memory" if last.memory_ratio is not None else ""
        sentences.append(
            f"{' '.join(key)}: {'linear' if linear else 'not linear'}; per pixel {last.time_ratio:.2f} x the time"
            f"{memory} at {last.size} px as at {last.base_size} px (linear up to {LINEAR} x)"
        )
    return sentences


def _with_ratios(result: Result) -> Result:
    return dataclasses.replace(result, per_pixel=tuple(per_pixel(result.cells)))


def _pixels(cell: ModelCell) -> int:
    return cell.batch * cell.size**2


def _nanoseconds(cell: ModelCell) -> float:
    assert cell.latency_ms is not None
    return cell.latency_ms.median * 1e6 / _pixels(cell)


def _bytes(cell: ModelCell) -> float | None:
    return None if cell.peak_bytes is None else cell.peak_bytes / _pixels(cell)
