"""Nothing that exists is lost: locks, links, refusals, and putting in place."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crispseg import files, fingerprint, outputs
from crispseg.errors import UserError


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in Path(folder).rglob("*")}


def test_a_workplace_is_one_runs_at_a_time_and_leaves_nothing(tmp_path):
    target = tmp_path / "new" / "map.tif"
    place = outputs.Workplace(target)
    with pytest.raises(UserError, match="another run is making"):
        outputs.Workplace(target)
    place.making("map.tif").write_text("half")
    place.release()
    again = outputs.Workplace(target)
    assert not again.making("map.tif").exists(), "what was left is not written into"
    again.remove()
    assert tree(tmp_path / "new") == {}


def test_a_killed_process_holds_nothing(tmp_path):
    code = f"""
import os, signal, time
from pathlib import Path
from crispseg.outputs import Workplace
place = Workplace(Path({str(tmp_path / "map.tif")!r}))
if os.fork() == 0:
    time.sleep(3)  # a loader process that outlives the run
    os._exit(0)
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], timeout=10, stdout=subprocess.DEVNULL)
    outputs.Workplace(tmp_path / "map.tif").remove()


def test_links_are_refused_and_what_they_point_to_stays(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("job.json", "band-000000.z", "lock", "letter.txt"):
        (precious / name).write_text("keep")
    before = tree(precious)
    (tmp_path / ".map.tif.crisp").symlink_to(precious)
    with pytest.raises(UserError, match="is not a folder of crisp"):
        outputs.Workplace(tmp_path / "map.tif")
    (tmp_path / ".map.tif.crisp").unlink()
    (tmp_path / ".map.tif.crisp").mkdir()
    (tmp_path / ".map.tif.crisp" / "lock").symlink_to(precious / "letter.txt")
    with pytest.raises(UserError, match="is a link, not a lock"):
        outputs.Workplace(tmp_path / "map.tif")
    (tmp_path / ".map.tif.crisp" / "lock").unlink()
    (tmp_path / ".map.tif.crisp" / "making-map.tif").symlink_to(precious / "letter.txt")
    (tmp_path / ".map.tif.crisp" / "somebody's").write_text("not ours")
    place = outputs.Workplace(tmp_path / "map.tif")
    place.making("map.tif").write_text("new")
    place.remove()
    assert tree(precious) == before
    assert os.listdir(tmp_path / ".map.tif.crisp") == ["somebody's"], "only names of ours are removed"


def test_a_lock_that_is_no_file_or_anothers_content(tmp_path):
    folder = tmp_path / ".map.tif.crisp"
    folder.mkdir()
    os.mkfifo(folder / "lock")
    with pytest.raises(UserError, match="is not a lock"):
        outputs.Workplace(tmp_path / "map.tif")
    (folder / "lock").unlink()
    (tmp_path / "letter").write_text("keep")
    os.link(tmp_path / "letter", folder / "lock")
    outputs.Workplace(tmp_path / "map.tif").remove()
    assert (tmp_path / "letter").read_text() == "keep", "a lock is never written to"


def test_existing_files_are_refused_skipped_or_replaced(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert outputs.check_existing([one, two], "refuse")
    one.symlink_to(tmp_path / "nowhere")
    for existing, reason in (("refuse", "one is there already"), ("skip", "one is there already, but not .*two")):
        with pytest.raises(UserError, match=reason):
            outputs.check_existing([one, two], existing)
    assert outputs.check_existing([one, two], "replace")
    two.touch()
    assert not outputs.check_existing([one, two], "skip")
    with pytest.raises(UserError, match="existing files 'keep'"):
        outputs.check_existing([one], "keep")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        outputs.check_existing([tmp_path / "folder"], "replace")


def test_no_output_is_an_input_by_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scene = tmp_path / "scene.tif"
    scene.touch()
    os.link(scene, tmp_path / "hard.tif")
    (tmp_path / "soft.tif").symlink_to(scene)
    (tmp_path / "sub").mkdir()
    for name in ("scene.tif", "hard.tif", "soft.tif", "sub/../scene.tif"):
        with pytest.raises(UserError, match="which is read"):
            outputs.refuse_inputs([tmp_path / "other.tif", Path(name)], [str(scene)])
    with pytest.raises(UserError, match="which is read"):
        outputs.refuse_inputs([tmp_path / "later.tif"], ["later.tif"])  # not there yet
    outputs.refuse_inputs([tmp_path / "other.tif"], [str(scene), "/vsicurl/http://x/other.tif"])


@pytest.mark.parametrize("links", [True, False])
def test_putting_in_place_takes_nobodys_place(tmp_path, monkeypatch, links):
    if not links:  # as on some network and memory-stick file systems
        monkeypatch.setattr(os, "link", lambda *a, **k: (_ for _ in ()).throw(OSError(95, "not supported")))
    made, target = tmp_path / "made", tmp_path / "target"
    made.write_text("new")
    target.write_text("theirs")
    with pytest.raises(UserError, match="is there already"):
        outputs.put_in_place(made, target, "refuse")
    assert (made.read_text(), target.read_text()) == ("new", "theirs")
    outputs.put_in_place(made, target, "replace")
    assert target.read_text() == "new" and not made.exists()
    outputs.put_in_place(made, target, "refuse")  # done before, by a run that was killed
    made.write_text("newer")
    target.unlink()
    outputs.put_in_place(made, target, "refuse")
    assert target.read_text() == "newer" and not made.exists()


def test_killed_between_link_and_unlink(tmp_path):
    made, target = tmp_path / "made", tmp_path / "target"
    made.write_text("new")
    os.link(made, target)
    outputs.put_in_place(made, target, "refuse")
    assert target.read_text() == "new" and not made.exists()


def test_asides_follow_no_link_and_leftovers_are_swept(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left = tmp_path / f".f.txt.{files._HERE}-{dead.stdout.strip()}-00000000.part"
    left.symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("keep")
    alive = tmp_path / f".f.txt.{files._HERE}-{os.getpid()}-00000000.part"
    elsewhere = tmp_path / ".f.txt.ffffff-1-00000000.part"
    for path in (alive, elsewhere):
        path.write_text("somebody writes this")
    (tmp_path / "f.txt").symlink_to(tmp_path / "precious")
    files.write_text(tmp_path / "f.txt", "new")
    assert not (tmp_path / "f.txt").is_symlink() and (tmp_path / "f.txt").read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["f.txt", "precious", alive.name, elsewhere.name])
    assert (tmp_path / "precious").read_text() == "keep"


def test_stamps_tell_what_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "WHOLE", 1 << 20)
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"a" * 1000)
    large.write_bytes(bytes(3 << 20))
    before = fingerprint.stamps([small, large, tmp_path / "none"])
    assert list(before) == [str(small), str(large)]
    assert fingerprint.changed(before, fingerprint.stamps([small, large])) == ""
    about = small.stat()
    small.write_bytes(b"b" * 1000)
    os.utime(small, ns=(about.st_atime_ns, about.st_mtime_ns))  # equal size and time
    about = large.stat()
    with large.open("r+b") as file:
        file.seek((1 << 20) + 100_000)
        file.write(b"x")
    os.utime(large, ns=(about.st_atime_ns, about.st_mtime_ns))
    now = fingerprint.stamps([small, large])
    assert fingerprint.changed(before, now) == f"{small} has changed, {large} has changed"
    assert fingerprint.changed({"a": "1"}, {"b": "1"}) == "a is gone, b is new"
    assert "3 more" in fingerprint.changed({}, dict.fromkeys("abcdefgh", "1"))


