import io
from types import SimpleNamespace

from rich.console import Console

from crispseg.geo.grid import Grid
from crispseg.predict.plan import make_plan
from crispseg.predict.progress import Bar, _Lines


def drawn(terminal, silent=False):
    text = io.StringIO()
    with Bar(Console(file=text, force_terminal=terminal, width=120), silent, every=0.0) as bar:
        scene = SimpleNamespace(path="scene.tif", grid=Grid(1000, 2000))
        plan = make_plan(1000, 2000, 512, 64)
        bar.begin(scene, plan, tiles_done=2)
        for _ in range(plan.tiles - 2):
            bar.tile_done()
        bar.progress.refresh()
        bar.say("writing [map].tif")
        bar.begin(scene, plan, tiles_done=0)
    return text.getvalue()


def test_a_terminal_shows_pixels_per_second_and_percent():
    text = drawn(terminal=True)
    assert "scene.tif" in text and "100 %" in text and "Mpx/s" in text
    assert "writing [map].tif" in text


def test_a_log_gets_lines():
    lines = drawn(terminal=False).splitlines()
    assert lines[0] == "scene.tif: 15 tiles, 2 of them done before" and lines[-1] == "scene.tif: 15 tiles"
    assert lines[-3].startswith("scene.tif: 100 %, ") and lines[-3].endswith(" Mpx/s, 0 min 0 s left")
    assert lines[-2] == "writing [map].tif"


def test_one_tile_is_one_tile():
    assert _Lines("scene.tif", 1, 0, 1e6, 30.0).first() == "scene.tif: 1 tile"


def test_lines_come_now_and_then_only(monkeypatch):
    now = 0.0
    monkeypatch.setattr("crispseg.predict.progress.time", SimpleNamespace(monotonic=lambda: now))
    lines = _Lines("scene.tif", tiles=100, done=0, pixels_per_tile=1e6, every=30.0)
    said = []
    for _ in range(60):
        now += 1.0
        said.append(lines.after_tile())
    assert [line for line in said if line] == [
        "scene.tif: 30 %, 1.00 Mpx/s, 1 min 10 s left",
        "scene.tif: 60 %, 1.00 Mpx/s, 0 min 40 s left",
    ]


def test_the_time_left_forgets_what_the_first_tile_set_up(monkeypatch):
    now = 0.0
    monkeypatch.setattr("crispseg.predict.progress.time", SimpleNamespace(monotonic=lambda: now))
    lines = _Lines("scene.tif", tiles=105, done=4, pixels_per_tile=1e6, every=30.0)
    said = []
    for seconds in [40.0, *[1.0] * 60]:
        now += seconds
        said.append(lines.after_tile())
    assert [line for line in said if line] == [
        "scene.tif: 5 %, 0.03 Mpx/s, 66 min 40 s left",  # there is nothing else to go by yet
        "scene.tif: 33 %, 1.00 Mpx/s, 1 min 10 s left",
        "scene.tif: 62 %, 1.00 Mpx/s, 0 min 40 s left",
    ]


def test_silence_leaves_warnings():
    assert drawn(terminal=False, silent=True) == "" == drawn(terminal=True, silent=True)
    text = io.StringIO()
    Bar(Console(file=text), silent=True).warn("no coordinate reference system")
    assert text.getvalue() == "no coordinate reference system\n"
