"""Polygons of random maps, in random bands, against scipy's labels and rasterio's burning."""

import itertools

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rasterio.features import rasterize
from scipy import ndimage

from crispseg.geo.grid import Grid
from crispseg.geo.regions import MapRows, find_regions
from crispseg.geo.sieve import sieved


@st.composite
def maps(draw):
    height, width = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    values = st.sampled_from(draw(st.sampled_from([[0, 1], [0, 1, 2, 255], [3], [255], [0, 255]])))
    classes = draw(arrays.arrays(np.uint8, (height, width), elements=values))
    cuts = sorted(draw(st.lists(st.integers(0, height), max_size=5)))
    return classes, [0, *cuts, height]


def bands_of(classes, cuts, confidence=None):
    for top, bottom in itertools.pairwise(cuts):
        yield MapRows(top, classes[top:bottom], None if confidence is None else confidence[top:bottom])


def grid_of(classes):
    return Grid(*classes.shape)


def burnt(regions, classes):
    """The map that the polygons make; more than one polygon over a pixel is an error."""
    shapes = [(region.polygon, region.class_id) for region in regions]
    image = rasterize(shapes, classes.shape, fill=255, dtype="uint8") if shapes else np.full_like(classes, 255)
    assert sum(region.polygon.area for region in regions) == pytest.approx((classes != 255).sum())
    return image


@given(maps())
def test_regions_are_valid_and_cover_the_map_exactly(case):
    classes, cuts = case
    confidence = np.where(classes == 255, 255, classes * 40 + 3).astype(np.uint8)
    regions = list(find_regions(bands_of(classes, cuts, confidence), grid_of(classes)))
    np.testing.assert_array_equal(burnt(regions, classes), classes)
    assert len(regions) == sum(ndimage.label(classes == k)[1] for k in (0, 1, 2, 3))
    for region in regions:
        assert region.polygon.is_valid and region.polygon.geom_type == "Polygon"
        assert region.polygon.area == region.pixels == region.area
        assert region.confidence == region.class_id * 40 + 3


@given(maps(), st.sampled_from([0.5, 1.0, 2.0, 5.0]))
def test_simplified_regions_are_valid_and_still_fit_together(case, tolerance):
    classes, cuts = case
    plain = list(find_regions(bands_of(classes, cuts), grid_of(classes)))
    regions = list(find_regions(bands_of(classes, cuts), grid_of(classes), tolerance))
    polygons = np.array([region.polygon for region in regions], object)
    assert shapely.is_valid(polygons).all()
    assert shapely.coverage_is_valid(polygons)
    assert [r.class_id for r in regions] == [r.class_id for r in plain]
    assert [r.pixels for r in regions] == [r.pixels for r in plain]
    if (classes != 255).all():
        assert shapely.union_all(polygons).equals(shapely.box(0, 0, *classes.shape[::-1]))


def test_simplification_straightens_a_staircase_and_keeps_it_shared():
    rows, cols = np.mgrid[0:90, 0:90]
    classes = (rows + 2 * cols > 135).astype(np.uint8)
    for cuts in ([0, 90], [0, 32, 64, 90]):
        regions = list(find_regions(bands_of(classes, cuts), grid_of(classes), 2.0))
        assert sum(shapely.get_num_coordinates(r.polygon) for r in regions) < 40
        assert shapely.union_all([r.polygon for r in regions]).equals(shapely.box(0, 0, 90, 90))
        truth = [
            shapely.union_all([shapely.box(x, y, x + 1, y + 1) for y, x in np.argwhere(classes == r.class_id)])
            for r in regions
        ]
        assert all(r.polygon.symmetric_difference(t).area < 0.02 * t.area for r, t in zip(regions, truth, strict=True))


def merge_by_brute_force(classes, min_area):
    """Again and again: the smallest region goes to the neighbour with the longest border, the larger, the earlier."""
    classes = classes.astype(int)
    labels = np.zeros(classes.shape, int)
    for k in np.unique(classes[classes != 255]):
        part, _ = ndimage.label(classes == k)
        labels[part > 0] = part[part > 0] + labels.max()
    class_of = {label: classes[labels == label][0] for label in np.unique(labels[labels > 0])}
    while True:
        sizes = {label: (labels == label).sum() for label in np.unique(labels[labels > 0])}
        small = [label for label, size in sizes.items() if size < min_area]
        if not small:
            break
        label = min(small, key=lambda k: (sizes[k], k))
        border = {}
        for y, x in np.argwhere(labels == label):
            for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= v < labels.shape[0] and 0 <= u < labels.shape[1] and labels[v, u] not in (label, 0):
                    border[labels[v, u]] = border.get(labels[v, u], 0) + 1
        if not border:
            labels[labels == label] = 0
        else:
            labels[labels == label] = max(border, key=lambda k: (border[k], sizes[k], -k))
    return np.array([[class_of.get(label, 255) for label in row] for row in labels], np.uint8)


@given(maps(), st.sampled_from([1.0, 2.0, 4.0, 9.0, 1000.0]))
def test_merging_leaves_no_small_region_and_no_gap(case, min_area):
    classes, cuts = case
    rows = list(sieved(lambda: bands_of(classes, cuts), grid_of(classes), min_area))
    merged = np.concatenate([row.classes for row in rows]) if rows else classes
    for k in np.unique(merged[merged != 255]):
        labels, _ = ndimage.label(merged == k)
        assert np.bincount(labels.ravel())[1:].min() >= min_area
    islands, count = ndimage.label(classes != 255)
    for k in range(1, count + 1):
        alone = (islands == k).sum() < min_area
        assert ((merged[islands == k] == 255) == alone).all()
    assert (merged[classes == 255] == 255).all()


def test_small_regions_go_to_the_neighbour_with_the_longest_border():
    classes = np.zeros((12, 12), np.uint8)
    classes[:, 6:] = 1
    classes[3:5, 5:7] = 2  # four pixels, half in each: ties go to the larger neighbour
    classes[8, 2] = 2
    classes[9, 9:12] = 3
    classes[0, 6] = 3
    for cuts in ([0, 12], [0, 4, 9, 12], list(range(13))):
        rows = sieved(lambda cuts=cuts: bands_of(classes, cuts), grid_of(classes), 5.0)
        merged = np.concatenate([row.classes for row in rows])
        np.testing.assert_array_equal(merged, merge_by_brute_force(classes, 5.0))


@pytest.mark.parametrize("seed", range(4))
def test_merging_is_that_of_brute_force(seed):
    draws = np.random.default_rng(seed)
    coarse, fine = (draws.integers(0, 3, (24 // side, 24 // side)).repeat(side, 0).repeat(side, 1) for side in (4, 1))
    classes = np.where(draws.random((24, 24)) < 0.2, fine, coarse).astype(np.uint8)
    classes[draws.random((24, 24)) < 0.05] = 255
    (rows,) = sieved(lambda: bands_of(classes, [0, 24]), grid_of(classes), 9.0)
    np.testing.assert_array_equal(rows.classes, merge_by_brute_force(classes, 9.0))


@given(maps())
def test_the_bands_do_not_matter_for_the_regions(case):
    classes, cuts = case

    def all_regions(cuts):
        regions = find_regions(bands_of(classes, cuts), grid_of(classes))
        return sorted((r.class_id, r.pixels, shapely.normalize(shapely.simplify(r.polygon, 0)).wkt) for r in regions)

    assert all_regions(cuts) == all_regions([0, len(classes)])
