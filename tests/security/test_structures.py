"""Any JSON or YAML tree where ours is expected: read, or refused with a UserError. The campaign damages sound files;
here hypothesis makes them up and finds the smallest that fails."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crispseg.ablate.store import Store
from crispseg.ablate.table import read_table
from crispseg.bench.result import read as read_bench
from crispseg.config import read_yaml
from crispseg.data.classes import read_class_table
from crispseg.data.manifest import read_manifest
from crispseg.errors import UserError
from crispseg.models.folder import load
from crispseg.pretrain.config import config_from as pretrain_config_from
from crispseg.train.config import config_from
from crispseg.train.run_folder import read_result
from crispseg.view.report import read_places
from crispseg.view.run import run_state

KEYS = (
    *("data", "path", "model", "name", "options", "schedule", "steps", "optimizer", "lr", "sets", "sizes", "images"),
    *("classes", "id", "colour", "runs", "failed", "rows", "set", "title", "layout", "format", "info", "num_classes"),
    *("last", "best", "protocol", "places", "files", "base", "loss", "augment", "also", "description", "result"),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(("crisp_nano", "1", "x"))
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
READERS = {
    "config.json": load,
    "dataset.json": read_manifest,
    "results.json": Store,
    "result.json": read_result,
    "places.json": read_places,
    "config.yaml": run_state,
    "c.json": lambda folder: read_class_table(folder / "c.json"),
    "c.yaml": lambda folder: read_class_table(folder / "c.yaml"),
    "t.yaml": lambda folder: read_table(folder / "t.yaml"),
    "b.json": lambda folder: read_bench(folder / "b.json"),
    "train.yaml": lambda folder: config_from(read_yaml(folder / "train.yaml")),
    "pretrain.yaml": lambda folder: pretrain_config_from(read_yaml(folder / "pretrain.yaml")),
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=TREES)
def test_any_tree_is_read_or_refused(name, tree):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(json.dumps(tree))  # JSON is YAML, but for NaN and infinity
        (Path(folder) / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        try:
            READERS[name](Path(folder))
        except UserError as error:
            assert str(error).strip()
