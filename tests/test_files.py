import errno
import os

import pytest

from crispseg import files
from crispseg.cli.main import main
from crispseg.errors import UserError
from tests.fakedata import fake_own
from tests.geo.rasters import UTM, random_pixels, write_raster


def test_replaces_only_when_whole(tmp_path):
    path = tmp_path / "new" / "f.txt"
    files.write_text(path, "one")
    with pytest.raises(RuntimeError), files.replacing(path) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert path.read_text() == "one"
    files.write_text(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["f.txt"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "no space left to write .*f.txt; free some"),
        (errno.EACCES, "may not write .*f.txt"),
        (errno.EROFS, "cannot write .*f.txt: Read-only"),
    ],
)
def test_the_systems_refusals_become_sentences(tmp_path, code, message):
    with pytest.raises(UserError, match=message), files.replacing(tmp_path / "f.txt") as aside:
        aside.write_text("half")
        raise OSError(code, os.strerror(code))
    assert not list(tmp_path.iterdir())


def test_parent_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    for below in ("f.json", "sub/f.json"):  # for which the system says "File exists" and "Not a directory"
        with pytest.raises(UserError, match=r"cannot write .*f.json: .*file is a file, not a folder"):
            files.write_json(tmp_path / "file" / below, {})


@pytest.mark.parametrize(
    "words",
    [
        ["export", "crisp_nano_aerial", "-o", "s3://bucket/model.onnx"],
        ["suggest", "map.tif", "-o", "gs://bucket/windows.gpkg"],
        ["suggest", "s3://bucket/map.tif"],
        ["view", "map.tif", "--save", "s3://bucket/page.html"],
        ["train", "data=x", "out=s3://bucket/run"],
        ["eval", "crisp_nano_aerial", "x", "--out", "az://bucket/report"],
    ],
)
def test_what_is_written_here_only_takes_no_address(tmp_path, monkeypatch, capsys, words):
    """It was written to a folder named `s3:`, and told as done."""
    monkeypatch.chdir(tmp_path)
    for name in ("map.tif", "map_confidence.tif"):
        write_raster(tmp_path / name, random_pixels(1, 32, 32), **UTM)
    fake_own(tmp_path / "x")
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "://bucket/" in said and "is not on this machine" in said
    assert not list(tmp_path.rglob("*:*")), "nothing is left of it"
