"""Class tables from csv, yaml and json, and the mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crispseg.data.classes import ClassTable, read_class_table, table_from_rows
from crispseg.data.known import TABLES
from crispseg.errors import UserError

EXPECTED = ClassTable(
    ("road", "roof"), ((1, 2, 3), (4, 5, 6)), (5, 9), ignored_colours=((0, 0, 0),), ignored_values=(7, 255)
)


def test_the_same_table_from_every_format(tmp_path: Path) -> None:
    (tmp_path / "classes.csv").write_text(
        "name,id,r,g,b,ignore\nroad,5,1,2,3,\nroof,9,4,5,6,0\nnothing,7,0,0,0,1\n", encoding="utf-8-sig"
    )
    (tmp_path / "classes.yaml").write_text(
        "classes:\n- {name: road, id: 5, colour: [1, 2, 3]}\n- {name: roof, id: 9, color: [4, 5, 6]}\n"
        "- {name: nothing, id: 7, colour: [0, 0, 0], ignore: true}\n"
    )
    (tmp_path / "dataset.json").write_text(json.dumps({"classes": EXPECTED.to_rows()}))
    for name in ("classes.csv", "classes.yaml", "dataset.json"):
        assert read_class_table(tmp_path / name) == EXPECTED, name


def test_words_for_what_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    for word in ("1", "1.0", "True", "yes"):
        path.write_text(f"name,id,ignore\nroad,0,\nroof,1,0.0\nvoid,2,{word}\n")
        assert read_class_table(path) == ClassTable(("road", "roof"), (), (0, 1), (), (2, 255)), word


@pytest.mark.parametrize("name", TABLES)
def test_known_tables_survive_their_rows(name: str) -> None:
    again = table_from_rows(TABLES[name].to_rows())
    assert again.names == TABLES[name].names and again.colours == TABLES[name].colours
    assert again.file_values == TABLES[name].file_values
    assert set(again.ignored_values) == set(TABLES[name].ignored_values)
    assert again.ignored_colours == TABLES[name].ignored_colours


def test_255_may_be_a_class_when_the_table_says_so() -> None:
    table = table_from_rows([{"name": "nothing", "id": 0}, {"name": "house", "id": 255}])
    assert table.ignored_values == () and table.file_values == (0, 255)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,id\na,0\na,1\n", "same class name twice: a"),
        ("name,id\na,0\nb,0\n", "same class id twice: 0"),
        ("name,r,g,b\na,1,1,1\nb,1,1,1\n", "same class colour twice"),
        ("name,r,g,b\na,1,1,300\n", "row 1: a colour is three numbers"),
        ("name,id\na,x\n", "row 1: 'x' is not a whole number"),
        ("name,id\n,3\n", "row 1 has no class name"),
        ("name,id\na,3\nb,\n", "some classes have a id"),
        ("name,id\n", "at least one class"),
        ("name,id,ignore\na,0,\nb,1,WAHR\n", "row 2: ignore is 1 for what is not to be learnt.* not 'WAHR'"),
        ("name,value\na,1\nb,0\n", "neither an id nor a colour, but numbers as 'value'"),
        ("name,red,green,blue\na,1,1,1\nb,2,2,2\n", "numbers as 'blue', 'green', 'red'"),
    ],
)
def test_mistakes_have_their_message(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "classes.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_class_table(tmp_path / "classes.csv")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no class table"):
        read_class_table(tmp_path / "classes.csv")
    (tmp_path / "a.yaml").write_text("classes: [1, 2]")
    with pytest.raises(UserError, match="must list classes"):
        read_class_table(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("a: [")
    with pytest.raises(UserError, match="is not valid YAML"):
        read_class_table(tmp_path / "b.yaml")
