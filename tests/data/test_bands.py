"""The names of a folder's bands, and who is believed when a config says otherwise."""

import pytest

from crispseg.data import known
from crispseg.data.bands import check_same_bands, named_bands, settled_bands
from crispseg.data.folder import open_folder
from crispseg.errors import UserError
from crispseg.files import write_json
from tests.train import tiny


def opened(root, bands=None, dataset="potsdam", count=3):
    tiny.make_folder(root, bands=count)
    if bands is not None:
        write_json(root / "dataset.json", {"dataset": dataset, "bands": list(bands)})
    return open_folder(root)


def test_a_folder_that_says_nothing_leaves_it_to_the_config(tmp_path):
    folder = opened(tmp_path / "a")
    assert named_bands(folder) == () and settled_bands(folder, None) == ()
    assert settled_bands(folder, known.IRRG) == known.IRRG
    short = opened(tmp_path / "b", ("red",))  # not of these images
    assert named_bands(short) == () and settled_bands(short, known.RGB) == known.RGB


@pytest.mark.parametrize(("bands", "count"), [(known.IRRG, 3), ((*known.RGB, "near_infrared"), 4)])
def test_what_a_config_takes_for_granted_gives_way(bands, count, tmp_path):
    folder = opened(tmp_path / "a", bands, count=count)
    for wanted in (None, bands, known.RGB):
        assert settled_bands(folder, wanted) == bands


def test_other_names_are_refused(tmp_path):
    folder = opened(tmp_path / "a", known.IRRG, "vaihingen")
    said = r"data.bands says red, green, blue, but .*dataset.json says near_infrared, red, green; leave data.bands out"
    with pytest.raises(UserError, match=said):
        settled_bands(folder, known.RGB)


def test_sets_that_train_together_have_the_same_bands(tmp_path):
    first, second, silent = (
        opened(tmp_path / "a", known.RGB),
        opened(tmp_path / "b", known.IRRG),
        opened(tmp_path / "c"),
    )
    check_same_bands(first, silent)
    check_same_bands(first, first)
    with pytest.raises(UserError, match="b are near_infrared, red, green, those of .*a are red, green, blue"):
        check_same_bands(first, second)
