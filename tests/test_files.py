import errno
import os

import pytest

from crispseg import files
from crispseg.errors import UserError


def test_replaces_only_when_whole(tmp_path):
    path = tmp_path / "new" / "f.txt"
    files.write_text(path, "one")
    with pytest.raises(RuntimeError), files.replacing(path) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert path.read_text() == "one"
    files.write_text(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["f.txt"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "no space left to write .*f.txt; free some"),
        (errno.EACCES, "may not write .*f.txt"),
        (errno.EROFS, "cannot write .*f.txt: Read-only"),
    ],
)
def test_the_systems_refusals_become_sentences(tmp_path, code, message):
    with pytest.raises(UserError, match=message), files.replacing(tmp_path / "f.txt") as aside:
        aside.write_text("half")
        raise OSError(code, os.strerror(code))
    assert not list(tmp_path.iterdir())


def test_parent_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    for below in ("f.json", "sub/f.json"):  # for which the system says "File exists" and "Not a directory"
        with pytest.raises(UserError, match=r"cannot write .*f.json: .*file is a file, not a folder"):
            files.write_json(tmp_path / "file" / below, {})
