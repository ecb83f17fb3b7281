"""Opening folders: anyone's own data, with and without tables and splits, and what goes wrong with it."""

from __future__ import annotations

import json
import shutil
import tracemalloc
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data import ClassTable, get_protocol, inspect, open_folder
from crispseg.data.dataset import check_bands
from crispseg.data.images import read_image
from crispseg.errors import UserError
from tests.fakedata import fake_own, scene
from tests.fakedata.folders import OWN_COLOURS, OWN_NAMES

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not on this machine")


def test_index_masks_without_a_table(tmp_path: Path) -> None:
    folder = open_folder(fake_own(tmp_path / "mine"))
    assert folder.table.names == ("class_0", "class_1", "class_2")
    assert folder.protocol.name == "mine/own3" and folder.protocol.scored == folder.table.names
    assert (folder.bands, folder.dtype) == (3, "uint8")
    names = {r.name for split in ("train", "val") for r in folder.records(split)}
    assert len(names) == 6
    record = folder.records("val")[0]
    with Image.open(record.masks["full"]) as picture:
        assert np.array_equal(folder.read_mask(record), np.asarray(picture))


def test_colour_masks_with_a_table(tmp_path: Path) -> None:
    folder = open_folder(fake_own(tmp_path, colour=True))
    assert folder.table.names == OWN_NAMES and folder.protocol.palette == OWN_COLOURS
    record = folder.records("train")[0]
    mask = folder.read_mask(record)
    with Image.open(record.masks["full"]) as picture:
        colours = np.asarray(picture)
    for row, column in np.ndindex(mask.shape):
        assert OWN_COLOURS[mask[row, column]] == tuple(colours[row, column])


def test_colour_masks_without_a_table_show_how_to_write_one(tmp_path: Path) -> None:
    fake_own(tmp_path, colour=True)
    (tmp_path / "classes.csv").unlink()
    with pytest.raises(UserError) as caught:
        open_folder(tmp_path)
    message = str(caught.value)
    for r, g, b in OWN_COLOURS:
        assert f"  {r},{g},{b}: " in message
    assert "name,r,g,b,ignore" in message
    # the advice works when followed
    rows = message[message.index("name,r,g,b,ignore") :]
    (tmp_path / "classes.csv").write_text(rows + "\n")
    assert len(open_folder(tmp_path).table.names) == 3


