"""What the extensions of STAC ask of an item, as far as ours uses them; their own schemas are on the network.

projection 2.0, raster 1.1, classification 2.0: which fields there are, where they may stand, and what they hold.
"""

import re

_VERSIONS = {"projection": "v2.0.0", "raster": "v1.1.0", "classification": "v2.0.0"}
_PREFIXES = {"projection": "proj:", "raster": "raster:", "classification": "classification:"}
_KINDS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}


def check_extensions(item):
    """Raises an AssertionError that names what an extension does not allow; returns the extensions used."""
    used = set()
    holders = [item["properties"], *item["assets"].values()]
    for name, prefix in _PREFIXES.items():
        fields = {key for holder in holders for key in holder if key.startswith(prefix)}
        address = f"https://stac-extensions.github.io/{name}/{_VERSIONS[name]}/schema.json"
        assert (address in item["stac_extensions"]) == bool(fields), f"{name} is declared where it is used, else not"
        used |= {name} if fields else set()
    assert len(item["stac_extensions"]) == len(set(item["stac_extensions"])) == len(used), "nothing else is declared"
    for holder in holders:
        for key, value in holder.items():
            if key.startswith(tuple(_PREFIXES.values())):
                assert key in _FIELDS, f"no extension has a field {key}"
                _FIELDS[key](value)
    return used


def _code(value):
    assert value is None or re.fullmatch(r"[A-Z]+:[0-9A-Za-z]+", value), value


def _wkt(value):
    from rasterio.crs import CRS

    if value is not None:
        assert re.match(r"[A-Z]+CRS\[", value), "WKT1 has PROJCS and GEOGCS"
        assert CRS.from_wkt(value)


def _shape(value):
    assert len(value) == 2 and all(type(side) is int and side > 0 for side in value), value


def _transform(value):
    assert len(value) in (6, 9) and all(type(number) in (int, float) for number in value), value
    assert len(value) == 6 or value[6:] == [0, 0, 1], value


def _bands(value):
    assert value
    for band in value:
        assert set(band) <= {"nodata", "data_type", "sampling", "spatial_resolution", "scale"}, band
        assert band["data_type"] in _KINDS and band["sampling"] in ("area", "point"), band
        assert all(type(band[key]) in (int, float) for key in band if key not in ("data_type", "sampling")), band


def _classes(value):
    assert value and len({entry["value"] for entry in value}) == len(value), "each value once"
    for entry in value:
        assert set(entry) <= {"value", "name", "description", "color_hint", "nodata"}, entry
        assert type(entry["value"]) is int and re.fullmatch(r"[0-9A-Za-z_-]+", entry["name"]), entry
        assert isinstance(entry.get("description", ""), str) and isinstance(entry.get("nodata", False), bool), entry
        assert re.fullmatch(r"[0-9A-F]{6}", entry.get("color_hint", "000000")), entry


_FIELDS = {
    "proj:code": _code,
    "proj:wkt2": _wkt,
    "proj:shape": _shape,
    "proj:transform": _transform,
    "raster:bands": _bands,
    "classification:classes": _classes,
}
