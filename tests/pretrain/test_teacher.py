"""Teachers that somebody wrote: where they are found, and what is said of those that cannot teach."""

import sys

import pytest
import torch
from torch import nn

from crispseg.errors import UserError
from crispseg.pretrain.config import TeacherConfig
from crispseg.pretrain.teacher import Teacher

CPU = torch.device("cpu")
HERE = "tests.pretrain.test_teacher"


class Raises(nn.Module):
    def forward(self, images):
        raise ValueError("not that large")


class Named(nn.Module):
    def forward(self, images):
        return {"vector": images.mean((2, 3))}


class Tokens(nn.Module):
    def forward(self, images):
        return [images.flatten(2)]


class Silent(nn.Module):
    def forward(self, images):
        return []


class Both(nn.Module):
    def forward(self, images):
        return images.mean((2, 3)), nn.functional.avg_pool2d(images, 8)


class Unfit(nn.Module):
    def forward(self, images):
        return images.mean((2, 3)) / 0


def cannot_be_made():
    raise KeyError("weights")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Raises", f"the teacher {HERE}:Raises fails on a picture of 32 px: ValueError: not that large"),
        ("Named", "returns a dict; it must return a tensor or a list of them: vectors"),
        ("Tokens", r"returns a tensor of shape \(1, 3, 4096\)"),
        ("Unfit", f"the teacher {HERE}:Unfit returns numbers that are not finite; has it its weights"),
        ("Silent", "returns a NoneType"),
        ("cannot_be_made", "cannot_be_made cannot be made: KeyError: 'weights'"),
    ],
)
def test_one_that_cannot_teach_gets_a_sentence(name, said):
    with pytest.raises(UserError, match=said):
        Teacher(TeacherConfig(build=f"{HERE}:{name}"), CPU).shapes(32, CPU)


def test_vectors_and_maps_are_taken():
    teacher = Teacher(TeacherConfig(build=f"{HERE}:Both", scale=1.0), CPU)
    assert teacher.shapes(32, CPU) == [(3,), (3, 4, 4)]


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_teacher_of_mine.py").write_text("import torch\n\ndef make():\n    return torch.nn.Flatten()\n")
    (tmp_path / "a_broken_teacher.py").write_text("1 / 0\n")
    assert Teacher(TeacherConfig(build="a_teacher_of_mine:make", scale=1.0), CPU).shapes(2, CPU) == [(12,)]
    with pytest.raises(UserError, match="there is no teacher a_broken_teacher:make: ZeroDivisionError"):
        Teacher(TeacherConfig(build="a_broken_teacher:make"), CPU)
