"""The page on searching for settings: its program finds something, and gives up on what is behind."""

import re
from pathlib import Path

import pytest

from tests.train import tiny

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "search.md"


def test_the_example_with_optuna(tmp_path, monkeypatch, capsys):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    smaller = program.replace('"prototypes": trial', f'**{tiny.OPTIONS!r}, "prototypes": trial')
    smaller = smaller.replace('"steps": 300', '"steps": 4').replace(
        "val_every=100", "val_every=2, batch_size=2, crop=32"
    )
    smaller = smaller.replace('"vssd_nano"', '"none"')  # the smallest CRISP has another backbone
    smaller = smaller.replace("n_trials=12", "n_trials=5").replace("n_startup_trials=3", "n_startup_trials=1")
    assert smaller.count("steps") == program.count("steps") and smaller != program
    tiny.make_folder(tmp_path / "my_folder")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(smaller, str(PAGE), "exec"), names)
    study = names["study"]
    assert len(study.trials) == 5 and 0 < study.best_value <= 1
    best = tmp_path / "runs" / "search" / str(study.best_trial.number) / "result.json"
    assert best.is_file()
    assert str(study.best_value) in capsys.readouterr().out

    monkeypatch.setattr("crispseg.train.watch.StopRequest.__bool__", lambda self: True)  # Ctrl-C in the first step
    with pytest.raises(KeyboardInterrupt):
        study.optimize(names["objective"], n_trials=2)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    exec(compile(smaller.replace("n_trials=5", "n_trials=1"), str(PAGE), "exec"), names)
    states = [trial.state.name for trial in names["study"].trials]
    assert len(states) == 7 and states[5] == "FAIL" and states[6] in ("COMPLETE", "PRUNED")
