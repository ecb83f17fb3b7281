"""What each operator's kernel is worth to a whole network: the time with its formula in its place, against all kernels.

  python benchmarks/op_worth.py --out benchmarks/results/op_worth_h200.json

Training steps of crisp_tiny (16 crops of 512 px, bf16, one CUDA graph) and fused crisp_tiny and crisp_nano at batch 1
and 16. An operator that a network does not call has no row there. The run with all kernels is timed first and last:
what these two differ by is what a difference must exceed to mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from loader import generate  # beside this file
from profile_fused import milliseconds

import crispseg
from crispseg import ops
from crispseg.data import make_loader, open_folder
from crispseg.files import write_json, write_text
from crispseg.fused.graphs import Recorder
from crispseg.ops import dispatch
from crispseg.train.config import train_config
from crispseg.train.distributed import Processes
from crispseg.train.setup import build_model, complete, training_set
from crispseg.train.step import Part, Stepper, use_fast_kernels

FUSED = [("crisp_tiny", 1), ("crisp_tiny", 16), ("crisp_nano", 1), ("crisp_nano", 16)]
STEPS = 8


@contextlib.contextmanager
def noted() -> Iterator[set[str]]:
    """The operators whose kernel is taken within the block."""
    found: set[str] = set()
    why_not = dispatch.Operator.why_not

    def note(self: dispatch.Operator[..., Any], *args: Any, **kwargs: Any) -> str | None:
        why = why_not(self, *args, **kwargs)
        if why is None:
            found.add(self.name)
        return why

    dispatch.Operator.why_not = note  # type: ignore[method-assign]
    try:
        yield found
    finally:
        dispatch.Operator.why_not = why_not  # type: ignore[method-assign]


def compared(measure: Callable[[], float]) -> list[dict[str, Any]]:
    """All kernels, each operator without its own, all kernels again."""
    with noted() as used:
        measure()
    whole = measure()
    rows: list[dict[str, Any]] = [{"without": "", "ms": whole}]
    for name in sorted(used):
        with ops.off(name):
            try:
                rows.append({"without": name, "ms": measure()})
            except RuntimeError as error:
                rows.append({"without": name, "ms": None, "error": str(error).strip().partition("\n")[0][:200]})
        print(rows[-1], flush=True)
    rows.append({"without": "nothing, again", "ms": measure()})
    return [{**row, "slower": None if row["ms"] is None else round(row["ms"] / whole - 1, 4)} for row in rows]


def training(folder: Path, model: str, batch: int, crop: int) -> Callable[[], float]:
    words = [
        f"data={folder}",
        f"model={model}",
        f"batch_size={batch}",
        f"crop={crop}",
        "precision=bf16",
        "model.weights=none",
    ]
    opened = open_folder(str(folder))
    config = complete(train_config(None, words), opened, "cuda")
    use_fast_kernels(torch.device("cuda"))
    stepper = Stepper(build_model(config, opened), config, Processes(torch.device("cuda")))
    part = Part(*next(iter(make_loader(training_set(config, opened), batch, 1, workers=0, device="cuda"))))

    def measure() -> float:
        stepper.graphed = None
        torch.cuda.empty_cache()
        for _ in range(2):
            stepper.step(0, [part])
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(STEPS):
            stepper.step(0, [part])
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / STEPS

    return measure


def fused(model: str, batch: int, size: int = 512) -> Callable[[], float]:
    network = crispseg.create_model(model).eval().cuda()
    image = torch.randn(batch, 3, size, size, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def measure() -> float:
        made = network.fused(torch.bfloat16, graphs=False)
        return milliseconds(Recorder().record(lambda x: (made(x),), (image,)))

    return measure


def markdown(tables: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["# What each operator's kernel is worth", "", "Time without it, against all kernels.", ""]
    names = [row["without"] for row in itertools.chain(*tables.values())]
    order = sorted(dict.fromkeys(name for name in names if name))
    lines += ["| without | " + " | ".join(tables) + " |", "|---" * (len(tables) + 1) + "|"]
    cells = {title: {row["without"]: row["slower"] for row in rows} for title, rows in tables.items()}
    for name in order:
        found = [cells[title].get(name, "") for title in tables]
        lines.append(
            f"| {name} | " + " | ".join(f"{100 * x:+.1f} %" if isinstance(x, float) else "" for x in found) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    tables: dict[str, list[dict[str, Any]]] = {}

    def kept(title: str, measure: Callable[[], float]) -> None:
        tables[title] = compared(measure)
        write_json(args.out, {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "tables": tables})
        write_text(args.out.with_suffix(".md"), markdown(tables))

    with tempfile.TemporaryDirectory() as temporary:
        folder = generate(Path(temporary) / "data")
        kept("training crisp_tiny", training(folder, "crisp_tiny", 16, 512))
    for model, batch in FUSED:
        kept(f"fused {model}, batch {batch}", fused(model, batch))
    print(markdown(tables))


if __name__ == "__main__":
    main()
