"""Boundaries are scored on full labels: data without them is refused before the first row is trained."""

import pytest

from crispseg.ablate.boundaries import check_boundaries
from crispseg.ablate.plan import make_plan, read_data_sets
from crispseg.ablate.store import Store
from crispseg.ablate.table import read_table
from crispseg.cli.main import main
from crispseg.configs import find_table
from crispseg.errors import UserError
from tests.train import tiny


def planned(data, out, name):
    plan = make_plan([read_table(find_table(name), "nano")], read_data_sets([str(data)]), [], [0], out)
    return plan, Store(out)


@pytest.mark.parametrize("name", ["boundary", "sharpness"])
def test_eroded_labels_alone_are_refused(name, tmp_path, capsys):
    data = tiny.make_folder(tmp_path / "squares")
    check_boundaries(*planned(data, tmp_path, name))
    (data / "masks_eroded").mkdir()
    (data / "masks" / "scene4.png").rename(data / "masks_eroded" / "scene4.png")  # the one that validates
    said = rf"{name} scores boundaries on full labels, which 1 of the 1 val images in {data} do not have"
    with pytest.raises(UserError, match=said):
        check_boundaries(*planned(data, tmp_path, name))
    check_boundaries(*planned(data, tmp_path, "skip"))  # boundaries are one of its columns
    assert main(["ablate", name, "--data", str(data), "--out", str(tmp_path / "out")]) == 1
    assert "scores boundaries on full labels" in capsys.readouterr().err and not (tmp_path / "out").exists()
