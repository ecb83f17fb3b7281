import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg.bench.result import Latency, ModelCell, OperatorCell, PerPixel, Result, Skipped, read, write
from crispseg.errors import UserError

numbers = st.floats(0, 1e12) | st.none()
letters = st.characters(exclude_categories=("Cs",), exclude_characters="\0")  # no file of ours holds a NUL
cells = st.builds(
    ModelCell,
    size=st.integers(1, 5000),
    batch=st.integers(1, 64),
    precision=st.sampled_from(["fp32", "bf16"]),
    mode=st.just("eager"),
    device=st.just("cpu"),
    status=st.sampled_from(["ok", "wrong", "failed", "out of memory"]),
    reason=st.text(letters),
    latency_ms=st.builds(Latency, st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 100)) | st.none(),
    peak_bytes=st.integers(0, 2**50) | st.none(),
    check_error=numbers,
    check_bound=st.just(1e-4),
    model=st.text(letters, min_size=1),
    throughput=numbers,
    macs=st.integers(0, 2**60) | st.none(),
)


def result(kind="models", **fields):
    return Result(kind, {"torch": "2.11", "threads": 1}, {"sizes": [512], "repeats": 3}, **fields)


@given(st.lists(cells, max_size=3))
def test_json_round_trip(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    given_result = result(
        cells=tuple(made), skipped=(Skipped("x", "pip install y"),), operator_check={"fp32": 1e-8, "bf16": None}
    )
    write(given_result, path)
    assert read(path) == given_result


def test_json_round_trip_of_the_other_kinds(tmp_path):
    place = {"size": 512, "batch": 1, "precision": "fp32", "mode": "graph", "device": "cuda", "check_bound": 1e-5}
    operator = OperatorCell(backend="torch", direction="forward", stage=1, tokens=16384, bytes=10, **place)
    row = PerPixel("m", "fp32", "eager", 1024, 1, 512, 2.0, None, 1.1, None, True)
    for made in (result("ops", cells=(operator,)), result("scaling", per_pixel=(row,))):
        write(made, tmp_path / "r.json")
        assert read(tmp_path / "r.json") == made


def test_the_fields_that_others_read_are_there(tmp_path):
    """The documented schema: renaming a field breaks whoever reads the files."""
    cell = ModelCell(
        model="m", size=1, batch=1, precision="fp32", mode="eager", device="cpu", check_bound=1.0,
        latency_ms=Latency(1.0, 0.1, 3),
    )  # fmt: skip
    write(result(cells=(cell,), command="crisp bench m"), tmp_path / "r.json")
    values = json.loads((tmp_path / "r.json").read_text())
    assert {"format", "kind", "command", "environment", "settings", "cells", "skipped"} <= set(values)
    wanted = "model size batch precision mode device status reason latency_ms throughput peak_bytes peak_source macs"
    assert {*wanted.split(), "parameters", "check_error", "check_bound"} <= set(values["cells"][0])
    assert set(values["cells"][0]["latency_ms"]) == {"median", "iqr", "runs"}


def test_what_cannot_be_read(tmp_path):
    path = tmp_path / "r.json"
    for text in ("not json", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(UserError, match="not a result|is damaged"):
            read(path)
    with pytest.raises(UserError, match="there is no result"):
        read(tmp_path / "absent.json")
    write(dataclasses.replace(result(), format=99), path)
    with pytest.raises(UserError, match="newer crispseg"):
        read(path)
