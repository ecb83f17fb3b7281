"""How exact the gradients of the operator are in float32, each by itself, against the formulas in float64.

  python benchmarks/gate_gradients.py --out benchmarks/results/gate_gradients_h200.json

Gradients of DCO's gates are sums over all tokens that nearly cancel: an error that is small beside the largest gradient
may be large beside their own. Random tokens of the networks' stages and of odd sizes, three seeds; of each backend the
largest relative error that was found, and where.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from crispseg.ops import BACKENDS, Gates, Rule, ncssd

NAMES = ("v", "b", "c", "rho", "d", "residual", "omega", "s", "t")
SIZES = (  # batch, tokens, heads, width, state
    (8, 997, 4, 32, 16), (2, 4096, 4, 64, 64), (2, 1024, 8, 64, 64), (3, 256, 16, 64, 64), (2, 1000, 2, 48, 48),
    (1, 2000, 1, 64, 32), (1, 300, 24, 64, 64), (5, 17, 3, 5, 7), (1, 33, 1, 128, 128), (1, 16384, 2, 64, 64),
    (8, 4096, 2, 64, 64), (16, 16384, 2, 64, 64), (1, 262144, 2, 64, 64),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--largest", type=int, default=10**9, help="leave out sizes of more tokens in all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    worst: dict[str, dict[str, tuple[float, str]]] = {}
    for sizes in (sizes for sizes in SIZES if sizes[0] * sizes[1] <= args.largest):
        for seed in range(args.seeds):
            tensors = [x.to(args.device) for x in drawn(*sizes, seed=seed)]
            truth = gradients([x.double() for x in tensors], "reference", seed)
            for backend in [name for name in ("triton", "torch") if name in BACKENDS]:
                of_this = worst.setdefault(backend, {})
                for name, found, expected in zip(NAMES, gradients(tensors, backend, seed), truth, strict=True):
                    error = ((found.double() - expected).norm() / expected.norm()).item()
                    of_this[name] = max(of_this.get(name, (0.0, "")), (error, f"{sizes}, seed {seed}"))
    text = json.dumps(worst, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def drawn(batch: int, length: int, heads: int, width: int, state: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens = [draw(batch, length, heads, width), draw(batch, length, state), draw(batch, length, state)]
    rho, d = draw(batch, length, heads).exp().mul(0.3), draw(heads)
    gates = [0.3 * draw(n) for n in (heads, heads, width, width)]
    return [x.float() for x in (*tokens, rho, d, *gates)]


def gradients(tensors: list[torch.Tensor], backend: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Of a random weighting of the output."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    result = ncssd(*leaves[:5], Gates(*leaves[5:]), Rule(), backend=backend)
    generator = torch.Generator(result.device).manual_seed(seed)
    weight = torch.randn(result.shape, generator=generator, device=result.device, dtype=torch.float32)
    return torch.autograd.grad((result * weight.to(result.dtype)).sum(), leaves)


if __name__ == "__main__":
    main()
