import io
from types import SimpleNamespace

from rich.console import Console

from crispseg.geo.grid import Grid
from crispseg.predict.plan import make_plan
from crispseg.predict.progress import Bar


def drawn(terminal):
    text = io.StringIO()
    with Bar(Console(file=text, force_terminal=terminal, width=120)) as bar:
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


def test_elsewhere_only_messages_are_written():
    assert drawn(terminal=False) == "writing [map].tif\n"
