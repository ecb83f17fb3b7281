import rasterio

from crispseg.geo.notes import stamps_of_pixels
from tests.geo.rasters import UTM, random_pixels, write_raster


def test_statistics_change_no_stamp_and_all_else_does(tmp_path):
    pixels = random_pixels(1, 10, 10)
    path, beside = write_raster(tmp_path / "a.png", pixels, driver="PNG", **UTM), tmp_path / "a.png.aux.xml"
    placed = stamps_of_pixels([path, str(beside)])
    assert set(placed) == {path, str(beside)}, "the transform is in the notes"
    with rasterio.open(path) as dataset:
        dataset.stats()
    assert b"STATISTICS_" in beside.read_bytes() and stamps_of_pixels([path, str(beside)]) == placed
    band = b'<PAMRasterBand band="1">'
    beside.write_bytes(beside.read_bytes().replace(band, band + b"<NoDataValue>7</NoDataValue>"))
    assert stamps_of_pixels([path, str(beside)])[str(beside)] != placed[str(beside)]
    for damaged in (b"", b"<PAMDataset>", b"\xff", b"<!DOCTYPE a><PAMDataset/>"):
        beside.write_bytes(damaged)
        assert str(beside) in stamps_of_pixels([path, str(beside)])