def test_masks_of_nothing_and_something_need_a_table(tmp_path: Path) -> None:
    fake_own(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        with Image.open(path) as picture:
            binary = (np.asarray(picture) > 0).astype(np.uint8) * 255
        Image.fromarray(binary).save(path)
    with pytest.raises(UserError, match="255 means ignored here"):
        open_folder(tmp_path)
    (tmp_path / "classes.csv").write_text("name,id\nnothing,0\nsomething,255\n")
    folder = open_folder(tmp_path)
    assert set(np.unique(folder.read_mask(folder.records("train")[0]))) == {0, 1}


def test_table_of_a_protocol_may_ignore_classes(tmp_path: Path) -> None:
    fake_own(tmp_path / "mine", colour=True)
    own = open_folder(tmp_path / "mine")
    import dataclasses

    fewer = dataclasses.replace(
        own.protocol, name="mine/two", classes=("roof", "meadow"), scored=("roof",), ignored=("water",)
    )
    folder = open_folder(tmp_path / "mine", protocol=fewer)
    record = folder.records("train")[0]
    lookup = np.array([1, 255, 0])
    assert np.array_equal(folder.read_mask(record), lookup[own.read_mask(record)])
    wrong = dataclasses.replace(fewer, ignored=())
    with pytest.raises(UserError, match=r"class 'water' .* is not in protocol mine/two"):
        open_folder(tmp_path / "mine", protocol=wrong).read_mask(record)


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    """Such as ._scene.png, which a Mac leaves beside a copied scene.png."""
    fake_own(tmp_path)
    before = open_folder(tmp_path)
    for folder in ("images", "masks"):
        for path in list((tmp_path / folder).iterdir()):
            path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    assert open_folder(tmp_path).splits == before.splits


def test_split_file_and_split_argument(tmp_path: Path) -> None:
    fake_own(tmp_path)
    names = sorted(path.stem for path in (tmp_path / "images").iterdir())
    lines = [f"{name},{'val' if name == names[2] else 'train'}" for name in names]
    (tmp_path / "split.csv").write_text("\n".join(["name,split", *lines]))
    assert [r.name for r in open_folder(tmp_path).records("val")] == [names[2]]
    chosen = dict.fromkeys(names, "train") | {names[0]: "test", names[5]: "unused"}
    folder = open_folder(tmp_path, split=chosen)
    assert len(folder.records("train")) == 4 and folder.protocol.scored_split == "test"
    with pytest.raises(UserError, match=r"the val split of .* is empty; it has train, test"):
        folder.records("val")
    with pytest.raises(UserError, match="unknown split 'vall'; did you mean 'val'"):
        folder.records("vall")


def test_accents_of_two_kinds_are_one_name(tmp_path: Path) -> None:
    """A Mac's files have an accent as a character of its own; a mask drawn there belongs to the image all the same."""
    fake_own(tmp_path)
    names = [path.stem for path in sorted((tmp_path / "images").iterdir())]
    for number, name in enumerate(names):
        image, mask = tmp_path / "images" / f"{name}.png", tmp_path / "masks" / f"{name}.png"
        image.rename(image.with_name(unicodedata.normalize("NFC", f"Grünfläche {number}.png")))
        mask.rename(mask.with_name(unicodedata.normalize("NFD", f"Grünfläche {number}.png")))
    rows = [f"{unicodedata.normalize('NFD', f'Grünfläche {i}')},{'val' if i else 'train'}" for i in range(len(names))]
    report = inspect(tmp_path)
    assert report.problems == [] and len(report.counts) == len(names)
    (tmp_path / "split.csv").write_text("\n".join(["name,split", *rows]) + "\n")
    folder = open_folder(tmp_path)
    assert [r.name for r in folder.records("train")] == ["Grünfläche 0"]
    assert len(folder.records("val")) == len(names) - 1
    chosen = open_folder(tmp_path, split=dict(row.split(",") for row in rows))
    assert chosen.splits == folder.splits


@pytest.mark.parametrize("size", [(300, 100), (100, 300)])
def test_one_image_is_split_into_parts_with_a_gap(size: tuple[int, int], tmp_path: Path) -> None:
    fake_own(tmp_path, images=1, size=size)
    folder = open_folder(tmp_path)
    whole, labels = (read_image(next((tmp_path / part).iterdir())) for part in ("images", "masks"))
    for split in ("train", "val"):
        for record in folder.records(split):
            window = record.window
            assert window is not None
            image, mask = folder.read_image(record), folder.read_mask(record)
            assert image.shape[:2] == mask.shape == (record.height, record.width)
            rows, columns = (slice(start, start + count) for start, count in zip(window[:2], window[2:], strict=True))
            assert np.array_equal(image, whole[rows, columns]) and np.array_equal(mask, labels[rows, columns, 0])
    assert len({r.name for s in ("train", "val") for r in folder.records(s)}) >= 2
    train, val = (sum(r.height * r.width for r in folder.records(split)) for split in ("train", "val"))
    assert train > 1.5 * val and not folder.splits["test"]


def test_the_split_depends_on_names_labels_and_seed(tmp_path: Path) -> None:
    """With many groups: of a few, the split that balances the classes best is taken whatever the seed."""
    fake_own(tmp_path / "a", images=40, size=(16, 16))
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "a")
    first, second = open_folder(tmp_path / "a"), open_folder(tmp_path / "b" / "a")
    assert first.protocol == second.protocol and first.protocol.hash == second.protocol.hash
    assert any(open_folder(tmp_path / "a", seed=s).protocol != first.protocol for s in range(1, 6))


def test_statistics_are_those_of_all_pixels(tmp_path: Path) -> None:
    folder = open_folder(fake_own(tmp_path))
    pixels = np.concatenate([folder.read_image(r).reshape(-1, 3) for r in folder.records("train")]).astype(float)
    assert np.allclose(folder.statistics().mean, pixels.mean(0)) and np.allclose(folder.statistics().std, pixels.std(0))


