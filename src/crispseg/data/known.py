"""Facts about data sets the house knows by name: classes, colours, tiles and stated splits."""

from __future__ import annotations

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.colours import class_colours

ISPRS = ClassTable(
    names=("impervious_surface", "building", "low_vegetation", "tree", "car", "clutter"),
    colours=((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)),
    ignored_colours=((0, 0, 0),),  # the eroded boundary; in the fragment, missing squares
)

# LoveDA's files hold 0 for no data and 1..7 for the classes.
LOVEDA = ClassTable(
    names=("background", "building", "road", "water", "barren", "forest", "agricultural"),
    colours=(
        (255, 255, 255),
        (255, 0, 0),
        (255, 255, 0),
        (0, 0, 255),
        (159, 129, 183),
        (0, 255, 0),
        (255, 195, 128),
    ),
    values=(1, 2, 3, 4, 5, 6, 7),
    ignored_values=(0, IGNORE),
)

DUBAI = ClassTable(
    names=("building", "land", "road", "vegetation", "water"),
    colours=((60, 16, 152), (132, 41, 246), (110, 193, 228), (254, 221, 58), (226, 169, 41)),
    ignored_colours=((155, 155, 155), (0, 0, 0)),
)

# Dubai's classes in the colours people expect on a map.
AERIAL = ClassTable(DUBAI.names, class_colours(DUBAI.names), ignored_colours=DUBAI.ignored_colours)

TABLES = {
    "potsdam": ISPRS,
    "vaihingen": ISPRS,
    "loveda": LOVEDA,
    "dubai": DUBAI,
    "vaihingen_fragment": ISPRS,
}

RGB, IRRG = ("red", "green", "blue"), ("near_infrared", "red", "green")
BANDS = {"potsdam": RGB, "vaihingen": IRRG, "loveda": RGB}  # usual ones, which configs take for granted

POTSDAM_TEST = (
    "2_13", "2_14", "3_13", "3_14", "4_13", "4_14", "4_15",
    "5_13", "5_14", "5_15", "6_13", "6_14", "6_15", "7_13",
)  # fmt: skip
POTSDAM_TRAIN = (
    "2_10", "2_11", "2_12", "3_10", "3_11", "3_12", "4_10", "4_11", "4_12", "5_10", "5_11", "5_12",
    "6_7", "6_8", "6_9", "6_10", "6_11", "6_12", "7_7", "7_8", "7_9", "7_10", "7_11", "7_12",
)  # fmt: skip
POTSDAM_FAULTY = "7_10"  # its annotation is wrong; GeoSeg leaves it out, mmsegmentation trains on it
POTSDAM_TILES = POTSDAM_TRAIN + POTSDAM_TEST

VAIHINGEN_TEST = tuple(f"area{n}" for n in (2, 4, 6, 8, 10, 12, 14, 16, 20, 22, 24, 27, 29, 31, 33, 35, 38))
VAIHINGEN_TRAIN = tuple(f"area{n}" for n in (1, 3, 5, 7, 11, 13, 15, 17, 21, 23, 26, 28, 30, 32, 34, 37))
VAIHINGEN_TILES = VAIHINGEN_TRAIN + VAIHINGEN_TEST

LOVEDA_COUNTS = {"train": 2522, "val": 1669, "test": 1796}  # images in the published archives

# Tiles 4 and 8 overlap on the ground, so they stay on one side.
DUBAI_TRAIN = ("tile4", "tile5", "tile7", "tile8")
DUBAI_VAL = ("tile1", "tile3")

FRAGMENT_TILES = ("tile_0", "tile_1", "tile_2")
