"""Samples and batches: the same whatever the number of workers or processes, and wherever one starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crispseg.data import (
    Augmentation,
    Folder,
    SegmentationDataset,
    evaluation_loader,
    make_loader,
    open_folder,
)
from crispseg.data.arrays import Arrays
from crispseg.data.folder import Record
from crispseg.data.gaps import Gapped
from crispseg.data.labels import Mask
from crispseg.data.loader import StepSampler, epoch_order
from crispseg.data.protocol import Labels
from crispseg.errors import UserError
from tests.fakedata import fake_own

HOW = Augmentation(crop=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return open_folder(fake_own(tmp_path_factory.mktemp("own")))


def collect(dataset: SegmentationDataset, **options: int) -> list[tuple[torch.Tensor, torch.Tensor, list[str]]]:
    return [(images, masks, list(names)) for images, masks, names in make_loader(dataset, 4, 5, seed=3, **options)]


def same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x[0], y[0]) and torch.equal(x[1], y[1]) and x[2] == y[2] for x, y in zip(a, b, strict=True)
    )


def test_batches_do_not_depend_on_workers_or_threads(folder: Folder) -> None:
    dataset = SegmentationDataset(folder, "train", HOW, samples=7)
    alone = collect(dataset)
    assert same(alone, collect(dataset, workers=2))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        assert same(alone, collect(dataset))
    finally:
        torch.set_num_threads(before)


def test_a_mistake_in_a_worker_is_told_as_without_one(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: SegmentationDataset, key: object) -> None:
        raise UserError("a.png is cut short")

    monkeypatch.setattr(SegmentationDataset, "compact", damaged)
    dataset = SegmentationDataset(folder, "train", HOW, samples=7)
    for workers in (0, 2):
        with pytest.raises(UserError, match=r"^a\.png is cut short$"):
            collect(dataset, workers=workers)


def test_batches_hold_the_samples_of_their_keys(folder: Folder) -> None:
    dataset = SegmentationDataset(folder, "train", HOW, samples=7)
    keys = list(StepSampler(7, 4, 5, seed=3))
    for batch, (images, masks, names) in zip(keys, collect(dataset), strict=True):
        for i, key in enumerate(batch):
            image, mask, name = dataset[key]
            assert torch.equal(images[i], image) and torch.equal(masks[i], mask) and names[i] == name
            assert image.dtype == torch.float32 and mask.dtype == torch.int64


def test_starting_later_gives_the_batches_still_to_come(folder: Folder) -> None:
    dataset = SegmentationDataset(folder, "train", HOW, samples=7)
    assert same(collect(dataset)[3:], collect(dataset, start_step=3))
    assert collect(dataset, start_step=5) == []


def test_processes_together_make_the_single_batch(folder: Folder) -> None:
    dataset = SegmentationDataset(folder, "train", HOW, samples=7)
    whole = list(make_loader(dataset, 4, 5, seed=3))
    parts = [list(make_loader(dataset, 2, 5, seed=3, rank=rank, world=2)) for rank in range(2)]
    for step, (images, masks, names) in enumerate(whole):
        for rank in range(2):
            assert torch.equal(images[rank::2], parts[rank][step][0])
            assert torch.equal(masks[rank::2], parts[rank][step][1])
            assert tuple(names[rank::2]) == tuple(parts[rank][step][2])


@settings(max_examples=80, deadline=None)
@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 6),
    steps=st.integers(0, 20),
    start=st.integers(0, 20),
    seed=st.integers(0, 99),
    world=st.integers(1, 4),
)
def test_law_of_the_sampler(length: int, batch: int, steps: int, start: int, seed: int, world: int) -> None:
    single = list(StepSampler(length, batch * world, steps, seed=seed))
    joined = [key for step in single for key in step]
    expected = [(epoch, i) for epoch in range(len(joined) // length + 1) for i in epoch_order(length, seed, epoch)]
    assert joined == expected[: steps * batch * world]  # every sample once an epoch, epochs end to end
    for rank in range(world):
        sampler = StepSampler(length, batch, steps, seed=seed, rank=rank, world=world, start=start)
        assert list(sampler) == [step[rank::world] for step in single[start:]]
        assert len(sampler) == max(steps - start, 0)


def test_order_of_an_epoch() -> None:
    assert sorted(epoch_order(50, 1, 2)) == list(range(50))
    assert epoch_order(50, 1, 2) == epoch_order(50, 1, 2) != epoch_order(50, 1, 3) != epoch_order(50, 2, 3)
    assert epoch_order(8, 1, 2) == [4, 2, 0, 6, 1, 5, 7, 3]  # also with another numpy, or runs would not be resumed
    with pytest.raises(UserError, match="batches of 4 from 0 samples"):
        StepSampler(0, 4, 1)


def test_an_epoch_covers_the_images_in_proportion_to_their_pixels(tmp_path: Path) -> None:
    root = fake_own(tmp_path, images=2, size=(64, 64))
    fake_own(tmp_path / "big", images=1, size=(64, 192))
    (tmp_path / "big" / "images" / "site0_part0.png").rename(root / "images" / "wide_1.png")
    (tmp_path / "big" / "masks" / "site0_part0.png").rename(root / "masks" / "wide_1.png")
    folder = open_folder(root, split={"site0_part0": "train", "site0_part1": "train", "wide_1": "train"})
    dataset = SegmentationDataset(folder, "train", HOW, samples=50)
    for epoch in range(3):
        names = [dataset[epoch, index][2] for index in range(50)]
        assert [names.count(n) for n in ("site0_part0", "site0_part1", "wide_1")] == [10, 10, 30]
    assert not torch.equal(dataset[0, 5][0], dataset[1, 5][0])


def test_evaluation_gives_whole_images_in_order(folder: Folder) -> None:
    dataset = SegmentationDataset(folder, "val")
    assert len(dataset) == len(folder.records("val"))
    for index, record in enumerate(folder.records("val")):
        image, mask, name = dataset[index]
        assert name == record.name and image.dtype == torch.float32 and mask.dtype == torch.int64
        assert np.array_equal(image.permute(1, 2, 0).numpy(), folder.read_image(record))
        assert np.array_equal(mask.numpy(), folder.read_mask(record))
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    seen = [name for rank in range(2) for _, _, (name,) in evaluation_loader(dataset, rank=rank, world=2)]
    assert sorted(seen) == sorted(record.name for record in folder.records("val"))


def test_kept_mapped_and_decoded_samples_are_equal(folder: Folder, tmp_path: Path) -> None:
    kept = SegmentationDataset(folder, "train", HOW, samples=9)
    kept.preload()
    mapped = SegmentationDataset(folder, "train", HOW, samples=9, cache=tmp_path / "cache")
    mapped.preload()
    again = SegmentationDataset(folder, "train", HOW, samples=9, cache=tmp_path / "cache")
    bare = SegmentationDataset(folder, "train", HOW, samples=9, budget=0)
    bare.preload()
    for index in range(9):
        for other in (mapped, again, bare):
            assert torch.equal(kept[index][0], other[index][0]) and torch.equal(kept[index][1], other[index][1])
    assert len(list((tmp_path / "cache").iterdir())) == 2 * len(folder.records("train"))


def test_as_many_images_are_held_as_the_budget_allows(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    read_pair = folder.read_pair

    def noting(record: Record, labels: Labels) -> tuple[Gapped, Mask]:
        decoded.append(record.name)
        return read_pair(record, labels)

    monkeypatch.setattr(folder, "read_pair", noting)
    records = folder.records("train")
    one = records[0].height * records[0].width * (folder.bands + 1)
    for budget, held in ((0, 0), (one, 1), (2 * one - 1, 1), (2 * one, 2), (9 * one, len(records))):
        arrays = Arrays(folder, records, "full", budget=budget)
        arrays.fill()
        decoded.clear()
        for position in (*range(len(records)), *range(len(records))):
            arrays[position]
        assert decoded == 2 * [record.name for record in records[held:]]


def test_a_cache_is_read_through_the_system_and_made_once(folder: Folder, tmp_path: Path) -> None:
    first, again = (Arrays(folder, folder.records("val"), "full", tmp_path / "cache", 0)[0] for _ in range(2))
    assert all(isinstance(array, np.memmap) for array in (*first, *again))
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    Arrays(folder, folder.records("val"), "full", tmp_path / "cache", 0)[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == kept


def test_a_changed_file_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    from PIL import Image

    root = fake_own(tmp_path / "own", images=2)
    first = SegmentationDataset(open_folder(root), "val", cache=tmp_path / "cache")[0][0]
    path = open_folder(root).records("val")[0].image
    Image.new("RGB", (88, 72), (1, 2, 3)).save(path)
    second = SegmentationDataset(open_folder(root), "val", cache=tmp_path / "cache")[0][0]
    assert not torch.equal(first, second) and set(second.unique().tolist()) == {1.0, 2.0, 3.0}


def test_missing_values_of_float_images_are_ignored(tmp_path: Path) -> None:
    from PIL import Image

    root = fake_own(tmp_path, images=2)
    for path in list((root / "images").iterdir()):
        values = np.random.default_rng(0).random((72, 88), dtype=np.float32)
        values[10:20, 30:50] = np.nan
        path.unlink()
        Image.fromarray(values).save(path.with_suffix(".tif"))
    folder = open_folder(root)
    image, mask, _ = SegmentationDataset(folder, "val")[0]
    assert torch.isfinite(image).all() and (mask[10:20, 30:50] == 255).all()
    assert (mask == 255).sum() == 200