def test_sixteen_bit_multi_band_and_float_tif(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    rng = np.random.default_rng(0)
    for dtype in ("uint16", "float32"):
        root = tmp_path / dtype
        fake_own(root, images=2)
        for path in list((root / "images").iterdir()):
            image = (scene(rng, (72, 88), bands=5)[0].astype(dtype) * 3).astype(dtype)
            if dtype == "float32":
                image[:3] = np.nan
            path.unlink()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with rasterio.open(
                    path.with_suffix(".tif"), "w", driver="GTiff", width=88, height=72, count=5, dtype=dtype
                ) as file:
                    file.write(np.moveaxis(image, -1, 0))
        folder = open_folder(root)
        assert (folder.bands, folder.dtype) == (5, dtype)
        assert np.isfinite(folder.statistics().mean).all()
        with pytest.raises(UserError, match=r"crisp_tiny takes 3 bands, but the images of .* have 5"):
            check_bands(folder, 3, "crisp_tiny")


def test_faults_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data folder"):
        open_folder(tmp_path / "none")
    with pytest.raises(UserError, match="no folder images/"):
        open_folder(tmp_path)
    root = fake_own(tmp_path / "mine")
    masks = sorted((root / "masks").iterdir())
    masks[0].rename(tmp_path / "kept.png")
    with pytest.raises(UserError, match=r"1 images of .* have no mask of the same name: site0_part0"):
        open_folder(root)
    with Image.open(tmp_path / "kept.png") as picture:
        picture.crop((0, 0, 20, 30)).save(masks[0])
    with pytest.raises(UserError, match=r"site0_part0\.png is 20 x 30 px, but its image site0_part0\.png is 88 x 72"):
        open_folder(root)
    shutil.copy(tmp_path / "kept.png", masks[0])
    with pytest.raises(UserError, match="class id 2 is out of range"):
        open_folder(root, classes=ClassTable(("a", "b")))
    shutil.copy(root / "images" / "site0_part0.png", root / "images" / "site0_part0.jpg")
    with pytest.raises(UserError, match="holds both"):
        open_folder(root)
    (root / "images" / "site0_part0.jpg").unlink()
    (root / "dataset.json").write_text("[")
    with pytest.raises(UserError, match=r"dataset\.json cannot be read"):
        open_folder(root)
    (root / "images").rename(root / "train")
    (root / "images").mkdir()
    (root / "train").rename(root / "images" / "train")
    with pytest.raises(UserError, match=r"file but folders, which are not looked into: put the files into images/"):
        open_folder(root)


def test_an_image_with_other_bands_is_refused_when_read(tmp_path: Path) -> None:
    root = fake_own(tmp_path)
    odd = sorted((root / "images").iterdir())[-1]
    with Image.open(odd) as picture:
        grey = picture.convert("L")
    grey.save(odd)
    folder = open_folder(root)
    record = next(r for s in ("train", "val") for r in folder.records(s) if r.image == odd)
    with pytest.raises(UserError, match="has 1 bands of uint8, the others"):
        folder.read_image(record)


@needs_shared
def test_dubai_opens_with_its_stated_split() -> None:
    folder = open_folder(SHARED / "dubai", protocol="dubai/own5")
    assert {r.name.split("_")[0] for r in folder.records("train")} == {"tile4", "tile5", "tile7", "tile8"}
    assert {r.name.split("_")[0] for r in folder.records("val")} == {"tile1", "tile3"}
    record = folder.records("val")[0]
    assert folder.read_image(record).shape == (record.height, record.width, 3)
    assert set(np.unique(folder.read_mask(record))) <= {0, 1, 2, 3, 4, 255}
    by_place = open_folder(SHARED / "dubai", classes="dubai")
    tiles = [{r.name.split("_")[0] for r in by_place.records(split)} for split in ("train", "val")]
    assert not tiles[0] & tiles[1]


@needs_shared
@pytest.mark.parametrize("fold", [0, 1, 2])
def test_vaihingen_fragment_leaves_one_tile_out(fold: int) -> None:
    folder = open_folder(SHARED / "vaihingen_fragment", protocol=get_protocol("vaihingen_fragment", fold))
    assert [r.name for r in folder.records("val")] == [f"tile_{fold}"]
    assert len(folder.records("train")) == 2
    record = folder.records("val")[0]
    mask, image = folder.read_mask(record), folder.read_image(record)
    assert set(np.unique(mask)) == {0, 1, 2, 3, 4, 255}
    missing = (image == 0).all(axis=-1)
    assert missing.any() and (mask[missing] == 255).mean() > 0.99


def test_manifest_makes_opening_cheap(tmp_path: Path) -> None:
    """A folder with a manifest is opened without reading its images."""
    root = fake_own(tmp_path)
    folder = open_folder(root)
    images = [
        {"name": r.name, "height": 72, "width": 88, "sums": [[1, 5, 25]] * 3}
        for s in ("train", "val")
        for r in folder.records(s)
    ]
    (root / "dataset.json").write_text(json.dumps({"classes": folder.table.to_rows(), "images": images}))
    assert open_folder(root).statistics().mean == (5, 5, 5)
    record = open_folder(root).records("train")[0]
    with Image.open(record.image) as picture:
        picture.resize((2 * 88, 2 * 72)).save(record.image)
    with pytest.raises(UserError, match="is 176 x 144 px, but dataset.json notes 88 x 72 px"):
        open_folder(root).read_image(record)


def as_palette(path: Path, order: list[int]) -> None:
    """Store a colour mask as a palette png whose colours stand in this order."""
    with Image.open(path) as picture:
        colours = np.asarray(picture.convert("RGB"))
    palette = [OWN_COLOURS[i] for i in order]
    ids = np.stack([(colours == colour).all(-1) for colour in palette]).argmax(0).astype(np.uint8)
    stored = Image.fromarray(ids, "P")
    stored.putpalette([part for colour in palette for part in colour])
    stored.save(path)


def test_palette_masks_count_by_their_colours_where_the_table_has_no_ids(tmp_path: Path) -> None:
    """Writers store palettes in the order of first use: the same index then is another class in another file."""
    plain, stored = (fake_own(tmp_path / name, colour=True) for name in ("plain", "stored"))
    for number, path in enumerate(sorted((stored / "masks").iterdir())):
        as_palette(path, [[0, 1, 2], [2, 0, 1], [1, 2, 0]][number % 3])
    one, other = open_folder(plain), open_folder(stored)
    for split in ("train", "val"):
        for a, b in zip(one.records(split), other.records(split), strict=True):
            assert np.array_equal(one.read_mask(a), other.read_mask(b))
    (stored / "classes.csv").unlink()
    with pytest.raises(UserError, match="palettes differ") as caught:
        open_folder(stored)
    assert all(",".join(map(str, colour)) in str(caught.value) for colour in OWN_COLOURS)


def test_a_palette_that_contradicts_the_ids_is_refused(tmp_path: Path) -> None:
    """Ids and colours are given, and the masks were stored as palettes in the order of first use."""
    root = fake_own(tmp_path, colour=True)
    rows = [f"{n},{i},{r},{g},{b}" for i, (n, (r, g, b)) in enumerate(zip(OWN_NAMES, OWN_COLOURS, strict=True))]
    (root / "classes.csv").write_text("\n".join(["name,id,r,g,b", *rows]) + "\n")
    truth = open_folder(root)
    expected = {record.name: truth.read_mask(record) for record in truth.records("train")}
    for order in ([0, 1, 2], [0, 2, 1]):
        for path in (root / "masks").iterdir():
            as_palette(path, order)
        if order == [0, 1, 2]:
            folder = open_folder(root)
            assert all(np.array_equal(folder.read_mask(r), expected[r.name]) for r in folder.records("train"))
    with pytest.raises(UserError, match=r"value 1 is shown in the colour 200,30,30, .* gives to id 2; take the column"):
        open_folder(root)


def test_one_band_masks_need_ids_or_greys(tmp_path: Path) -> None:
    fake_own(tmp_path)
    (tmp_path / "classes.csv").write_text("name,r,g,b\na,10,0,0\nb,0,10,0\nc,0,0,10\n")
    with pytest.raises(UserError, match=r"has one band, with values 0, 1, 2, .* add the column id"):
        open_folder(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        with Image.open(path) as picture:
            Image.fromarray((np.asarray(picture) > 0).astype(np.uint8) * 255).save(path)
    (tmp_path / "classes.csv").write_text("name,r,g,b\nnothing,0,0,0\nsomething,255,255,255\n")
    folder = open_folder(tmp_path)
    assert set(np.unique(folder.read_mask(folder.records("train")[0]))) == {0, 1}


def test_ids_from_one_make_no_phantom_class(tmp_path: Path) -> None:
    fake_own(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        with Image.open(path) as picture:
            Image.fromarray(np.asarray(picture) + 1).save(path)
    folder = open_folder(tmp_path)
    assert folder.table.names == ("class_1", "class_2", "class_3")
    assert set(np.unique(folder.read_mask(folder.records("train")[0]))) == {0, 1, 2}


def test_a_stray_pixel_is_no_class(tmp_path: Path) -> None:
    fake_own(tmp_path)
    path = sorted((tmp_path / "masks").iterdir())[2]
    with Image.open(path) as picture:
        mask = np.array(picture)
    mask[3, 4] = 200
    Image.fromarray(mask).save(path)
    with pytest.raises(UserError, match=f"200: 1 pixels, first in {path.name}") as caught:
        open_folder(tmp_path)
    rows = str(caught.value)[str(caught.value).index("name,id,ignore") :]
    assert "stray_200,200,1" in rows
    (tmp_path / "classes.csv").write_text(rows + "\n")
    folder = open_folder(tmp_path)
    assert folder.table.names == ("class_0", "class_1", "class_2")
    record = next(r for split in ("train", "val") for r in folder.records(split) if r.name == path.stem)
    assert folder.read_mask(record)[3, 4] == 255


@pytest.mark.parametrize(("nodata", "asked"), [(0, True), (2, True), (255, False), (9, False), (None, False)])
def test_a_class_that_the_masks_call_no_data_is_asked_about(nodata: int | None, asked: bool, tmp_path: Path) -> None:
    """Programs that burn polygons give the rest 0 and call it no data; others have the background there."""
    rasterio = pytest.importorskip("rasterio")
    fake_own(tmp_path)
    for path in list((tmp_path / "masks").iterdir()):
        mask = np.asarray(Image.open(path))
        facts = {"height": mask.shape[0], "width": mask.shape[1], "count": 1, "dtype": "uint8", "nodata": nodata}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path.with_suffix(".tif"), "w", driver="GTiff", **facts) as file:
                file.write(mask, 1)
        path.unlink()
    if not asked:
        assert len(open_folder(tmp_path).table.names) == 3
        return
    with pytest.raises(UserError, match=f"hold {nodata}, which their files call no data") as caught:
        open_folder(tmp_path)
    rows = str(caught.value)[str(caught.value).index("name,id,ignore") :]
    (tmp_path / "classes.csv").write_text(rows + "\n")
    folder = open_folder(tmp_path)
    assert len(folder.table.names) == 2 and folder.table.ignored_values[0] == nodata
    record = folder.records("train")[0]
    drawn = read_image(record.masks["full"])[..., 0]
    np.testing.assert_array_equal(folder.read_mask(record) == 255, drawn == nodata)


def test_an_absurd_id_costs_no_memory(tmp_path: Path) -> None:
    fake_own(tmp_path)
    path = sorted((tmp_path / "masks").iterdir())[0]
    with Image.open(path) as picture:
        mask = np.array(picture).astype(np.int32)
    mask[0, 0] = 4_000_000
    path.unlink()
    Image.fromarray(mask, "I").save(path.with_suffix(".tif"))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="4000000: 1 pixels"):
            open_folder(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("table", [True, False])
def test_jpg_masks_are_refused(colour: bool, table: bool, tmp_path: Path) -> None:
    """Blurred ids are ids of other classes: one in ten pixels of a mask may be wrong, and no table can tell."""
    fake_own(tmp_path, colour=colour)
    for path in list((tmp_path / "masks").iterdir()):
        with Image.open(path) as picture:
            picture.save(path.with_suffix(".jpg"), quality=60)
        path.unlink()
    if table:
        (tmp_path / "classes.csv").write_text("name,id\n" + "".join(f"class {i},{i}\n" for i in range(10)))
    with pytest.raises(
        UserError, match=r"6 masks of .* are jpg, which blurs ids and colours, e.g. .*: save them as png"
    ):
        open_folder(tmp_path)


def test_masks_of_one_bit_follow_the_table(tmp_path: Path) -> None:
    """Their file says on or off: a table gives on the id 1, or 255 as a picture shows it; nothing may get lost."""
    root = fake_own(tmp_path / "mine")
    truth = {}
    for path in (root / "masks").iterdir():
        truth[path.stem] = np.asarray(Image.open(path)) == 2
        Image.fromarray(truth[path.stem]).save(path)
    tables = [f"name,id\nground,0\nhouse,{on}\n" for on in (1, 255)]
    tables.append("name,r,g,b\nground,0,0,0\nhouse,255,255,255\n")
    for table in tables:
        (root / "classes.csv").write_text(table)
        folder = open_folder(root)
        for record in folder.records("train"):
            assert np.array_equal(folder.read_mask(record), truth[record.name]), table
    (root / "classes.csv").unlink()
    with pytest.raises(UserError, match="hold only 0 and 255"):
        open_folder(root)
