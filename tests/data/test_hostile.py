"""Images, masks, archives and notes that claim what they are not."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg import memory
from crispseg.data.classes import ClassTable
from crispseg.data.images import read_header, read_image
from crispseg.data.inspection import inspect
from crispseg.data.labels import encode
from crispseg.data.manifest import read_manifest
from crispseg.data.prepare import Choices, make_plan, prepare
from crispseg.data.sources import scan
from crispseg.data.tables import infer_table
from crispseg.errors import UserError
from tests.fakedata.archives import fake_loveda
from tests.fakedata.folders import fake_own


def png(width: int, height: int) -> bytes:
    """A whole PNG file that claims to be of this size, with a few bytes of pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def tif(width: int, height: int, samples: int) -> bytes:
    """A tif that claims this size, with one strip of a few pixels."""
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 200, 277: samples, 278: height, 279: 64, 284: 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return start.ljust(200, b"\0") + b"\1" * 64


def test_a_huge_png_is_a_problem_that_info_tells(tmp_path: Path) -> None:
    root = fake_own(tmp_path, images=3)
    (root / "images" / "site0_part0.png").write_bytes(png(60_000, 60_000))
    memory.reset_peak()
    before = memory.resident()
    report = inspect(root)
    assert any("60000 x 60000 px: decoding it takes 25.1 GiB" in problem for problem in report.problems)
    assert report.images == 2
    assert memory.peak() - before < 200 << 20


@pytest.mark.parametrize("samples", [1, 7])  # read by pillow, by rasterio
def test_a_huge_tif(samples: int, tmp_path: Path) -> None:
    path = tmp_path / "huge.tif"
    path.write_bytes(tif(1_000_000, 1_000_000, samples))
    with pytest.raises(UserError, match="1000000 x 1000000 px: decoding it takes"):
        read_image(path)


def test_pillows_guard_stays_on(tmp_path: Path) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    assert limit is not None
    read_image(fake_own(tmp_path) / "images" / "site0_part0.png")
    assert limit == Image.MAX_IMAGE_PIXELS
    (tmp_path / "large.png").write_bytes(png(20_000, 20_000))
    with pytest.raises(Image.DecompressionBombError):
        Image.open(tmp_path / "large.png")
    assert read_header(tmp_path / "large.png").width == 20_000  # ours is another guard: memory


