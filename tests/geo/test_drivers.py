"""A file decides neither what reads it nor what else is read: no network, no file outside what was named."""

import shutil
import socket
import threading

import numpy as np
import pytest
import rasterio
from rasterio.errors import RasterioIOError

from crispseg.errors import UserError
from crispseg.geo.drivers import open_allowed
from crispseg.geo.reader import descriptions, open_raster, raster_files
from crispseg.geo.scenes import Reading, open_scene
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.predict.standins import StandIn

VRT = """<VRTDataset rasterXSize="20" rasterYSize="20"><VRTRasterBand dataType="Byte" band="1"{kind}>{inside}
</VRTRasterBand></VRTDataset>"""
SOURCE = '<SimpleSource><SourceFilename relativeToVRT="1">{}</SourceFilename><SourceBand>1</SourceBand></SimpleSource>'
RAW = "<SourceFilename>/etc/passwd</SourceFilename><ImageOffset>0</ImageOffset><PixelOffset>1</PixelOffset>"
WMS = """<GDAL_WMS><Service name="TMS"><ServerUrl>http://127.0.0.1:{}/${{z}}/${{x}}/${{y}}.png</ServerUrl></Service>
<DataWindow><UpperLeftX>0</UpperLeftX><UpperLeftY>0</UpperLeftY><LowerRightX>8</LowerRightX>
<LowerRightY>-8</LowerRightY><SizeX>20</SizeX><SizeY>20</SizeY><TileLevel>0</TileLevel></DataWindow>
<BlockSizeX>8</BlockSizeX><BlockSizeY>8</BlockSizeY><BandsCount>3</BandsCount></GDAL_WMS>"""


@pytest.fixture
def server():
    """Counts who calls."""
    listener = socket.create_server(("127.0.0.1", 0))
    calls = []

    def serve():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            calls.append(client.recv(100))
            client.close()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], calls
    listener.close()


@pytest.fixture
def photo(tmp_path):
    return write_raster(tmp_path / "photo.tif", random_pixels(1, 20, 20), **UTM)


def read(path, drivers=()):
    with open_raster(str(path), drivers) as dataset:
        dataset.mask_flag_enums, dataset.files, dataset.overviews(1)
        return dataset.read()


def test_text_in_a_tif_calls_nobody(tmp_path, server):
    port, calls = server
    evil = tmp_path / "evil.tif"
    evil.write_text(WMS.format(port))
    with pytest.raises(UserError, match="not GTiff: .*--allow-drivers"):
        read(evil)
    with pytest.raises(UserError, match="cannot be read"):
        open_scene(str(evil), StandIn(), Reading())
    assert not calls
    with pytest.raises(Exception):  # noqa: B017  # allowed, it asks the server, which has no tiles
        read(evil, ("WMS",))
    assert calls, "the test's server works"


def test_text_in_a_tif_reads_no_other_file(tmp_path, photo):
    for name in ("evil.tif", "evil.png", "evil.img", "evil", "evil.xyz"):
        (tmp_path / name).write_text(VRT.format(kind="", inside=SOURCE.format("photo.tif")))
        with pytest.raises(UserError, match="cannot be read as a raster"):
            read(tmp_path / name)
    assert read(tmp_path / "evil.tif", ("VRT",)).shape == (1, 20, 20)
    assert read(tmp_path / "evil.tif", ("all",)).shape == (1, 20, 20)


@pytest.mark.parametrize(
    ("inside", "kind", "reason"),
    [
        (RAW, ' subClass="VRTRawRasterBand"', "VRTRawRasterBand"),
        (SOURCE.format("/etc/passwd"), "", "no raster of a common kind"),
        (SOURCE.format("evil.tif"), "", "no raster of a common kind"),
        (SOURCE.format("/vsicurl/http://127.0.0.1:1/x.tif"), "", "vsicurl"),
        (SOURCE.format("http://127.0.0.1:1/x.tif"), "", "http"),
        (SOURCE.format("WMS:whatever:x"), "", "WMS:"),
        (SOURCE.format("outer.vrt"), "", "names itself"),
        (SOURCE.format("inner.vrt"), "", "inner.vrt reads .*evil.tif"),
        (SOURCE.format("."), "", "no file"),
        ("<PixelFunctionLanguage>Python</PixelFunctionLanguage>", ' subClass="VRTDerivedRasterBand"', "Python code"),
    ],
)
def test_a_vrt_is_made_of_rasters_only(tmp_path, photo, inside, kind, reason):
    (tmp_path / "evil.tif").write_text("<GDAL_WMS/>")
    (tmp_path / "inner.vrt").write_text(VRT.format(kind="", inside=SOURCE.format("evil.tif")))
    (tmp_path / "outer.vrt").write_text(VRT.format(kind=kind, inside=inside))
    with pytest.raises(UserError, match=reason) as refused:
        read(tmp_path / "outer.vrt")
    assert "--allow-drivers VRT" in str(refused.value)


