"""A module as torch.export sees it, with as few operations as will do.

Every operation costs milliseconds while sizes are symbols, and each is met several times on the way to a file. So what
does nothing in an exported program is kept out of it: casts to the type a tensor has, layouts, dropout. What works in
place is written as its functional twin, so that nothing has to be made functional afterwards.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Handler = Callable[..., Any]
_EXAMPLE = (2, 96, 160)  # batch, height, width: different, and none is one, so that torch takes none for a constant


class Size(tuple[int | None, int | None, int | None]):
    """Batch, height and width of an exported program's input; None where any will do."""

    @property
    def dynamic(self) -> dict[int, Any]:
        axes = zip((0, 2, 3), self, strict=True)
        return {axis: torch.export.Dim.DYNAMIC for axis, length in axes if length is None}

    def example(self, bands: int) -> Tensor:
        batch, height, width = (e if given is None else given for e, given in zip(_EXAMPLE, self, strict=True))
        return torch.zeros(batch, bands, height, width)


def capture(module: nn.Module, bands: int, size: Size) -> torch.export.ExportedProgram:
    """The program of `module`, a function of one image (N, bands, H, W)."""
    from torch._dynamo import config

    # torch remembers what each operation does to shapes; with symbols in them, looking that up takes longer than anew
    with torch.no_grad(), _untraced(), config.patch(fake_tensor_cache_enabled=False):
        return torch.export.export(_Plain(module), (size.example(bands),), dynamic_shapes=(size.dynamic,), strict=False)


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Without torch's structured trace: whoever listens to all logs would have a stack written for every guard."""
    logger = logging.getLogger("torch.__trace")
    handlers, logger.handlers = logger.handlers, []
    try:
        yield
    finally:
        logger.handlers = handlers


class _Plain(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: Tensor) -> Tensor:
        with _Plainly():
            return self.module(image)


class _Plainly(TorchFunctionMode):
    """Rewrites calls as they are made. What it does not know passes through."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _REWRITTEN:
            result = _REWRITTEN[name](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if name in _IN_PLACE:
            return getattr(torch.Tensor, _IN_PLACE[name])(*args, **kwargs)
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
        return func(*args, **kwargs)


def _to(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    dtype = next((word for word in (*args, *kwargs.values()) if isinstance(word, torch.dtype)), None)
    return _cast(x, x.dtype if dtype is None else dtype)  # there is one device, and layouts are not exported


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else torch.ops.aten._to_copy.default(x, dtype=dtype)


def _subtracted_from(x: Tensor, other: Any) -> Any:
    return torch.neg(x) + other


def _remainder(x: Any, other: Any) -> Any:
    """By a size that is a symbol: torch.onnx has no word for that unless it is a tensor."""
    if not isinstance(other, torch.SymInt) or not isinstance(x, Tensor):
        return NotImplemented
    return torch.remainder(x, torch.full((1,), other, dtype=x.dtype))  # type: ignore[call-overload]


def _normalised(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """A BatchNorm that could not be folded into a convolution."""
    if training or mean is None or variance is None:
        return NotImplemented
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    shift = torch.neg(mean) * scale
    shift = shift if bias is None else shift + bias
    ones = (1,) * (x.dim() - 2)
    return x * scale.reshape(-1, *ones) + shift.reshape(-1, *ones)


def _kept(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return NotImplemented if training else x


def _averaged(x: Tensor, size: Any) -> Any:
    """Adaptive pooling. Where the image's size is a symbol, torch would write down the cells of the one it was captured
    with; as products with matrices that follow from the size they are right for any."""
    height, width = x.shape[-2:]
    rows, columns = size if isinstance(size, Sequence) else (size, size)
    rows, columns = height if rows is None else rows, width if columns is None else columns
    if (rows, columns) == (1, 1):
        return x.mean((-2, -1), keepdim=True)
    if not isinstance(height, torch.SymInt) and not isinstance(width, torch.SymInt):
        return NotImplemented
    return _cells(rows, height, x) @ x @ _cells(columns, width, x).transpose(0, 1)


def _cells(count: Any, length: Any, like: Tensor) -> Tensor:
    """(count, length): the mean of each cell as a row. Cell i reaches from floor(i L / n) to ceil((i + 1) L / n)."""
    cell, place = torch.arange(count)[:, None], torch.arange(length)
    inside = torch.logical_and(cell * length < (place + 1) * count, place * count < (cell + 1) * length)
    weights = torch.ops.aten._to_copy.default(inside, dtype=like.dtype)
    return weights / weights.sum(1, keepdim=True)


_REWRITTEN: dict[str, Handler] = {
    "to": _to,
    "float": lambda x: _cast(x, torch.float32),
    "half": lambda x: _cast(x, torch.float16),
    "type_as": lambda x, other: _cast(x, other.dtype),
    "contiguous": lambda x, **_: x,
    "__rsub__": _subtracted_from,
    "rsub": _subtracted_from,
    "__mod__": _remainder,
    "remainder": _remainder,
    "batch_norm": _normalised,
    "adaptive_avg_pool2d": _averaged,
    "relu6": lambda x, inplace=False: torch.clamp(x, 0.0, 6.0),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), _kept),
}
_IN_PLACE = {
    **{f"__i{name}__": f"__{name}__" for name in ("add", "sub", "mul", "truediv")},
    **{
        f"{name}_": name
        for name in (
            *("add", "addcmul", "clamp", "clamp_min", "clamp_max", "div", "exp", "mul", "neg", "pow", "reciprocal"),
            *("relu", "rsqrt", "sigmoid", "sqrt", "square", "sub", "tanh"),
        )
    },
}
