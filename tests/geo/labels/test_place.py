"""The folder of `crisp prepare vector` is replaced only where all of it is ours, and nothing of anybody's is lost."""

import shutil

import pytest
import shapely

from crispseg.errors import UserError
from crispseg.geo.labels.vector import VectorChoice, prepare_vector
from crispseg.outputs import Workplace
from tests.geo.labels.test_vector import draw
from tests.geo.rasters import UTM, random_pixels, write_raster


@pytest.fixture
def sources(tmp_path):
    ortho = write_raster(tmp_path / "ortho.tif", random_pixels(3, 64, 64), **UTM)
    return ortho, draw(tmp_path / "labels.gpkg", [shapely.box(1, 1, 30, 30), shapely.box(33, 33, 60, 60)], ["a", "b"])


def make(sources, out, existing="refuse", chip=32):
    return prepare_vector([sources[0]], VectorChoice(sources[1], "class", chip=chip), str(out), existing=existing)


def names(out):
    return sorted(path.name for path in out.rglob("*.tif"))


def test_ours_is_replaced_when_asked(sources, tmp_path):
    out = tmp_path / "out"
    make(sources, out)
    assert len(names(out)) == 4
    with pytest.raises(UserError, match="not empty.*--existing replace"):
        make(sources, out)
    make(sources, out, "replace", chip=0)
    assert names(out) == ["ortho.tif"] * 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left beside it"


def test_what_somebody_put_there_is_not_lost(sources, tmp_path):
    out = tmp_path / "out"
    make(sources, out)
    (out / "split.csv").write_text("name,split\n")
    with pytest.raises(UserError, match="holds split.csv, which .* did not write"):
        make(sources, out, "replace")
    (out / "split.csv").unlink()
    (out / "dataset.json").unlink()
    with pytest.raises(UserError, match=r"holds classes.csv and 5 more"):
        make(sources, out, "replace")
    shutil.rmtree(out)
    out.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no folder"):
        make(sources, out, "replace")


def test_inputs_and_other_runs(sources, tmp_path):
    out = tmp_path / "out"
    make(sources, out)
    inside = ([str(out / "images" / "ortho_0_0.tif")], VectorChoice(sources[1], "class", chip=0), str(out))
    with pytest.raises(UserError, match="is read and lies in"):
        prepare_vector(*inside, existing="replace")
    other = Workplace(tmp_path / "new")
    with pytest.raises(UserError, match="another run is making"):
        make(sources, tmp_path / "new")
    other.release()
    assert make(sources, tmp_path / "new")["images"]


def test_a_name_that_is_no_text(sources, tmp_path):
    """Found by the fuzz campaign: pyogrio decodes what the file holds."""
    damaged = (tmp_path / "labels.gpkg").read_bytes().replace(b"drawn", b"dr\xa4wn")
    (tmp_path / "labels.gpkg").write_bytes(damaged)
    with pytest.raises(UserError, match="cannot be read as polygons"):
        make(sources, tmp_path / "out")
