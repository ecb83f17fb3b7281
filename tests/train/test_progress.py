"""What a person watching reads."""

from crispseg.train import progress as room
from crispseg.train.progress import Progress


def test_the_time_left_ignores_the_first_step(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(room.time, "monotonic", lambda: now)
    shown = Progress(101, 0, silent=False)
    now = 120.0  # compiled
    shown.count_from(1)
    now = 125.0  # ten steps of half a second
    shown.update(11, 1.0, 32.0)
    assert "0:00:45 left" in capsys.readouterr().err


def test_a_warning_is_printed_in_silence_too(capsys):
    shown = Progress(10, 0, silent=True)
    shown.say("some remark")
    shown.warn("this is not what you think")
    assert capsys.readouterr().err == "warning: this is not what you think\n"
