"""What is finished and what is to come must have learnt from the same data."""

import json

import pytest
import yaml
from PIL import Image

from crispseg.ablate.plan import make_plan, read_data_sets
from crispseg.ablate.runner import Runner
from crispseg.ablate.store import Store
from crispseg.ablate.table import read_table
from crispseg.errors import UserError
from crispseg.train.data_record import describe, digest
from crispseg.train.setup import open_data
from tests.train import tiny


def test_rows_of_other_data_are_not_set_beside_each_other(tmp_path):
    """Found by the kill campaign."""
    data = tiny.make_folder(tmp_path / "squares")
    settings = {key: value for key, value in tiny.settings(data, tmp_path).items() if key != "out"}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(settings))
    rows = [{"name": name, "set": {"model": {"options": {"dco": name == "on"}}}} for name in ("on", "off")]
    (tmp_path / "table.yaml").write_text(json.dumps({"title": "DCO", "rows": rows}))
    sets = read_data_sets([str(tmp_path / "data.yaml")])
    plan = make_plan([read_table(tmp_path / "table.yaml")], sets, [], [0], tmp_path / "out")
    scores = {"mIoU": 0.5, "mF1": 0.5, "OA": 0.5, "BF@3px": 0.5}
    result = {"protocol": "p", "steps": 4, "best_step": 4, "last": scores, "best": scores}
    known = digest(describe(open_data(plan.runs[0].config)))
    entry = {"description": plan.runs[0].description, "result": result, "data": known}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text(json.dumps({"runs": {plan.runs[0].name: entry}, "failed": {}}))
    runner = Runner(Store(tmp_path / "out"), 1, lambda text: None)
    runner._check_data(plan.runs)
    Image.new("L", (40, 40)).save(data / "masks" / "scene0.png")
    with pytest.raises(UserError, match="has changed since: rows of one table would not belong together"):
        runner.run(plan.runs)
    runner._check_data(plan.runs[:1])  # nothing to come: tables may be made without the data
