"""Convolutions of any model, in evaluation: on a CPU, with weights laid out beforehand."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from crispseg.fused.layers import Ready
from crispseg.layout import to_channels_first, to_channels_last
from crispseg.ops.cpu import onednn
from crispseg.ops.cpu.winograd import same_convolution


def prepare_convolutions(model: nn.Module) -> None:
    """Put a FusedConvolution in the place of each convolution, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Conv2d:
                setattr(parent, name, FusedConvolution(child))


class FusedConvolution(Ready, nn.Conv2d):
    """The same convolution, with the same weights."""

    def __init__(self, conv: nn.Conv2d) -> None:
        options = {name: getattr(conv, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        size: Any = conv.kernel_size
        super().__init__(conv.in_channels, conv.out_channels, size, bias=False, device="meta", **options)
        self.weight, self.bias = conv.weight, conv.bias

    def make_ready(self) -> Any:
        padding, stride = self.padding, self.stride
        assert not isinstance(padding, str)
        if (self.kernel_size, padding, stride, self.groups) == ((3, 3), (1, 1), (1, 1), 1):
            return same_convolution(self.weight, self.bias, relu=False)
        return onednn.Convolution.of(self.weight, self.bias, padding, stride, self.groups)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        if self._plain and onednn.applies(input, self.weight):
            return to_channels_first(self.ready()(to_channels_last(input)))
        return super().forward(input)

    @property
    def _plain(self) -> bool:
        return self.dilation == (1, 1) and self.padding_mode == "zeros" and not isinstance(self.padding, str)
