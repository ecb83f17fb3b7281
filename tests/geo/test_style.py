"""Maps and polygons open named and coloured: read back by GDAL, by sqlite, and by real QGIS where it is installed."""

import functools
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
import rasterio

from crispseg.geo.maps import Legend, style_paths, write_maps
from crispseg.geo.style import Style, sidecars
from crispseg.outputs import Workplace
from tests.geo.rasters import UTM, write_raster
from tests.predict.standins import StandIn

NAMES = ("roof & wall", 'the "street"', "<tree>", "Wasser ü")
COLOURS = ((200, 10, 10), (120, 120, 120), (0, 160, 30), (0, 60, 220))


def make_map(folder, compress="deflate"):
    """A class map of 60 x 50 px with its style, and its polygons."""
    from crispseg.geo.grid import Grid
    from crispseg.geo.maps import MapChoice
    from crispseg.geo.vectorize import vectorize_map
    from crispseg.raster.products import Band

    classes = np.arange(60)[:, None].repeat(50, 1).astype(np.uint8) // 15
    classes[:5, :5] = 255
    with rasterio.open(write_raster(folder / "like.tif", classes, **UTM)) as like:
        grid = Grid(60, 50, tuple(like.transform)[:6], like.crs.to_wkt())
    legend = Legend("stand_in", "0", NAMES, COLOURS)
    target = folder / "map.tif"
    place, choice = Workplace(target), MapChoice(compress=compress)
    made, _ = write_maps([Band(0, 0, classes)], place, target, grid, legend, choice)
    for what, path in {**style_paths(target), **choice.paths(target)}.items():
        os.replace(made[what], path)
    place.remove()
    vectorize_map(str(target), str(folder / "map.gpkg"))
    return target, classes


@functools.cache
def system_python():
    """A Python that has QGIS, or None."""
    for python in dict.fromkeys(filter(None, ("/usr/bin/python3", shutil.which("python3")))):
        if Path(python).exists() and not run_quietly(python, "-c", "import qgis.core").returncode:
            return python
    return None


def run_quietly(*words):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GDAL", "PROJ", "VIRTUAL"))}
    clean.update(QT_QPA_PLATFORM="offscreen")
    return subprocess.run([*map(str, words)], capture_output=True, text=True, env=clean, timeout=120)


def test_gdal_sees_only_our_classes_named_and_counted(tmp_path):
    target, classes = make_map(tmp_path)
    with rasterio.open(target) as dataset:
        assert dataset.colormap(1) == {k: (*colour, 255) for k, colour in enumerate(COLOURS)}
        assert dataset.nodata == 255 and dataset.colorinterp[0].name == "palette"
    band = Xml.parse(sidecars(target)[0]).getroot().find("PAMRasterBand")
    assert [name.text for name in band.find("CategoryNames")] == list(NAMES)
    table = band.find("GDALRasterAttributeTable")
    rows = [[cell.text for cell in row] for row in table.findall("Row")]
    counts = np.bincount(classes.ravel(), minlength=4)
    assert rows == [[str(k), NAMES[k], str(counts[k]), *map(str, COLOURS[k])] for k in range(4)], (
        "value, class, count, red, green, blue"
    )


def test_the_tif_alone_still_has_its_colours(tmp_path):
    target, _ = make_map(tmp_path)
    for path in sidecars(target):
        path.unlink()
    with rasterio.open(target) as dataset:
        assert [dataset.colormap(1)[k][:3] for k in range(4)] == list(COLOURS)


def test_the_geopackage_holds_one_default_style(tmp_path):
    make_map(tmp_path)
    database = sqlite3.connect(tmp_path / "map.gpkg")
    rows = database.execute(
        "SELECT f_table_name, f_geometry_column, useAsDefault, styleQML FROM layer_styles"
    ).fetchall()
    database.close()
    assert [row[:3] for row in rows] == [("classes", "geom", 1)]
    categories = Xml.fromstring(rows[0][3]).find("renderer-v2").find("categories")
    assert [category.get("value") for category in categories] == list(NAMES)


def test_qgis_opens_both_coloured_and_named(tmp_path):
    if system_python() is None:
        pytest.skip("QGIS is not installed (Debian: python3-qgis)")
    target, _ = make_map(tmp_path)
    bare = shutil.copy(target, tmp_path / "bare.tif")
    shutil.copy(sidecars(target)[0], f"{bare}.aux.xml")
    script = Path(__file__).with_name("in_qgis.py")
    told = run_quietly(system_python(), script, target, bare, f"{tmp_path / 'map.gpkg'}|layername=classes")
    assert told.returncode == 0, told.stderr
    styled, plain, polygons = json.loads(told.stdout.splitlines()[-1])
    colours = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in COLOURS]
    expected = [[k, NAMES[k], colours[k]] for k in range(4)]
    assert styled == {"valid": True, "renderer": "paletted", "classes": expected, "crs": "EPSG:32633"}
    assert plain == styled, "the .aux.xml alone is enough"
    assert polygons["valid"] and polygons["renderer"] == "categorizedSymbol" and polygons["crs"] == "EPSG:32633"
    assert polygons["classes"] == [[NAMES[k], NAMES[k], colours[k]] for k in range(4)]


def test_gdal_of_the_system_reads_names_and_attribute_table(tmp_path):
    """rasterio has no word for either."""
    target, _ = make_map(tmp_path)
    code = (
        "import sys, json; from osgeo import gdal; file = gdal.Open(sys.argv[1]); band = file.GetRasterBand(1);"
        "table = band.GetDefaultRAT(); rows = range(table.GetRowCount());"
        "print(json.dumps([band.GetCategoryNames(), [table.GetValueAsString(k, 1) for k in rows]]))"
    )
    told = run_quietly("/usr/bin/python3", "-c", code, target)
    if "No module named 'osgeo'" in told.stderr or not Path("/usr/bin/python3").exists():
        pytest.skip("the system has no GDAL for Python")
    assert json.loads(told.stdout) == [list(NAMES), list(NAMES)]


def test_names_that_no_xml_can_hold(tmp_path):
    style = Style(("bell\x07", "ok"), COLOURS[:2])
    for text in (style.raster_qml(), style.vector_qml((0, 1)), style.gdal_sidecar((1, 2))):
        Xml.fromstring(text)


def test_a_models_legend_has_a_colour_for_every_class():
    style = Legend.of(StandIn(), "0").style
    assert style.always == (0, 1, 2, 3, 4) and len(style.palette) == 5
