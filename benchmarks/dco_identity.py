"""How far DCO's default gates move an untrained backbone's features, by image size and residual read-out.

python benchmarks/dco_identity.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from record import record

import crispseg

RESULTS = Path(__file__).parent / "results" / "dco_identity.json"
NOTES = "Relative change of the four stages' features against DCO off, in percent; fresh weights, seed 0, random image."


def change(name: str, readout: str, size: int) -> list[float]:
    torch.manual_seed(0)
    with_dco = crispseg.create_backbone(name, dco={"residual_readout": readout}).eval()
    without = crispseg.create_backbone(name, dco=False).eval()
    without.load_state_dict({k: v for k, v in with_dco.state_dict().items() if ".dco." not in k})
    image = torch.rand(1, 3, size, size) * 2 - 1
    with torch.no_grad():
        pairs = zip(with_dco(image), without(image), strict=True)
        return [round(100 * ((a - b).norm() / b.norm()).item(), 3) for a, b in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="vssd_tiny")
    name = parser.parse_args().backbone
    entry: dict[str, object] = {"backbone": name}
    for readout in ("row", "unnormalized"):
        for size in (128, 512, 1024):
            entry[f"{readout} {size} px"] = change(name, readout, size)
    record(
        RESULTS, "DCO at its start", NOTES, {**entry, "command": f"python benchmarks/dco_identity.py --backbone {name}"}
    )


if __name__ == "__main__":
    main()