def test_honest_vrts_are_read_and_all_their_files_known(tmp_path, photo):
    (tmp_path / "inner.vrt").write_text(VRT.format(kind="", inside=SOURCE.format("photo.tif")))
    (tmp_path / "outer.vrt").write_text(VRT.format(kind="", inside=SOURCE.format("inner.vrt")))
    np.testing.assert_array_equal(read(tmp_path / "outer.vrt"), read(photo))
    with open_raster(str(tmp_path / "outer.vrt")) as dataset:
        assert set(raster_files(dataset, "")) == {str(tmp_path / n) for n in ("outer.vrt", "inner.vrt", "photo.tif")}
    (tmp_path / "bomb.vrt").write_text('<!DOCTYPE x [<!ENTITY a "b">]><VRTDataset/>')
    with pytest.raises(UserError, match="entities"):
        read(tmp_path / "bomb.vrt")
    (tmp_path / "text.vrt").write_text("hello")
    with pytest.raises(UserError, match="is no VRT"):
        read(tmp_path / "text.vrt")


def test_files_beside_a_tif_call_nobody(tmp_path, server, photo):
    port, calls = server
    for ending in (".ovr", ".msk"):
        shutil.copy(photo, tmp_path / "evil.tif")
        (tmp_path / f"evil.tif{ending}").write_text(WMS.format(port))
        with pytest.raises(UserError, match="is no TIFF"):
            read(tmp_path / "evil.tif")
        (tmp_path / f"evil.tif{ending}").unlink()
    item = f'<MDI key="OVERVIEW_FILE">/vsicurl/http://127.0.0.1:{port}/x.tif</MDI>'
    side = f'<PAMDataset><Metadata domain="OVERVIEWS">{item}</Metadata></PAMDataset>'
    (tmp_path / "evil.tif.aux.xml").write_text(side)
    with pytest.raises(UserError, match="names another file"):
        read(tmp_path / "evil.tif")
    assert not calls


@pytest.mark.parametrize("name", ["WMTS:http://127.0.0.1:1/x", "<VRTDataset/>", "NETCDF:a.nc:b", "EEDAI:x"])
def test_names_that_are_drivers_must_be_allowed(name):
    with pytest.raises(UserError, match="--allow-drivers"):
        read(name)


def test_what_gdal_says_is_told_without_its_full_stop(tmp_path):
    (tmp_path / "a.png").write_text("no picture", encoding="utf-8")
    with pytest.raises(UserError, match="supported file format; other drivers"):
        open_raster(str(tmp_path / "a.png"))


def test_netcdf_is_named_as_what_it_needs(tmp_path):
    (tmp_path / "a.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(UserError, match="--allow-drivers netCDF"):
        read(tmp_path / "a.nc")


def test_a_latin_1_description_is_no_description(tmp_path):
    path = tmp_path / "latin.tif"
    write_raster(path, random_pixels(3, 20, 20), descriptions=["abcdXYZ", "two", "three"], **UTM)
    path.write_bytes(path.read_bytes().replace(b"abcdXYZ", b"abcd\xe4\xf6\xfc"))
    with open_raster(str(path)) as dataset:
        assert descriptions(dataset) == (None, None, None)
    assert open_scene(str(path), StandIn(), Reading()).bands == (1, 2, 3)


def test_damage_that_gdal_tells_in_its_own_bytes_is_told(tmp_path, monkeypatch):
    """rasterio takes GDAL's messages for UTF-8."""

    def broken(path, driver):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    (tmp_path / "s.gpkg").write_bytes(b"SQLite format 3\0")
    monkeypatch.setattr(rasterio, "open", broken)
    with pytest.raises(RasterioIOError, match="not GPKG: 'utf-8' codec"):
        open_allowed(str(tmp_path / "s.gpkg"))
