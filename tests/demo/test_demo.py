import numpy as np
import torch
from PIL import Image

import crispseg
from crispseg.cli.main import main
from crispseg.demo import scene


def test_scene_is_a_function_of_its_seed_and_holds_every_class():
    image, labels = scene.generate(200, 160, seed=5)
    again, labels_again = scene.generate(200, 160, seed=5)
    assert image.shape == (200, 160, 3)
    assert image.dtype == labels.dtype == np.uint8
    assert np.array_equal(image, again) and np.array_equal(labels, labels_again)
    assert set(np.unique(scene.generate(384, 384, seed=1)[1])) == set(range(len(scene.CLASSES)))
    assert not np.array_equal(image, scene.generate(200, 160, seed=6)[0])


def test_demo_leaves_a_picture_and_a_model(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--seconds", "1"]) == 0
    assert "mIoU on a scene not trained on" in capsys.readouterr().out
    assert Image.open(tmp_path / "before_after.png").size == (4 * 392 - 8, 404)
    model = crispseg.load(tmp_path / "model")
    assert model.info.classes == scene.CLASSES
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 5, 32, 32)
