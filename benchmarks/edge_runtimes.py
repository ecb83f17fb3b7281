"""One model on a CPU by every runtime that takes it: our own path, onnxruntime and OpenVINO, float32 and int8.

    python benchmarks/edge_runtimes.py --data DATA/dubai --out benchmarks/results

Exports the model, times all runtimes in turn (round after round, each time from another one on, so that other load hits
all alike), and scores each on windows of labelled images. Ratios are taken within a round; their median and middle half
are told. `alone` is one tile with all threads; `pairs` is as many tiles at a time as there are
threads, each on one, as `crisp predict` runs them. Needs crispseg[export] and openvino.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import crispseg
from crispseg.export.run import export
from crispseg.export.windows import read_windows
from crispseg.files import write_json, write_text
from crispseg.metrics import ConfusionMatrix
from crispseg.models.onnx_file import open_session

Run = Callable[[np.ndarray], np.ndarray]  # raw pixels (1, bands, h, w) -> scores (1, classes, h, w)


def ours(model: Any, threads: int) -> Run:
    fused, normalisation = model.fused(torch.float32), model.info.normalisation()

    def run(image: np.ndarray) -> np.ndarray:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            scores = fused(normalisation(torch.from_numpy(image)))
            return (scores / model.info.temperature).numpy()  # as exported files do

    return run


def onnxruntime_of(path: Path, threads: int) -> Run:
    session = open_session(path.read_bytes(), str(path), threads)
    return lambda image: session.run(None, {"image": image})[0]


def openvino_of(path: Path, threads: int) -> Run:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)

    def run(image: np.ndarray) -> np.ndarray:
        return compiled.create_infer_request().infer({0: image})[0]

    return run


def openvino_in_streams(path: Path, threads: int) -> Run:
    """One compiled model whose streams share the threads, one thread each: OpenVINO's own way to run pairs."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda image: compiled.create_infer_request().infer({0: image})[0]


def milliseconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def in_pairs(run: Run, image: np.ndarray, pool: ThreadPoolExecutor, threads: int) -> None:
    list(pool.map(run, [image] * threads))


def miou(run: Run, windows: Any, classes: int) -> float:
    counts = ConfusionMatrix(classes)
    for image, labels in windows.scoring:
        found = np.argmax(run(image)[0], 0).astype(np.uint8)
        counts.update(torch.from_numpy(found), torch.from_numpy(np.ascontiguousarray(labels)))
    return 100 * counts.scores().miou


def measure(args: argparse.Namespace) -> dict[str, Any]:
    model = crispseg.load(args.model)
    windows = read_windows(args.data, model, (args.size, args.size), args.windows, args.protocol)
    image = windows.scoring[0].image
    with tempfile.TemporaryDirectory() as folder:
        whole, small = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        export(model, whole)
        export(model, small, precision="int8", calibrate=args.data, protocol=args.protocol, max_loss=100.0)
        alone: dict[str, Run] = {
            "crispseg fused, float32": ours(model, args.threads),
            "onnxruntime, float32": onnxruntime_of(whole, args.threads),
            "onnxruntime, int8": onnxruntime_of(small, args.threads),
            "OpenVINO, float32": openvino_of(whole, args.threads),
            "OpenVINO, int8": openvino_of(small, args.threads),
        }
        single: dict[str, Run] = {
            "crispseg fused, float32": ours(model, 1),
            "onnxruntime, float32": onnxruntime_of(whole, 1),
            "onnxruntime, int8": onnxruntime_of(small, 1),
            "OpenVINO, float32": openvino_in_streams(whole, args.threads),
            "OpenVINO, int8": openvino_in_streams(small, args.threads),
        }
        truth = alone["crispseg fused, float32"](image)
        rows: dict[str, Any] = {}
        for name, run in alone.items():
            found = run(image)
            error = float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
            rows[name] = {"relative_error": error, "mIoU": miou(run, windows, model.num_classes)}
        before = os.getloadavg()[0]
        for name, times in race(alone, single, image, args).items():
            rows[name] |= times
        load = [before, os.getloadavg()[0]]
        sizes = {"float32": whole.stat().st_size, "int8": small.stat().st_size}
    return {
        "model": args.model,
        "size": args.size,
        "threads": args.threads,
        "rounds": args.rounds,
        "load_average": load,
        "scored_on": f"{len(windows.scoring)} windows of {args.size} px",
        "file_bytes": sizes,
        "rows": rows,
    }


def race(
    alone: dict[str, Run], single: dict[str, Run], image: np.ndarray, args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Every runtime once a round; what each took, and its ratio to the first one in the same round."""
    seen: dict[str, dict[str, list[float]]] = {name: {"alone": [], "pairs": []} for name in alone}
    names = list(alone)
    with ThreadPoolExecutor(args.threads) as pool:
        for turn in range(args.rounds + 1):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                took = milliseconds(lambda name=name: alone[name](image))
                both = milliseconds(lambda name=name: in_pairs(single[name], image, pool, args.threads)) / args.threads
                if turn:  # the first round warms up
                    seen[name]["alone"].append(took)
                    seen[name]["pairs"].append(both)
    base = seen[names[0]]
    return {
        name: {
            key: {"ms": statistics.median(values), "ratio": quartiles(np.divide(values, base[key]))}
            for key, values in found.items()
        }
        for name, found in seen.items()
    }


def quartiles(values: np.ndarray) -> list[float]:
    """A quarter, the half and three quarters of the values lie below these."""
    return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]


def markdown(result: dict[str, Any]) -> str:
    before, after = result["load_average"]
    lines = [
        f"# {result['model']} on {result['threads']} CPU threads, one {result['size']} px tile",
        "",
        f"Medians of {result['rounds']} rounds, all runtimes in turn; x is the ratio to the first line in the same "
        f"round (its middle half in brackets). Load average {before:.1f} before the race and {after:.1f} at its end, "
        f"of which the race itself is {result['threads']}: above that the milliseconds are too long, and the ratios "
        f"are what to read. mIoU on {result['scored_on']}. File: {result['file_bytes']['float32'] / 2**20:.1f} MiB in "
        f"float32, {result['file_bytes']['int8'] / 2**20:.1f} in int8. "
        "`python benchmarks/edge_runtimes.py --data DATA/dubai`",
        "",
        "| runtime | one tile alone, ms | x | tiles side by side, ms each | x | relative error | mIoU |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["rows"].items():
        cells = [cell for key in ("alone", "pairs") for cell in (f"{row[key]['ms']:.0f}", spread(row[key]["ratio"]))]
        lines.append(f"| {name} | {' | '.join(cells)} | {row['relative_error']:.1e} | {row['mIoU']:.2f} |")
    return "\n".join(lines) + "\n"


def spread(ratio: list[float]) -> str:
    low, middle, high = ratio
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_nano_aerial")
    parser.add_argument("--data", required=True, help="labelled images: int8 is calibrated and all are scored on them")
    parser.add_argument("--protocol", default="dubai/own5")
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--windows", type=int, default=24)
    args = parser.parse_args()
    result = measure(args)
    write_json(Path(args.out) / "edge_runtimes.json", result)
    write_text(Path(args.out) / "edge_runtimes.md", markdown(result))
    print(markdown(result))
    print(json.dumps(result["rows"], indent=1))


if __name__ == "__main__":
    main()
