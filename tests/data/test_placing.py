"""Image and mask of one size that do not lie alike: told by the files, never trained on."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data import open_folder
from crispseg.errors import UserError
from tests.fakedata import fake_own

rasterio = pytest.importorskip("rasterio")
from rasterio import Affine  # noqa: E402
from rasterio.errors import NotGeoreferencedWarning  # noqa: E402

UTM = Affine(0.3, 0, 400_000, 0, -0.3, 5_000_000)
DEGREES = Affine(1e-6, 0, 8.5, 0, -1e-6, 47.3)
TURNED = UTM @ Affine.rotation(30)


def placed(root: Path, image: Affine | None, mask: Affine | None) -> Path:
    """Our own folder with all files as tifs, the masks' pixels where `mask` says."""
    fake_own(root)
    for folder, place in (("images", image), ("masks", mask)):
        for path in sorted((root / folder).iterdir()):
            pixels = np.atleast_3d(np.asarray(Image.open(path)))
            height, width, bands = pixels.shape
            facts = {"height": height, "width": width, "count": bands, "dtype": pixels.dtype}
            if place is not None:
                facts |= {"crs": "EPSG:32632", "transform": place}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                with rasterio.open(path.with_suffix(".tif"), "w", driver="GTiff", **facts) as file:
                    file.write(np.moveaxis(pixels, -1, 0))
            path.unlink()
    return root


@pytest.mark.parametrize(
    ("image", "change", "off"),
    [
        (UTM, Affine.translation(0, 5), "5"),
        (UTM, Affine.translation(3, 4), "5"),
        (UTM, Affine.scale(2), ""),
        (UTM, Affine.scale(1, -1), ""),
        (DEGREES, Affine.translation(-2000, 0), "2000"),
        (TURNED, Affine.translation(6, 8), "10"),
    ],
)
def test_a_mask_of_other_ground_is_refused(image: Affine, change: Affine, off: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"lies elsewhere on the ground than its image .*: a corner is {off}"):
        open_folder(placed(tmp_path, image, image @ change))


@pytest.mark.parametrize("image", [UTM, DEGREES, TURNED])
@pytest.mark.parametrize("change", [Affine.identity(), Affine.translation(0.5, 0.5)])
def test_masks_on_the_grid_of_their_images_are_taken(image: Affine, change: Affine, tmp_path: Path) -> None:
    assert open_folder(placed(tmp_path, image, image @ change)).records("train")


@pytest.mark.parametrize(("image", "mask"), [(UTM, None), (None, UTM), (None, None)])
def test_files_without_a_place_say_nothing(image: Affine | None, mask: Affine | None, tmp_path: Path) -> None:
    assert open_folder(placed(tmp_path, image, mask)).records("train")


@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 6, 9])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_a_picture_to_be_shown_turned_is_refused(suffix: str, orientation: int, tmp_path: Path) -> None:
    root = fake_own(tmp_path)
    path = sorted((root / "images").iterdir())[1]
    exif = Image.Exif()
    exif[274] = orientation
    how = {"tiffinfo": {274: orientation}} if suffix == ".tif" else {"exif": exif}
    with Image.open(path) as picture:
        square = picture.crop((0, 0, 32, 32))
    path.unlink()
    square.save(path.with_suffix(suffix), **how)
    mask = root / "masks" / path.name
    with Image.open(mask) as picture:
        picture.crop((0, 0, 32, 32)).save(mask)
    if orientation in (0, 1, 9):  # upright, or a note that says nothing
        assert open_folder(root).records("train")
        return
    with pytest.raises(UserError, match=r"has a note \(EXIF\) that it is to be shown turned or mirrored"):
        open_folder(root)
