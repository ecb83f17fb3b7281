"""A backbone that is kept in 8 bits, rounded once more: every weight off by as much again as it may be already.

  python benchmarks/rounded_again.py vssd_tiny OUT
  python benchmarks/finetuning.py DATA RUNS --scratch-steps 0 --backbone crisp_tiny=vssd_tiny \
    --backbone crisp_tiny:again=OUT

The weights that were rounded to 8 bits are not kept, so what that cost cannot be measured. What it costs to do the
like again can: where a model fine-tuned from OUT is as good as one from the backbone itself, the first rounding was no
dearer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from crispseg.models.backbone_folder import WEIGHTS, load_backbone, read_backbone, save_backbone
from crispseg.models.pretrained import find_pretrained
from crispseg.models.storage import SCALE


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", type=Path, help="its folder or name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    source = find_pretrained(args.backbone)
    backbone, saved = load_backbone(source), read_backbone(source)
    scales = {name.removesuffix(SCALE): x for name, x in load_file(source / WEIGHTS).items() if name.endswith(SCALE)}
    if not scales:
        print(f"rounded_again: {source} is not kept in 8 bits", file=sys.stderr)
        return 1
    chance = torch.Generator().manual_seed(args.seed)
    moved = 0.0
    with torch.no_grad():
        for name, weight in backbone.state_dict().items():
            if name in scales:  # the error of rounding is as likely to be any number of up to half a step
                step = scales[name].float().view(-1, *[1] * (weight.ndim - 1))
                change = step * (torch.rand(weight.shape, generator=chance) - 0.5)
                moved = max(moved, float(change.norm() / weight.norm()))
                weight += change
    save_backbone(backbone, args.out, saved.name, saved.info, "full")
    print(f"{args.out}: {len(scales)} weights, moved by {100 * moved:.2f} % of their norm at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
