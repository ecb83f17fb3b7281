"""Objects in a real S3 server and files of a web server, through GDAL's virtual file systems."""

import datetime
import socket

import numpy as np
import pytest
import rasterio

from crispseg.errors import UserError
from crispseg.geo import store
from crispseg.geo.reader import open_raster
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.geo.servers import keys_in, plain_server, range_server, requests_to, s3_server


def test_names():
    assert store.gdal_name("s3://b/a/x.tif") == "/vsis3/b/a/x.tif"
    assert store.gdal_name("gs://b/x.tif") == "/vsigs/b/x.tif"
    assert store.gdal_name("az://c/x.tif") == "/vsiaz/c/x.tif"
    assert store.gdal_name("https://host/x.tif?sig=1") == "/vsicurl/https://host/x.tif?sig=1"
    assert store.gdal_name("HTTPS://host/X.tif") == "/vsicurl/https://host/X.tif", "GDAL knows small letters only"
    for local in ("x.tif", "/data/x.tif", "/vsizip/a.zip/x.tif", "GPKG:x.gpkg:y", "s3://", "C:/x.tif"):
        assert store.gdal_name(local) == local and not store.is_remote(local)


def test_put_read_and_remove(bucket, tmp_path):
    data = np.random.default_rng(0).bytes(20 << 20)  # more than a piece: several parts
    (tmp_path / "x.bin").write_bytes(data)
    name = f"{bucket}/folder/x.bin"
    assert not store.exists(name)
    store.put(tmp_path / "x.bin", name)
    assert store.exists(name) and store.size_of(name) == len(data)
    assert store.read_bytes(name, 1 << 30) == data
    first = store.fingerprint(name)
    assert abs(store.written_at(name) - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=5)
    (tmp_path / "x.bin").write_bytes(data[::-1])
    store.put(tmp_path / "x.bin", name)
    assert store.fingerprint(name) != first, "as long, but another object"
    with pytest.raises(UserError, match="20 MiB, more than is read"):
        store.read_bytes(name, 1 << 20)
    store.remove(name)
    assert not store.exists(name)


def test_the_right_to_write_is_tried(bucket, s3):
    store.check_writable(f"{bucket}/maps")
    assert keys_in(s3) == [], "nothing stays behind"
    with pytest.raises(UserError, match="s3://nobody/maps cannot be written: The specified bucket does not exist"):
        store.check_writable("s3://nobody/maps")
    for ask in (store.exists, store.list_folder):
        with pytest.raises(UserError, match="The specified bucket does not exist; check the name"):
            ask("s3://nobody/maps")
    with pytest.raises(UserError, match="can be read but not written"):
        store.check_writable("https://host/maps")


def test_missing_credentials_are_told(bucket, monkeypatch):
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("CPL_AWS_AUTODETECT_EC2", "NO")
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(UserError, match="credentials are taken from AWS_ACCESS_KEY_ID"):
        store.check_writable(f"{bucket}/maps")


def test_an_unknown_access_key_is_no_absent_object(monkeypatch, tmp_path):
    """A store says of it that it "does not exist in our records"."""
    pytest.importorskip("moto")
    with s3_server(strict=True) as environment:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        for ask in (store.exists, store.list_folder, store.check_writable, open_raster):
            with pytest.raises(UserError, match=r"Access Key Id .* credentials are taken from AWS_ACCESS_KEY_ID"):
                ask("s3://bucket/maps")


def test_a_server_that_is_down_is_no_absent_object(monkeypatch):
    """Also when it is asked again, since GDAL remembers that there was nothing."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("GDAL_HTTP_MAX_RETRY", "0")
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be looked at: .*check the name and the network"):
            store.exists(f"http://127.0.0.1:{port}/x.tif")
    with pytest.raises(UserError, match="cannot be looked at: .*check the name and the network"):
        open_raster(f"http://127.0.0.1:{port}/y404.tif")


def test_a_server_without_ranges_is_told_of(tmp_path):
    write_raster(tmp_path / "x.tif", random_pixels(3, 700, 900), **UTM)
    with plain_server(tmp_path) as address:
        with pytest.raises(UserError, match="not supported by this server; copy the file here"):
            open_raster(f"{address}/x.tif")
        with pytest.raises(UserError, match="cannot be listed, as no folder of a web server can"):
            store.list_folder(f"{address}/")


def test_a_raster_is_read_by_ranges_without_listing_and_with_retries(tmp_path):
    pixels = random_pixels(3, 700, 900, high=250)
    write_raster(tmp_path / "x.tif", pixels, tiled=True, blockxsize=128, blockysize=128, **UTM)
    store.prepare_network()
    with range_server(tmp_path, failures=2) as address:
        with rasterio.open(store.gdal_name(f"{address}/x.tif")) as dataset:
            np.testing.assert_array_equal(dataset.read(window=((0, 64), (0, 64))), pixels[:, :64, :64])
        log = requests_to(address)
        assert not [path for path, _ in log if path.endswith("/")], "no folder was listed"
        asked = [size for _, size in log if size and size != "HEAD"]
        assert asked and len(asked) > 2, "two were refused and asked again"
        read = sum(int(b) - int(a) + 1 for a, b in (size[6:].split("-") for size in asked[2:]))
        assert read < pixels.size / 4, "not the whole file"


def test_a_server_that_knows_no_such_file(tmp_path):
    with range_server(tmp_path) as address:
        assert not store.exists(f"{address}/none.tif")
        with pytest.raises(UserError, match=r"none.tif cannot be read: .*404"):
            store.read_bytes(f"{address}/none.tif", 1 << 20)
