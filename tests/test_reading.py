"""Every text we read comes through one door; what is wrong with it is told in a sentence, at once."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg import config as configs
from crispseg import reading
from crispseg.errors import UserError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: !!int x", "not valid YAML"),
        ("x: !!float y", "not valid YAML"),
        ("x: !!timestamp z", "not valid YAML"),
        ("x: !!python/object/apply:os.system [true]", "not valid YAML"),
        ("x: \0", "not valid YAML"),
        ("a: &a [*a]", "in a circle"),
        ("a: &a {b: *a}", "in a circle"),
        (BOMB, "grows too large"),
        ("[" * 5000, "levels deep"),
        ("- " * 5000 + "x", "nests"),
        ("x: " + "{a: " * 200 + "1" + "}" * 200, "nests too deep"),
        ('x: "\\ud800"', "text that is none"),
        ('x: "a\\0b"', "text that is none: a NUL"),
        ("x" * 300_000, "too long"),
    ],
)
def test_yaml_that_is_refused(text, message):
    began = time.monotonic()
    with pytest.raises(UserError, match=message):
        reading.parse_yaml(text, "it")
    assert time.monotonic() - began < 5


def test_dates_in_yaml_are_text():
    assert reading.parse_yaml("seed: 2020-99-99\nday: 2020-01-01", "it") == {"seed": "2020-99-99", "day": "2020-01-01"}
    with pytest.raises(UserError, match="seed must be a whole number, not '2020-99-99'"):
        configs.checked(int, configs.parse_overrides(["seed=2020-99-99"])["seed"], "seed")


def test_anchors_are_fine():
    assert reading.parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}", "it")["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "JSON"),
        ("[" * 61 + "]" * 61, "levels deep"),
        ('["\\ud800"]', "text that is none"),
        ("{", "JSON"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        reading.parse_json(text, "it")


def test_bases_that_go_in_circles(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b.yaml")
    (tmp_path / "b.yaml").write_text("base: a.yaml\nseed: 1")
    with pytest.raises(UserError, match=r"is its own base: a\.yaml -> b\.yaml -> a\.yaml"):
        configs.read_yaml(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("base: [1]")
    with pytest.raises(UserError, match="must name a file"):
        configs.read_yaml(tmp_path / "c.yaml")


def test_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfname,split\r\n a , train\r\n\r\nb\r\nc,val,more\r\n")
    rows = reading.read_csv(path, ("name", "split"), "split file")
    assert rows == [{"name": "a ", "split": "train"}, {"name": "b", "split": ""}, {"name": "c", "split": "val"}]
    path.write_text("name;split\na;train\n")
    for columns in (("name", "split"), ()):
        with pytest.raises(UserError, match=r"a\.csv is separated by semicolons; save it as CSV with commas"):
            reading.read_csv(path, columns, "split file")
    path.write_text("name,split\n" + "x" * 140_000 + ",train\n")
    with pytest.raises(UserError, match="field larger than field limit"):
        reading.read_csv(path, ("name", "split"), "split file")
    path.write_bytes(b"name,split\n\xff,train\n")
    with pytest.raises(UserError, match="not text in UTF-8"):
        reading.read_csv(path, ("name", "split"), "split file")


@pytest.mark.parametrize("cell", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\t=1"])
def test_no_cell_is_a_formula(cell):
    assert reading.plain_cell(cell) == f"'{cell}"
    assert reading.plain_cell(-1.5) == -1.5 and reading.plain_cell("tile=1") == "tile=1"


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "pipe", "pipe or device"),
        (tmp_path, "a folder"),
        (tmp_path / "absent", "there is no"),
        ("a\0b", "cannot read"),
    ):
        with pytest.raises(UserError, match=message):
            reading.read_text(path, 100)
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(UserError, match="MiB at most"):
        reading.read_text(tmp_path / "large", 100)
    with pytest.raises(UserError, match="pipe or device"):
        reading.refuse_special(tmp_path / "pipe")


@pytest.mark.skipif(os.name == "nt", reason="users of another kind")
def test_a_folder_that_may_not_be_read(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
        os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="cannot look into the folder"):
            reading.list_folder(folder)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_is_checked_or_refused(value):
    """Whatever lies where a model's config or a manifest is expected: a value of the right type, or a UserError."""
    from crispseg.data.manifest import Manifest
    from crispseg.models.folder import SavedModel

    for kind in (Manifest, SavedModel, dict[str, int], list[tuple[float, float]], float | None):
        try:
            found = configs.checked(kind, json.loads(json.dumps(value)), "it")
        except UserError:
            continue
        assert found is None or isinstance(found, dict | list | float)
