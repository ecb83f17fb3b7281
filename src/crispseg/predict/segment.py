"""`segment`: an image in, its class map out, for use from Python."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.config import check_arguments
from crispseg.errors import UserError
from crispseg.geo.grid import Grid
from crispseg.geo.scale import at_scale, check_scale, state_size
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load
from crispseg.predict.bands import Pace
from crispseg.predict.default import open_default
from crispseg.predict.engines import find_engine
from crispseg.predict.evaluate import check_card
from crispseg.predict.plan import check_tile, make_plan
from crispseg.predict.work import Settings, Work
from crispseg.raster import values
from crispseg.raster.products import Products
from crispseg.raster.resample import ResampledSource, classes_over
from crispseg.raster.source import ArraySource, Source
from crispseg.reading import DAMAGE, reason

_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")  # that pillow may try; others run programs

if TYPE_CHECKING:
    from PIL import Image


def segment(
    image: NDArray[Any] | Image.Image | str | os.PathLike[str],
    model: SegmentationModel | str | os.PathLike[str] | None = None,
    *,
    resolution: float | str | None = None,
    pixel_size: float | None = None,
    nodata: float | None = None,
    tile: int = 1024,
    overlap: int | None = None,
    tta: str = "none",
    precision: str = "auto",
    device: str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    exact: bool = False,
    any_values: bool = False,
) -> NDArray[np.uint8]:
    """The (H, W) class ids of an image, 255 where it has no data.

        classes = crispseg.segment("city.tif")
        classes = crispseg.segment(array, "runs/mine", pixel_size=0.3)

    An image whose pixels are of a size that the model has not seen is shown to it at the nearest size that it has, with
    a Python warning; the class ids are brought back to the image's own pixels, so they always fit it. That needs a
    georeferenced file or `pixel_size`: other images are shown as they are. Scenes whose map is too large for memory
    are for `crispseg.predict`.

    Args:
        image: A file, a PIL image, or an array (H, W, bands) or (H, W) of raw pixel values. A masked array's masked
            pixels, NaN and transparent pixels are no data. A file is read with rasterio where that is installed (any
            raster, window by window) and with Pillow elsewhere.
        model: A model, used on the device it is on, or the folder or name of a saved one, used on an accelerator if
            there is one; None: `crisp_nano_aerial`, with a warning that says what it was trained on.
        resolution: Show the image with so many metres per pixel, `"model"`: with the model's own, `"scene"`: as it is;
            None: as it is where the model has seen such pixels, else with the nearest that it has.
        pixel_size: What a pixel measures in metres, where the image does not tell it.
        nodata: A number that stands for no data, where the image does not tell it.
        tile: Side of a tile in pixels.
        overlap: Least overlap of tiles in pixels; None: a quarter of a tile.
        tta: Averaging over views of the image: `none`, `flip` (4 views) or `d4` (8).
        precision: `float32`, `bfloat16`, or `auto`: bfloat16 where model and device are made for it.
        device: `cpu`, `cuda`, `cuda:1`; None: see `model`.
        batch_size: Tiles evaluated together; None: as many as fit into memory.
        workers: Threads that read; None: chosen for the machine.
        exact: No tiles: the image is run as a whole, in bounded memory (CRISP and UPerNet on VSSD only).
        any_values: Take pixels that cannot be of the kind the model was trained on (16 bit for an 8-bit model), which
            are refused otherwise.
    """
    check_arguments(segment, locals())
    check_scale(resolution, pixel_size)
    values.check_nodata(nodata)
    if isinstance(model, SegmentationModel):
        device = device or _device_of(model)
    elif model is not None:
        model = load(model)
    else:
        model, told = open_default()
        warnings.warn(told, stacklevel=2)
    check_card(model)
    check_tile(tile)
    settings = Settings(tile, overlap, tta, precision, device, exact).settled(model)
    source, remarks = _source(image, model, _Shown(resolution, pixel_size, any_values, nodata))
    for remark in remarks:
        warnings.warn(remark, stacklevel=2)
    plan = make_plan(source.height, source.width, tile, overlap)
    was_training = model.training
    classes = np.empty((source.height, source.width), np.uint8)
    try:
        work = Work(source, model, plan, settings, Products(), Pace(batch_size, workers))
        engine = find_engine("exact" if exact else "local")
        for band in engine.bands(work, [range(plan.strips)], lambda: None):
            classes[band.top : band.top + len(band.classes)] = band.classes
        return classes_over(source.source, classes) if isinstance(source, ResampledSource) else classes
    finally:
        source.close()
        model.train(was_training)


class _Shown(NamedTuple):
    """How the model is shown the image."""

    resolution: float | str | None
    pixel_size: float | None
    any_values: bool
    nodata: float | None


def _device_of(model: SegmentationModel) -> str:
    parameter = next(model.parameters(), None)
    return "cpu" if parameter is None else str(parameter.device)


def _source(image: Any, model: SegmentationModel, shown: _Shown) -> tuple[Source, Sequence[str]]:
    """The image as the model sees it, and what the user should know."""
    if isinstance(image, str | os.PathLike):
        return _file_source(os.fspath(image), model, shown)
    if hasattr(image, "convert") and hasattr(image, "getbands"):
        return _at_scale("the image", _picture_source(image, model, shown), model, shown)
    if not isinstance(image, np.ndarray):
        raise UserError(f"an image must be an array, a PIL image or a path, not {type(image).__name__}")
    source = ArraySource(np.ma.getdata(image), model.info.mean, _present(image, shown.nodata))
    if not shown.any_values and values.may_differ(model.info, image.dtype):
        windows = values.some_windows(source.height, source.width)
        pixels = [source.read(window) for window in windows]
        sample = np.concatenate([each.values[:, each.present] for each in pixels], axis=1)
        reason = values.unfit(model.info, image.dtype, sample)
        if reason:
            raise values.refusal("the image", reason)
    return _at_scale("the image", source, model, shown)


def _at_scale(name: str, source: Source, model: SegmentationModel, shown: _Shown) -> tuple[Source, Sequence[str]]:
    """An image without a reference system; one without pixels is left to the plan, which refuses it."""
    if not source.height or not source.width:
        return source, ()
    grid, _ = state_size(name, Grid(source.height, source.width), shown.pixel_size)
    scaled = at_scale(name, source, grid, model, shown.resolution)
    return scaled.source, scaled.remarks


def _present(image: NDArray[Any], nodata: float | None) -> NDArray[np.bool_] | None:
    if nodata is not None:
        image = np.ma.masked_where(np.ma.getdata(image) == nodata, image)
    if not isinstance(image, np.ma.MaskedArray):
        return None
    has_data = ~np.ma.getmaskarray(image)
    return has_data if image.ndim == 2 else np.logical_or.reduce(has_data, axis=2)


def _file_source(path: str, model: SegmentationModel, shown: _Shown) -> tuple[Source, Sequence[str]]:
    try:
        importlib.import_module("rasterio")
    except ImportError:
        from PIL import Image

        if not Path(path).is_file():
            raise UserError(f"there is no file {path}") from None
        try:
            with Image.open(path, formats=_FORMATS) as picture:
                return _at_scale(path, _picture_source(picture, model, shown), model, shown)
        except (*DAMAGE, Image.DecompressionBombError) as error:
            raise UserError(f"{path} cannot be read as an image: {reason(error)}") from error
    from crispseg.geo.scenes import Reading, open_scene

    scene = open_scene(path, model, Reading(**shown._asdict()))
    return scene.source, scene.about_image


def _picture_source(picture: Image.Image, model: SegmentationModel, shown: _Shown) -> Source:
    """A PIL image; palettes are expanded and an alpha channel says where there is data."""
    if picture.mode == "P" and model.in_channels != 1:
        picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
    pixels = np.asarray(picture)
    if picture.mode in ("LA", "RGBA") and pixels.shape[2] == model.in_channels + 1:
        clear = np.broadcast_to(pixels[:, :, -1:] == 0, (*pixels.shape[:2], model.in_channels))
        pixels = np.ma.masked_where(clear, pixels[:, :, :-1])
    return ArraySource(np.ma.getdata(pixels), model.info.mean, _present(pixels, shown.nodata))