def test_no_format_but_ours_is_tried(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(UserError, match="neither png, jpg"):
        read_image(tmp_path / "a.png")


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    root = fake_own(tmp_path, images=2)
    (root / "images" / "site0_part0.png").unlink()
    os.mkfifo(root / "images" / "site0_part0.png")
    assert any("pipe or device" in problem for problem in inspect(root).problems)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_masks_with_infinity_or_nan(value: float, tmp_path: Path) -> None:
    mask = np.zeros((4, 4), np.float32)
    mask[1, 2] = value
    with pytest.raises(UserError, match="NaN or infinity"):
        encode(mask, ClassTable(("a", "b")), "m.tif")
    Image.fromarray(mask).save(tmp_path / "m.tif")
    with pytest.raises(UserError, match="NaN or infinity"):
        infer_table(tmp_path, [tmp_path / "m.tif"])


def test_links_that_lead_nowhere_or_in_circles(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.png").write_bytes(b"x")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing.png")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    os.mkfifo(tmp_path / "pipe.png")
    found = scan(tmp_path)
    assert [str(entry.path) for entry in found.entries] == ["a/b/x.png"]
    assert len(found.problems) == 3
    assert sum("a link that leads nowhere" in problem for problem in found.problems) == 2


def damaged_zip(path: Path, method: int) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("images/x.png", bytes(range(256)) * 40)
        start = archive.infolist()[0].header_offset
    data = bytearray(path.read_bytes())
    data[start + 44 : start + 74] = b"\xff" * 30  # behind the name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_cannot_be_unpacked(method: int, tmp_path: Path) -> None:
    found = scan(damaged_zip(tmp_path / "a.zip", method))
    with pytest.raises(UserError, match="cannot be taken out of its archive"):
        found.entries[0].open()


@pytest.mark.parametrize(("place", "value", "message"), [(8, 9, "not supported"), (6, 1, "encrypted")])
def test_a_member_that_is_packed_otherwise(place: int, value: int, message: str, tmp_path: Path) -> None:
    """Windows packs files of more than 2 GB by its own method, 9; such an archive is no bad download."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images/x.png", b"x" * 99)
    data = bytearray(path.read_bytes())
    data[place] = data[data.index(b"PK\1\2") + place + 2] = value
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{message}.*; unzip the archive first"):
        scan(path).entries[0].open()


def test_a_member_that_claims_ten_gibibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.png", b"x")
        archive.infolist()[0].file_size = 10 << 30  # as the directory will say
    monkeypatch.setattr(memory, "free", lambda: 4 << 30)
    entry = scan(tmp_path / "a.zip").entries[0]
    assert entry.size == 10 << 30
    with pytest.raises(UserError, match=r"10\.0 GiB when taken out of its archive, and 4\.0 are free"):
        entry.open()


def prepared(tmp_path: Path) -> Path:
    source = fake_loveda(tmp_path / "source", each=1)
    prepare(make_plan("loveda", source, CHOICES), tmp_path / "out", CHOICES)
    return tmp_path / "out"


CHOICES = Choices("full", allow_missing=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": 3}, "must be a list"),
        ({"images": [{"name": "x"}]}, "lacks height, sums, width"),
        ({"classes": "abc"}, "must be a list"),
        ({"protocols": ["loveda/val7"]}, "must be a mapping"),
        ({"format": 7}, "newer crispseg"),
        ({"resolution": "fine"}, "must be a number"),
    ],
)
def test_notes_of_wrong_types(change: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text(json.dumps({"format": 1, **change}))
    with pytest.raises(UserError, match=message):
        read_manifest(tmp_path)


def test_notes_cannot_name_files_outside(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    manifest = json.loads((out / "dataset.json").read_text())
    for name in ("../../etc/passwd", "/etc/passwd", "a\0b"):
        manifest["images"][0]["files"] = {name: {"bytes": 1, "sha256": "x"}}
        (out / "dataset.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match="names a file outside the folder|a NUL character"):
            read_manifest(out)


def test_a_damaged_journal_costs_only_what_it_does_not_tell(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    manifest = json.loads((out / "dataset.json").read_text())
    entry, *others = manifest["images"]
    kind = {"kind": f"{manifest['dataset']} in the {manifest['layout']} layout"}
    lines = [kind, [], "x", {"name": 3}, {**entry, "labels": []}, {**entry, "sums": [[1, 2]]}, *others]
    (out / ".prepare.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{")
    (out / "dataset.json").unlink()
    prepare(make_plan("loveda", tmp_path / "source", CHOICES), out, CHOICES)
    assert json.loads((out / "dataset.json").read_text()) == manifest


def test_masks_that_hold_no_numbers(tmp_path: Path) -> None:
    mask = np.zeros((4, 4), np.float32)
    for value in (np.nan, np.inf, -np.inf, 3e38):
        mask[0, 0] = value
        with pytest.raises(UserError, match="mask"):
            encode(mask, ClassTable(("a", "b")), "mask.tif")


def test_a_class_called_like_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from crispseg.cli.main import main

    fake_own(tmp_path, images=2, size=(16, 24))
    (tmp_path / "classes.csv").write_text("name,id\n[/x],0\n[bold]y,1\n=1+1,2\n")
    main(["info", str(tmp_path), "--sheet", str(tmp_path / "sheet.png")])
    said = capsys.readouterr().out
    assert "[/x]" in said and "[bold]y" in said


def test_a_member_without_a_name_is_none(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = ""
        archive.writestr(info, b"1")
        archive.writestr("y.png", b"22")
    assert [entry.path.name for entry in scan(tmp_path / "a.zip").entries] == ["y.png"]
