"""One model on a CPU by every runtime that takes it: our own path, onnxruntime and OpenVINO, float32 and int8.

    python benchmarks/edge_runtimes.py --data DATA/dubai --out benchmarks/results

Exports the model, times all runtimes in turn (round after round, so that other load hits all alike), and scores each on
windows of labelled images. `alone` is one tile with all threads; `pairs` is as many tiles at a time as there are
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
            return fused(normalisation(torch.from_numpy(image))).numpy()

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
        times = race(alone, single, image, args)
        for name, found in times.items():
            rows[name] |= found
        sizes = {"float32": whole.stat().st_size, "int8": small.stat().st_size}
    return {
        "model": args.model,
        "size": args.size,
        "threads": args.threads,
        "rounds": args.rounds,
        "load_average": os.getloadavg()[0],
        "scored_on": f"{len(windows.scoring)} windows of {args.size} px",
        "file_bytes": sizes,
        "rows": rows,
    }


def race(
    alone: dict[str, Run], single: dict[str, Run], image: np.ndarray, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Medians over rounds; every runtime runs once a round."""
    seen: dict[str, dict[str, list[float]]] = {name: {"alone_ms": [], "pairs_ms": []} for name in alone}
    with ThreadPoolExecutor(args.threads) as pool:
        for turn in range(args.rounds + 1):
            for name in alone:
                took = milliseconds(lambda name=name: alone[name](image))
                both = milliseconds(lambda name=name: in_pairs(single[name], image, pool, args.threads)) / args.threads
                if turn:  # the first round warms up
                    seen[name]["alone_ms"].append(took)
                    seen[name]["pairs_ms"].append(both)
    return {name: {key: statistics.median(values) for key, values in found.items()} for name, found in seen.items()}


def markdown(result: dict[str, Any]) -> str:
    base = result["rows"]["crispseg fused, float32"]
    lines = [
        f"# {result['model']} on {result['threads']} CPU threads, one {result['size']} px tile",
        "",
        f"Median of {result['rounds']} rounds, all runtimes in turn; load average {result['load_average']:.1f} (above "
        f"{result['threads']} the milliseconds are too long, and the ratios, taken in one run, are what to read). "
        f"mIoU on {result['scored_on']}. File: {result['file_bytes']['float32'] / 2**20:.1f} MiB in float32, "
        f"{result['file_bytes']['int8'] / 2**20:.1f} in int8. `python benchmarks/edge_runtimes.py --data DATA/dubai`",
        "",
        "| runtime | one tile alone, ms | x | tiles side by side, ms each | x | relative error | mIoU |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["rows"].items():
        lines.append(
            f"| {name} | {row['alone_ms']:.0f} | {row['alone_ms'] / base['alone_ms']:.2f} | {row['pairs_ms']:.0f} | "
            f"{row['pairs_ms'] / base['pairs_ms']:.2f} | {row['relative_error']:.1e} | {row['mIoU']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_nano_dubai")
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
