from pathlib import Path

import pytest

from crispseg import config as configs
from crispseg.cli import main
from crispseg.configs import find_config, find_config_or_folder, find_table, names, summary
from crispseg.errors import UserError
from crispseg.train.config import train_config

EVERYTHING = {**names("config"), **names("table")}


def test_last_parts_are_distinct():
    """So that the last part of a name is enough, and `crisp configs NAME` prints the one that was meant."""
    stems = [path.stem for path in EVERYTHING.values()]
    assert len(stems) == len(set(stems)) == len(names("config")) + len(names("table"))


def test_found_by_name_last_part_and_path(tmp_path):
    assert find_config("potsdam").name == "potsdam.yaml"
    assert find_config("peers/geoseg") == find_config("geoseg") == find_config(find_config("geoseg"))
    assert find_table("dco").parent.name == "tables"
    own = tmp_path / "potsdam.yaml"
    own.touch()
    assert find_config(str(own)) == own


@pytest.mark.parametrize(
    ("find", "word", "said"),
    [
        (find_config, "potsdamm", "unknown config 'potsdamm'; did you mean 'potsdam'?"),
        (find_config, "dco", "unknown config 'dco'; known: ablation_dubai, "),
        (find_table, "potsdam", "unknown table 'potsdam'; known: boundary, claim, "),
        (find_config, "configs/potsdam.yaml", "no config file configs/potsdam.yaml; .* is called potsdam"),
        (find_config, "nothere.yaml", "no config file nothere.yaml$"),
        (find_config_or_folder, "no/such/folder", "no folder no/such/folder, nor a config"),
    ],
)
def test_wrong_names(find, word, said):
    with pytest.raises(UserError, match=said):
        find(word)


def test_a_folder_that_is_called_like_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config_or_folder("dubai") == find_config("dubai")
    for name in ("dubai", "other"):
        (tmp_path / name).mkdir()
    assert find_config_or_folder("other") == find_config_or_folder("./other") == Path("other")
    assert find_config_or_folder("./dubai") == Path("dubai")
    with pytest.raises(UserError, match=r"for the folder write ./dubai"):
        find_config_or_folder("dubai")


def test_a_printed_config_can_be_changed_and_used(tmp_path, capsys):
    assert main.main(["configs", "potsdam"]) == 0
    own = tmp_path / "own.yaml"
    own.write_text(capsys.readouterr().out + "seed: 7\n")
    config = train_config(own)
    assert config.seed == 7 and config.data.protocol == "potsdam/paper5"
    assert config.schedule == train_config("paper").schedule


def test_base_is_a_name_or_a_file_beside(tmp_path):
    (tmp_path / "a.yaml").write_text("base: dubai\ncrop: 64\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\nseed: 3\n")
    values = configs.read_yaml(tmp_path / "b.yaml")
    assert (values["crop"], values["seed"], values["data"]["path"]) == (64, 3, "data/dubai")


def test_list(capsys):
    assert main.main(["configs"]) == 0
    said = capsys.readouterr().out
    for name, path in EVERYTHING.items():
        assert 8 < len(summary(path)) < 160, name
        assert f"  {name} " in said and summary(path) in said
    assert main.main(["configs", "dcoo"]) == 1
