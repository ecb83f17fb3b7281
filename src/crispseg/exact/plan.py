"""What a run will do before it does it: its passes, the height of their bands, and where each map is kept."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.exact.parts import Kept, Pass, StreamedModel
from crispseg.exact.resize import Size

MEMORY_LIMIT = 2 * 2**30
_BAND_SHARE, _MAP_SHARE = 3 / 8, 3 / 8  # of the memory limit; the rest is left to the allocator and the caller
_CPU_BAND = 128 * 2**20  # larger bands fall out of a processor's cache and are slower
_EDGE_ROWS = 2  # rows that convolutions hold beside a band
_FEW_ROWS = 4  # bands lower than this repeat too much at their edges


@dataclasses.dataclass(frozen=True)
class MapPlan:
    name: str
    height: int
    width: int
    channels: int
    on_disk: bool


@dataclasses.dataclass(frozen=True)
class StreamPlan:
    height: int
    width: int
    sizes: tuple[Size, ...]  # of the four stages' maps
    passes: dict[str, Pass]
    bands: dict[str, int]  # rows of a pass's map that are worked on at a time
    maps: dict[str, MapPlan]
    band_bytes: int  # the most that one band of any pass works with
    map_bytes: int  # the most that maps occupy in memory at one time
    disk_bytes: int  # and on disk
    traffic_bytes: int  # read from and written to disk in the whole run

    @property
    def macs(self) -> float:
        return sum(p.total_macs for p in self.passes.values())


def make_plan(
    parts: StreamedModel,
    like: Tensor,
    height: int,
    width: int,
    *,
    band: int | None,
    memory_limit: int,
    kept: torch.dtype,
) -> StreamPlan:
    """Plan a run on the device and in the precision of `like`, whose maps are kept as `kept`; `band` forces the height
    of every band."""
    if height < 1 or width < 1:
        raise UserError(f"the scene has no pixels: {height} rows and {width} columns")
    if band is not None and band < 1:
        raise UserError(f"a band needs at least one row, not {band}")
    sizes = tuple((-(-height // stride), -(-width // stride)) for stride in (4, 8, 16, 32))
    passes = {p.name: p for p in parts.passes(sizes)}
    row_bytes = {name: p.floats * p.size[1] * like.dtype.itemsize for name, p in passes.items()}
    on_cpu = like.device.type == "cpu"
    rows = {
        name: max(1, min(p.size[0], band or _band_rows(row_bytes[name], memory_limit, on_cpu)))
        for name, p in passes.items()
    }
    layout = _Layout(kept.itemsize, int(_MAP_SHARE * memory_limit))
    for one in parts.maps(sizes):
        layout.make(one)
    return StreamPlan(
        height=height,
        width=width,
        sizes=sizes,
        passes=passes,
        bands=rows,
        maps=layout.maps,
        band_bytes=int(max(row_bytes[name] * (rows[name] + _EDGE_ROWS) for name in passes)),
        map_bytes=layout.most[False],
        disk_bytes=layout.most[True],
        traffic_bytes=layout.traffic,
    )


def _band_rows(row_bytes: float, memory_limit: int, on_cpu: bool) -> int:
    most, preferred = (int(room / row_bytes) - _EDGE_ROWS for room in (_BAND_SHARE * memory_limit, _CPU_BAND))
    return min(most, max(_FEW_ROWS, preferred)) if on_cpu else most


class _Layout:
    """Decides for each map, in the order they are made and dropped, whether memory still has room for it."""

    def __init__(self, itemsize: int, limit: int) -> None:
        self.itemsize, self.limit = itemsize, limit
        self.maps: dict[str, MapPlan] = {}
        self.used = {False: 0, True: 0}  # bytes, by on_disk
        self.most = {False: 0, True: 0}
        self.traffic = 0

    def make(self, one: Kept) -> None:
        need = one.size[0] * one.size[1] * one.channels * self.itemsize
        on_disk = self.used[False] + need > self.limit
        self.maps[one.name] = MapPlan(one.name, *one.size, one.channels, on_disk)
        self.traffic += one.sweeps * need if on_disk else 0
        self.most[on_disk] = max(self.most[on_disk], self.used[on_disk] + need)
        if not one.brief:
            self.used[on_disk] += need
