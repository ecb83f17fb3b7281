"""Named protocols: their facts, their hashes, and the table in the documentation."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from crispseg.data import known
from crispseg.data.classes import ClassTable
from crispseg.data.protocol import get_protocol, list_protocols, own_protocol, protocols_table
from crispseg.errors import UserError

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"


@pytest.mark.parametrize("name", list_protocols())
def test_every_protocol_is_consistent(name: str) -> None:
    protocol = get_protocol(name)
    assert protocol.name == name and name.startswith(f"{protocol.dataset}/")
    assert len(protocol.palette) == len(protocol.classes) == len(set(protocol.classes))
    assert set(protocol.scored) <= set(protocol.classes) and not set(protocol.ignored) & set(protocol.classes)
    table = known.TABLES[protocol.dataset]
    assert set(table.names) == {*protocol.classes, *protocol.ignored}
    assert protocol.train and not set(protocol.train) & {*protocol.val, *protocol.test}
    assert 0 <= protocol.overlap < protocol.tile
    assert [protocol.classes[i] for i in protocol.scored_ids] == list(protocol.scored)


def test_facts_of_the_isprs_protocols() -> None:
    assert len(known.POTSDAM_TILES) == 38 and len(known.VAIHINGEN_TILES) == 33
    assert len(set(known.POTSDAM_TILES)) == 38 and len(set(known.VAIHINGEN_TILES)) == 33
    for dataset, train, test in (("potsdam", 24, 14), ("vaihingen", 16, 17)):
        mmseg, geoseg, paper = (get_protocol(f"{dataset}/{kind}") for kind in ("mmseg6", "geoseg6", "paper5"))
        assert (len(mmseg.train), len(mmseg.test)) == (train, test)
        assert mmseg.test == geoseg.test == paper.test
        assert (mmseg.train_labels, mmseg.eval_labels) == ("eroded", "eroded")
        assert (geoseg.train_labels, geoseg.eval_labels) == ("full", "eroded")
        assert len(geoseg.scored) == 5 and len(geoseg.classes) == 6 and not geoseg.ignored
        assert len(paper.classes) == 5 and paper.ignored == ("clutter",)
        ours = get_protocol(f"{dataset}/mmseg5")
        assert (ours.train, ours.val, ours.test) == (mmseg.train, mmseg.test, mmseg.test)
        assert (ours.train_labels, ours.eval_labels, ours.overlap) == ("eroded", "eroded", 0)
        assert ours.classes == ours.scored == paper.classes and ours.ignored == ("clutter",)
    geoseg = get_protocol("potsdam/geoseg6")
    assert len(geoseg.train) == 22 and geoseg.val == ("2_10",) and "7_10" not in geoseg.train
    assert get_protocol("vaihingen/geoseg6").val == ("area30",)


def test_tiles_match_whole_names_only() -> None:
    protocol = get_protocol("potsdam/mmseg6")
    assert protocol.holds("train", "6_7") and protocol.holds("train", "6_7_0_0_512_512")
    assert not protocol.holds("train", "6_71") and not protocol.holds("train", "16_7")
    with pytest.raises(UserError, match="unknown split 'tests'; did you mean 'test'"):
        protocol.holds("tests", "6_7")


def test_the_hash_changes_with_every_fact_and_with_nothing_else() -> None:
    base = get_protocol("vaihingen/paper5")
    assert dataclasses.replace(base, notes="other words").hash == base.hash
    changes = {
        "name": "x/y",
        "dataset": "x",
        "classes": ("a",),
        "palette": ((1, 2, 3),),
        "scored": ("car",),
        "ignored": (),
        "train": ("area1",),
        "val": (),
        "test": ("area2",),
        "train_labels": "eroded",
        "eval_labels": "full",
        "boundary_labels": "eroded",
        "crop": 64,
        "tile": 64,
        "overlap": 3,
        "resolution": 1.0,
    }
    assert set(changes) == {f.name for f in dataclasses.fields(base)} - {"notes"}
    hashes = {dataclasses.replace(base, **{field: value}).hash for field, value in changes.items()}
    assert len(hashes | {base.hash}) == len(changes) + 1


def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from crispseg.data.protocol import get_protocol; print(get_protocol('loveda/val7').hash)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == get_protocol("loveda/val7").hash


def test_the_line_beside_a_score() -> None:
    line = get_protocol("potsdam/geoseg6").describe(tta="flip")
    for part in ("potsdam/geoseg6 #", "test (14 tiles)", "5 classes averaged (clutter kept but not averaged)"):
        assert part in line
    for part in ("eroded labels", "global confusion", "tile 1024 overlap 0", "TTA flip"):
        assert part in line
    assert "val = test" in get_protocol("potsdam/mmseg6").describe()
    assert "(clutter ignored)" in get_protocol("potsdam/paper5").describe()
    assert "val (official folder)" in get_protocol("loveda/val7").describe()
    assert "full labels" in get_protocol("potsdam/paper5").describe("val")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UserError, match="unknown protocol 'potsdam/paper6'; did you mean 'potsdam/paper5'"):
        get_protocol("potsdam/paper6")
    with pytest.raises(UserError, match="vaihingen_fragment/fold3"):
        get_protocol("vaihingen_fragment", fold=3)


def test_own_data_gets_a_protocol_with_its_own_hash() -> None:
    table = ClassTable(("a", "b"))
    one = own_protocol("mine", table, {"train": ["x"], "val": ["y"]})
    other = own_protocol("mine", table, {"train": ["y"], "val": ["x"]})
    assert one.name == "mine/own2" and one.hash != other.hash and one.scored_split == "val"


def test_the_documentation_holds_the_table_of_protocols() -> None:
    assert protocols_table() in DOCS.read_text(encoding="utf-8"), "paste protocols_table() into docs/how-to/data.md"
