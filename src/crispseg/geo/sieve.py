"""Merges regions smaller than a minimum area into the neighbour they share the longest border with.

Two passes over the map. The first numbers the pieces of all bands and notes which touch; the second gives out the new
classes. Memory grows with the number of regions, not with the number of pixels.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from crispseg.geo.grid import Grid
from crispseg.geo.regions import NODATA, MapRows, label_regions

Borders = NDArray[np.int64]  # (n, 3): a piece, another, and how many pixel sides they share


def sieved(bands: Callable[[], Iterable[MapRows]], grid: Grid, min_area: float) -> Iterator[MapRows]:
    """The map's rows again, with small regions merged; one that touches no other becomes no data."""
    new_class = _new_classes(bands(), grid, min_area)
    first = 0
    for rows in bands():
        labels, class_of = label_regions(rows.classes)
        yield rows._replace(classes=new_class[first : first + len(class_of)][labels])
        first += len(class_of)


def _new_classes(bands: Iterable[MapRows], grid: Grid, min_area: float) -> NDArray[np.uint8]:
    """The class every piece shall have; pieces are numbered through all bands, from top to bottom."""
    classes, areas, borders, same = [np.zeros(0, np.uint8)], [np.zeros(0)], [_NO_BORDERS], [_NO_BORDERS]
    above: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None
    count = 0
    for rows in bands:
        labels, class_of = label_regions(rows.classes)
        pieces = labels.astype(np.int64) + count
        count += len(class_of)
        classes.append(class_of)
        areas.append(grid.sum_areas(labels, len(class_of), rows.top))
        if not len(pieces):
            continue
        borders += [_borders(pieces[:, :-1], pieces[:, 1:]), _borders(pieces[:-1], pieces[1:])]
        if above is not None:
            one_region = above[0] == rows.classes[0]
            same.append(_borders(above[1][one_region], pieces[0][one_region]))
            borders.append(_borders(above[1][~one_region], pieces[0][~one_region]))
        above = rows.classes[-1], pieces[-1]
    return _merge(
        np.concatenate(classes), np.concatenate(areas), np.concatenate(borders), np.concatenate(same), min_area
    )


_NO_BORDERS = np.zeros((0, 3), np.int64)


def _borders(one: NDArray[np.int64], other: NDArray[np.int64]) -> Borders:
    differ = one != other
    pairs, sides = np.unique(np.stack([one[differ], other[differ]], axis=1), axis=0, return_counts=True)
    return np.column_stack([pairs, sides])


def _merge(
    classes: NDArray[np.uint8], areas: NDArray[np.float64], borders: Borders, same: Borders, min_area: float
) -> NDArray[np.uint8]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(same)), (same[:, 0], same[:, 1])), shape=(len(classes), len(classes)))
    count, region_of = connected_components(links, directed=False)
    class_of = np.zeros(count, np.uint8)
    class_of[region_of] = classes
    area_of = np.bincount(region_of, areas, count).astype(np.float64)
    with_data = (classes[borders[:, 0]] != NODATA) & (classes[borders[:, 1]] != NODATA)
    borders = borders[with_data]
    borders[:, :2] = region_of[borders[:, :2]]
    owner = _owners(area_of, class_of != NODATA, borders, min_area)
    merged = np.where(owner < 0, NODATA, class_of[owner]).astype(np.uint8)
    return merged[region_of]


def _owners(
    area_of: NDArray[np.float64], with_data: NDArray[np.bool_], borders: Borders, min_area: float
) -> NDArray[np.int64]:
    """The region each region becomes part of, smallest first; -1 where a small region stands alone."""
    small = with_data & (area_of < min_area)
    neighbours: dict[int, collections.Counter[int]] = {k: collections.Counter() for k in np.flatnonzero(small).tolist()}
    for one, other, sides in borders[small[borders[:, :2]].any(axis=1)].tolist():
        if one in neighbours:
            neighbours[one][other] += sides
        if other in neighbours:
            neighbours[other][one] += sides
    area = dict(enumerate(area_of.tolist()))
    owner = list(range(len(area_of)))

    def root(k: int) -> int:
        while k >= 0 and owner[k] != k:
            k = owner[k]
        return k

    queue = [(area[k], k) for k in neighbours]
    heapq.heapify(queue)
    while queue:
        size, k = heapq.heappop(queue)
        if owner[k] != k or size != area[k]:
            continue  # merged, or grown since it was queued
        border: collections.Counter[int] = collections.Counter()
        for neighbour, shared in neighbours[k].items():
            border[root(neighbour)] += shared
        border.pop(k, None)
        if not border:
            owner[k] = -1
            continue
        target = max((sides, area[t], -t) for t, sides in border.items())[2] * -1
        owner[k] = target
        area[target] += size
        if target in neighbours:
            neighbours[target].update(neighbours.pop(k))
            if area[target] < min_area:
                heapq.heappush(queue, (area[target], target))
    return np.array([root(k) for k in range(len(owner))], np.int64)
