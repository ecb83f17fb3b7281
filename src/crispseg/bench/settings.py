"""What is measured and how, the same for everything in a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from crispseg.errors import UserError, unknown

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUTS = ("channels_last", "contiguous")
HALVES = ("weights", "autocast")


@dataclasses.dataclass(frozen=True)
class Settings:
    """`choose` makes them, with defaults that suit the device."""

    device: str
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    precisions: tuple[str, ...]
    modes: tuple[str, ...]
    repeats: int  # timed runs of each cell
    warmup: int  # runs before them, after those of the check
    threads: int  # of the CPU
    inputs: int = 3  # different random inputs that take turns
    layout: str = "channels_last"  # of weights and images
    half: str = "weights"  # bf16 and fp16: "weights" casts the model, "autocast" leaves it in float32
    num_classes: int = 6
    in_channels: int = 3
    skip: tuple[str, ...] = ()  # "model@mode", left out

    @property
    def on_cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.layout == "channels_last" else torch.contiguous_format


def choose(device: str | None = None, **given: Any) -> Settings:
    """Settings from what is given (None means not given) and defaults; a UserError for what this machine cannot do."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(device)
    cuda = torch.device(device).type == "cuda"
    defaults: dict[str, Any] = {
        "sizes": (512,),
        "batches": (1, 16) if cuda else (1,),
        "precisions": ("fp32", "bf16") if cuda else ("fp32",),
        "modes": ("eager", "graph", "compiled", "fused") if cuda else ("eager", "compiled", "fused"),
        "repeats": 30 if cuda else 10,
        "warmup": 10 if cuda else 1,
        "threads": torch.get_num_threads(),
    }
    chosen = {name: _frozen(value) for name, value in given.items() if value is not None}
    settings = Settings(device=device, **(defaults | chosen))
    _check_names(settings)
    _check_numbers(settings)
    return settings


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_names(settings: Settings) -> None:
    from crispseg.bench.modes import MODES

    for what, given, known in (
        ("precision", settings.precisions, DTYPES),
        ("mode", settings.modes, MODES),
        ("mode", [word.rpartition("@")[2] for word in settings.skip], MODES),
        ("layout", (settings.layout,), LAYOUTS),
        ("way to run in half precision", (settings.half,), HALVES),
    ):
        for name in given:
            if name not in known:
                raise unknown(what, name, known)
    if "graph" in settings.modes and not settings.on_cuda:
        raise UserError(
            "mode 'graph' records CUDA graphs, which the CPU does not have; use --modes eager compiled fused"
        )


def _check_numbers(settings: Settings) -> None:
    at_least_one = {
        "sizes": settings.sizes,
        "batch": settings.batches,
        "repeats": (settings.repeats,),
        "threads": (settings.threads,),
        "classes": (settings.num_classes,),
        "bands": (settings.in_channels,),
    }
    for name, values in at_least_one.items():
        if min(values) < 1:
            raise UserError(f"--{name} must be at least 1, not {min(values)}")
    if settings.warmup < 0:
        raise UserError(f"--warmup cannot be negative, and is {settings.warmup}")


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device on this machine; `crisp doctor` says more, --device cpu works")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {name!r}: this machine has {torch.cuda.device_count()}, from cuda:0 on")
