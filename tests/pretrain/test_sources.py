"""Sets in their layouts, and what is said about broken ones."""

import numpy as np
import pytest
from PIL import Image

from crispseg.errors import UserError
from crispseg.pretrain.pictures import Order, Pictures, fitted
from crispseg.pretrain.sources import open_source
from crispseg.pretrain.squares import three_bands
from tests.pretrain import toys


def test_class_folders_keep_some_back_by_name(tmp_path):
    root = toys.class_folders(tmp_path / "set", classes=3, count=30)
    training, held_back = open_source(root, True, 32)
    assert training.classes == ("kind0", "kind1", "kind2") == held_back.classes
    assert len(training) + len(held_back) == 90 and 2 <= len(held_back) <= 20
    assert set(training.files).isdisjoint(held_back.files)
    names = {path.name for path in held_back.files}
    Image.fromarray(toys.picture(0, 99)).save(root / "kind0" / "a_new_one.png")
    again = open_source(root, True, 32)[1]
    assert names <= {path.name for path in again.files}


def test_folders_train_and_val_are_used_as_they_are(tmp_path):
    toys.class_folders(tmp_path / "train", count=2)
    toys.class_folders(tmp_path / "val", count=1)
    training, held_back = open_source(tmp_path, True, 32)
    assert len(training) == 6 and len(held_back) == 3
    toys.class_folders(tmp_path / "val" / "x", classes=1, count=1)
    (tmp_path / "val" / "x" / "kind0" / "p0.png").rename(tmp_path / "val" / "x" / "p0.png")
    with pytest.raises(UserError, match="classes that .* has not: x"):
        open_source(tmp_path, True, 32)


def test_shards_without_labels_need_no_names(tmp_path):
    root = toys.shards(tmp_path / "set")
    labelled, _ = open_source(root, True, 32)
    (root / "classes.txt").unlink()
    training, held_back = open_source(root, False, 32)
    assert held_back is None and (training.classes, len(training.labels)) == ((), 0)
    assert len(training) == len(labelled) and np.array_equal(training.read(11), labelled.read(11))


def test_shards_hold_what_was_written(tmp_path):
    training, held_back = open_source(toys.shards(tmp_path / "set"), True, 32)
    assert len(training) == 16 and len(held_back) == 6
    assert training.labels.tolist() == [i % 2 for i in range(10)] + [i % 2 for i in range(6)]
    apart = np.abs(training.read(11).astype(int) - toys.picture(1, 1))
    assert apart.mean() < 12  # webp is lossy


def test_unlabelled_images_are_cut_into_squares(tmp_path):
    image = np.arange(70 * 100 * 3, dtype=np.uint32).reshape(70, 100, 3).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "scene.png")
    windows, held_back = open_source(tmp_path, False, 32)
    assert held_back is None and len(windows) == 6 and windows.classes == ()
    np.testing.assert_array_equal(windows.read(4), image[32:64, 32:64])
    with pytest.raises(UserError, match="smaller side"):
        open_source(tmp_path, False, 128)


def test_a_folder_for_segmentation_is_no_set_of_two_classes(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            Image.fromarray(toys.picture(0, number)).save(tmp_path / kind / f"{number}.png")
    with pytest.raises(UserError, match=r"is a folder for segmentation, .* say labels=false \(in a config"):
        open_source(tmp_path, True, 32)
    windows, _ = open_source(tmp_path, False, 32)
    assert {path.parent.name for path in windows.files} == {"images"} and len(windows) == 3


def test_deep_and_single_bands_become_three_of_eight_bits():
    deep = np.random.default_rng(0).integers(0, 10_000, (20, 20, 5)).astype(np.uint16)
    made = three_bands(deep)
    assert made.shape == (20, 20, 3) and made.dtype == np.uint8 and made.min() == 0 and made.max() == 255
    grey = three_bands(np.full((4, 4, 1), 7, np.uint8))
    assert grey.shape == (4, 4, 3) and (grey == 7).all()


def test_broken_sets_get_one_sentence(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        open_source(tmp_path / "nowhere", True, 32)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no class folder with pictures"):
        open_source(tmp_path / "empty", True, 32)
    with pytest.raises(UserError, match=r"holds no \.png"):
        open_source(tmp_path / "empty", False, 32)
    toys.class_folders(tmp_path / "one", classes=1)
    with pytest.raises(UserError, match=r"one class, kind0; .* say labels=false \("):
        open_source(tmp_path / "one", True, 32)
    root = toys.shards(tmp_path / "shards")
    data = (root / "train_1.npz").read_bytes()
    (root / "train_1.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"train_1\.npz is no whole shard"):
        open_source(root, True, 32)
    (root / "train_1.npz").unlink()
    (root / "classes.txt").write_text("only one\n")
    with pytest.raises(UserError, match="labels up to 1, but classes.txt names 1 classes"):
        open_source(root, True, 32)


def test_a_damaged_picture_is_named(tmp_path):
    root = toys.class_folders(tmp_path / "set")
    (root / "kind1" / "p3.png").write_bytes(b"not a picture, though long enough to look at")
    with pytest.raises(UserError, match=r"p3\.png cannot be read"):
        for source in open_source(root, True, 32):
            for index in range(len(source)):
                source.read(index)


def test_pictures_of_any_shape_are_fitted_and_held(tmp_path):
    image = np.zeros((40, 64, 3), np.uint8)
    image[:, 12:52] = 200  # the middle square
    assert (fitted(image, 20)[:, 1:-1] == 200).all()
    training, _ = open_source(toys.class_folders(tmp_path / "set"), True, 32)
    pictures = Pictures(training, 16)
    one_by_one = pictures.take(np.array([3, 0]), "cpu")
    pictures.hold("cpu")
    assert pictures.held.shape == (len(training), 3, 16, 16)
    assert (pictures.take(np.array([3, 0]), "cpu") == one_by_one).all()
    for _ in range(2):  # the second time from the file
        again = Pictures(training, 16)
        again.hold("cpu", tmp_path / "cache")
        assert (again.held == pictures.held).all()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_the_endless_order_is_a_permutation_per_epoch():
    order = Order(7, seed=1)
    epochs, indices = order.at(np.arange(21))
    assert epochs.tolist() == [0] * 7 + [1] * 7 + [2] * 7
    for epoch in range(3):
        assert sorted(indices[epochs == epoch]) == list(range(7))
    assert Order(7, seed=1).at(np.array([13, 4]))[1].tolist() == [indices[13], indices[4]]
