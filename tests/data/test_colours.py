"""Colours for classes without: those people expect, told apart by all eyes, and no two alike."""

import itertools

import pytest

import crispseg
from crispseg.data.classes import ClassTable
from crispseg.data.colours import EXPECTED, class_colours, kind_of, nearest
from crispseg.data.drawing import wrong_colour
from crispseg.data.known import AERIAL, TABLES
from tests.data.vision import EYES, apart, ciede2000, lab

AERIAL_CLASSES = ("building", "land", "road", "vegetation", "water")


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [  # from the table of Sharma, Wu and Dalal 2005
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (58, 24, 15), 19.4535),
        ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_measure_is_the_published_one(one, other, distance):
    assert ciede2000(one, other) == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "building": "building Building buildings BUILDING house houses roof urban_area",
        "road": "road roads street impervious_surface ImperviousSurfaces parking-lot",
        "tree": "tree trees forest high_vegetation woodland",
        "grass": "grass low_vegetation LowVegetation grassland",
        "vegetation": "vegetation Vegetation",
        "land": "land bare_soil BareSoil barren sand",
        "water": "water Water water_bodies river swimming_pool",
        "car": "car cars vehicle",
        "agriculture": "agriculture agricultural_land cropland fields",
        "background": "background background/clutter clutter unknown other non-building",
        None: "water_tower sports_field greenhouse class_0 wetland Gebäude 7",
    }.items(),
)
def test_a_name_is_of_a_kind_if_all_its_words_say_so(kind, names):
    assert {name: kind_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_names_have_the_expected_colour_whatever_the_order():
    names = ("Water", "trees", "buildings", "bare soil", "roads")
    assert class_colours(names) == tuple(EXPECTED[k] for k in ("water", "tree", "building", "land", "road"))
    assert class_colours(names[::-1]) == class_colours(names)[::-1]


def test_other_names_get_colours_that_are_not_near():
    names = ("wetland", "building", "glacier", "road", "quarry", "harbour")
    given = dict(zip(names, class_colours(names), strict=True))
    assert given["building"] == EXPECTED["building"] and given["road"] == EXPECTED["road"]
    assert all(nearest(a, (b,)) >= 20 for a, b in itertools.combinations(given.values(), 2))


def test_a_second_class_of_a_kind_is_a_shade_of_it():
    first, second, third = class_colours(("forest", "tree", "canopy"))
    assert first == EXPECTED["tree"] and lab(second)[0] < lab(first)[0] < lab(third)[0]
    assert all(green == max(r, green, b) for r, green, b in (second, third))


@pytest.mark.parametrize("count", [1, 10, 40, 254])
def test_any_number_of_classes_and_no_two_alike(count):
    names = tuple(f"class_{i}" for i in range(count))
    assert len(set(class_colours(names))) == count and ClassTable(names).palette == class_colours(names)


def test_given_colours_stay():
    own = ((1, 2, 3), (4, 5, 6))
    assert ClassTable(("building", "water"), own).palette == own
    assert all(table.palette == table.colours for table in TABLES.values())
    assert ClassTable(("background", "building")).palette == (EXPECTED["background"], EXPECTED["building"])


def test_the_distance_is_that_of_lab():
    for one, other in (((0, 0, 0), (255, 255, 255)), ((230, 20, 40), (20, 90, 200)), ((3, 2, 9), (8, 8, 1))):
        expected = sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5
        assert nearest(one, [other]) == pytest.approx(expected)


@pytest.mark.parametrize("eyes", EYES)
def test_the_shipped_classes_are_told_apart_by_all_eyes(eyes):
    """Ten of CIEDE2000 are plain to see side by side; across a map it takes more."""
    palette = crispseg.load("crisp_nano_aerial").info.palette
    assert palette == AERIAL.palette == tuple(EXPECTED[name] for name in AERIAL_CLASSES)
    assert min(apart(a, b, eyes) for a, b in itertools.combinations(palette, 2)) >= 22
    least = 17 if eyes == "normal" else 11
    assert min(apart(a, b, eyes) for a, b in itertools.combinations(EXPECTED.values(), 2)) >= least


@pytest.mark.parametrize("eyes", EYES)
def test_what_is_wrong_looks_like_no_class(eyes):
    greys = ((150,) * 3, (200,) * 3, (252,) * 3)  # the pale image around it
    wrong = wrong_colour(AERIAL.palette)
    assert min(apart(wrong, each, eyes) for each in (*EXPECTED.values(), *greys, (0, 0, 0))) >= 17
    for table in TABLES.values():
        assert nearest(wrong_colour(table.colours), table.colours) >= 30
    assert wrong_colour((wrong, (255, 0, 255))) not in (wrong, (255, 0, 255))
