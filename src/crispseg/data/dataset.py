"""Torch data sets over an opened folder: random augmented windows for training, whole images for evaluation."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from crispseg.data.arrays import BUDGET, Arrays
from crispseg.data.folder import Folder
from crispseg.data.transforms import Augmentation, Draws, augment
from crispseg.errors import UserError

Sample = tuple[Tensor, Tensor, str]  # image float32 (bands, H, W), mask int64 (H, W), name
Key = int | tuple[int, int]  # index, or (epoch, index)


class SegmentationDataset(Dataset[Sample]):
    """Samples of one split.

    With `augmentation`, sample `index` of an epoch is an augmented window: `samples` of them spread evenly over the
    split's pixels. Without, sample `index` is the whole of image `index`. Images are in raw units: what
    trains with them normalises them as its card says. `dataset[epoch, index]` names the epoch; `dataset[index]` means
    epoch 0.
    """

    def __init__(
        self,
        folder: Folder,
        split: str,
        augmentation: Augmentation | None = None,
        *,
        samples: int | None = None,
        seed: int = 0,
        cache: str | Path | None = None,
        budget: int = BUDGET,
    ) -> None:
        self.folder, self.split, self.augmentation, self.seed = folder, split, augmentation, seed
        self.records = folder.records(split)
        self.labels = folder.protocol.labels(split)
        self.arrays = Arrays(folder, self.records, self.labels, cache, budget)
        self._areas = list(itertools.accumulate(r.height * r.width for r in self.records))
        self.samples = samples or self._one_pass()
        self._fill = folder.statistics(split).mean if augmentation else ()
        self._range = self._value_range()

    def _one_pass(self) -> int:
        """As many crops as it takes to cover the split once at scale 1."""
        if self.augmentation is None:
            return len(self.records)
        return max(len(self.records), round(self._areas[-1] / self.augmentation.crop**2))

    def _value_range(self) -> float:
        if self.folder.dtype == "uint8" or self.augmentation is None:
            return 255.0
        # 8-bit pictures spread over about four standard deviations; brightness changes in the same proportion
        return 4 * float(np.mean(self.folder.statistics(self.split).std))

    def __len__(self) -> int:
        return self.samples if self.augmentation else len(self.records)

    def __getitem__(self, key: Key) -> Sample:
        image, mask, name = self.compact(key)
        return *self.finish(image, mask), name

    def compact(self, key: Key) -> Sample:
        """A sample as it travels between processes: the mask, and 8-bit images, still in 8 bits."""
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._whole(index) if self.augmentation is None else self._window(epoch, index)

    def finish(self, images: Tensor, masks: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Compact samples, one or a batch, as float32 images and int64 masks on a device."""
        images = images.to(device, non_blocking=True).to(torch.float32)
        return images, masks.to(device, non_blocking=True).long()

    def _whole(self, index: int) -> Sample:
        image, mask = self.arrays[index]
        kept = np.uint8 if image.dtype == np.uint8 else np.float32
        pixels = torch.from_numpy(np.array(image, dtype=kept)).permute(2, 0, 1).contiguous()
        return pixels, torch.from_numpy(np.array(mask)), self.records[index].name

    def _window(self, epoch: int, index: int) -> Sample:
        assert self.augmentation is not None
        draws = Draws(self.seed, epoch, index)
        # Sample `index` looks into its own stretch of the pixels, so that an epoch covers the images evenly.
        position = (index + draws.unit()) / self.samples * self._areas[-1]
        which = min(bisect.bisect_right(self._areas, position), len(self.records) - 1)
        image, mask = self.arrays[which]
        pixels, labels = augment(image, mask, draws, self.augmentation, self._fill, self._range)
        return pixels, labels, self.records[which].name

    def show_means(self, mean: Sequence[float]) -> None:
        """Show each band's mean, of a model's card, where single bands have no data: `crisp predict` does."""
        self.arrays.mean = tuple(mean)

    def preload(self) -> None:
        """Decode what fits the budget now; done by `make_loader` before it starts workers."""
        self.arrays.fill()


def check_bands(folder: Folder, expected: int, what: str) -> None:
    """Refuse, for instance, a three-band model on four-band data."""
    if folder.bands != expected:
        raise UserError(f"{what} takes {expected} bands, but the images of {folder.root} have {folder.bands}")