def test_a_workplace_that_cannot_be_had_is_one_sentence(tmp_path, monkeypatch):
    """Another user's lock, a disk without inodes, a folder that may not be written."""

    def fail(number):
        def refuse(*args, **more):
            raise OSError(number, os.strerror(number), str(args[0]))

        return refuse

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_open_lock", fail(errno.EACCES))
        with pytest.raises(UserError, match="may not write .*map.tif: Permission denied"):
            outputs.Workplace(tmp_path / "map.tif")
    for number, said in ((errno.ENOSPC, "no space left"), (errno.EROFS, "Read-only"), (errno.EACCES, "may not write")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", fail(number))
            with pytest.raises(UserError, match=said):
                outputs.Workplace(tmp_path / "new.tif")
    with outputs.claiming([tmp_path / "map.tif"]):
        pass
    assert not list(tmp_path.iterdir())


def test_one_output_is_made_aside_and_takes_nobodys_place(tmp_path):
    target = tmp_path / "page.html"
    with pytest.raises(ZeroDivisionError), outputs.making(target, "refuse") as aside:
        aside.write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with outputs.making(target, "refuse") as aside:
        aside.write_text("one")
    with pytest.raises(UserError, match="there already"), outputs.making(target, "refuse"):
        raise AssertionError("it is refused before anything is made")
    with outputs.making(target, "replace") as aside:
        assert target.read_text() == "one"
        aside.write_text("two")
    target.unlink()
    with pytest.raises(UserError, match="there already"), outputs.making(target, "refuse") as aside:
        aside.write_text("late")
        target.write_text("somebody's")
    assert target.read_text() == "somebody's" and [path.name for path in tmp_path.iterdir()] == ["page.html"]
