"""DCO's gates and selective fusion's temperatures: what each block learned, and the same model with the gates off."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from crispseg.evaluate.spectrum import backbone_blocks
from crispseg.models.base import SegmentationModel
from crispseg.models.vssd import VSSD, NCSSDMixer

GATES = ("residual", "omega", "s", "t")  # as they act: 1e-4 + lambda, and tanh of the other three


def calibrated_mixers(model: SegmentationModel) -> dict[str, NCSSDMixer]:
    """The mixers that have a DCO, by their block's name."""
    mixers = {name: block.attn for name, block in backbone_blocks(model).items()}
    return {name: each for name, each in mixers.items() if isinstance(each, NCSSDMixer) and each.dco is not None}


@contextlib.contextmanager
def gates_off(model: SegmentationModel) -> Iterator[None]:
    """Inside the block every mixer of `model` runs with empty `Gates()`; nothing else about it changes."""
    mixers = calibrated_mixers(model)
    operators: dict[str, nn.Module | None] = {name: mixer.dco for name, mixer in mixers.items()}
    try:
        for mixer in mixers.values():
            mixer.dco = None
        yield
    finally:
        for name, mixer in mixers.items():
            mixer.dco = operators[name]  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Spread:
    mean: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class BlockGates:
    """The gates of one block over its heads (residual, omega) or channels of a head (s, t); None: that step is off."""

    block: str
    gates: dict[str, Spread | None]
    gain: Spread
    """(1 + t)(1 + omega) / (1 + s) over heads and channels: how much what varies is raised over the mean."""
    travelled: float
    """Mean distance of the block's gate parameters from where they started."""
    distances: dict[str, float | None]
    """The same of each gate's parameters alone."""


@dataclasses.dataclass(frozen=True)
class BlockTemperatures:
    """The temperatures of one block's keys and queries, over the numbers of a token; uniform attention has 0."""

    block: str
    start: float
    keys: Spread
    queries: Spread


@torch.no_grad()
def learned_gates(model: SegmentationModel) -> tuple[BlockGates, ...]:
    """The gates of every block that has a DCO, in the order of the network."""
    found = []
    for name, mixer in calibrated_mixers(model).items():
        gates = mixer.gates()
        omega, s, t = (torch.zeros(1) if x is None else x.cpu().double() for x in (gates.omega, gates.s, gates.t))
        gain = (1 + t)[None, :] * (1 + omega)[:, None] / (1 + s)[None, :]  # (H, P)
        spreads = {key: _spread(getattr(gates, key)) for key in GATES}
        found.append(BlockGates(name, spreads, _of(gain), *_travelled(mixer)))
    return tuple(found)


@torch.no_grad()
def learned_temperatures(model: SegmentationModel) -> tuple[BlockTemperatures, ...]:
    """Of every block with selective fusion, in the order of the network."""
    found: list[BlockTemperatures] = []
    backbone = getattr(model, "backbone", None)
    if not isinstance(backbone, VSSD):
        return ()
    for name, block in backbone_blocks(model).items():
        selection = block.attn.selection if isinstance(block.attn, NCSSDMixer) else None
        if selection is not None:
            spreads = (_of(selection.keys.weight), _of(selection.queries.weight))
            found.append(BlockTemperatures(name, backbone.config.selectivity, *spreads))
    return tuple(found)


def _travelled(mixer: NCSSDMixer) -> tuple[float, dict[str, float | None]]:
    """Of all the gates' parameters together, and of each gate's."""
    dco = mixer.dco
    assert dco is not None
    parameters = dict(zip(GATES, (dco.lambda_, dco.omega, dco.s, dco.t), strict=True))
    distances = {k: (x.double() - dco.config.init).abs().flatten() for k, x in parameters.items() if x is not None}
    means = {key: float(distances[key].mean()) if key in distances else None for key in GATES}
    return float(torch.cat(list(distances.values())).mean()), means


def _spread(values: Tensor | None) -> Spread | None:
    return None if values is None else _of(values)


def _of(values: Tensor) -> Spread:
    values = values.double()
    return Spread(float(values.mean()), float(values.min()), float(values.max()))
