"""Average the weights of trained models that began alike.

  python tools/average_models.py OUT MODEL=SHARE MODEL=SHARE ... --norms CONFIG

Runs of one recipe from one backbone lie in one valley of the loss: their mean is often better than each, and between
two that were shown different shares of the data it is a compromise that neither is. Mean and standard deviation of the
pixels and the temperature are averaged too; the rest of the card is the first model's. Statistics of batch norms belong
to the weights they were counted with: `--norms` counts them anew, on training crops of a recipe.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from crispseg.data import make_loader
from crispseg.errors import UserError
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load, save
from crispseg.train.config import train_config
from crispseg.train.setup import complete, open_data, training_set


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("models", nargs="+", metavar="MODEL=SHARE")
    parser.add_argument("--norms", metavar="CONFIG", help="count the norms' statistics anew on this recipe's crops")
    parser.add_argument("--batches", type=int, default=50, help="of the recipe, for that (%(default)s)")
    args = parser.parse_args(argv)
    try:
        given = [word.rpartition("=") for word in args.models]
        model = averaged([load(path) for path, _, _ in given], [float(share) for _, _, share in given])
        if args.norms:
            count_norms(model, training_crops(args.norms, args.batches))
        save(model, args.out)
    except (UserError, ValueError) as error:
        print(f"average_models: {error}", file=sys.stderr)
        return 1
    return 0


def averaged(models: Sequence[SegmentationModel], shares: Sequence[float]) -> SegmentationModel:
    """The first model with the weighted mean of all weights; what counts steps is the first's."""
    first, total = models[0], sum(shares)
    states = [model.state_dict() for model in models]
    if any({k: v.shape for k, v in state.items()} != {k: v.shape for k, v in states[0].items()} for state in states):
        raise UserError("the models differ in their architecture")
    mean = {
        name: sum((share / total) * state[name] for share, state in zip(shares, states, strict=True))
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }
    first.load_state_dict(mean)
    first.info = dataclasses.replace(
        first.info,
        mean=_mean([model.info.mean for model in models], shares),
        std=_mean([model.info.std for model in models], shares),
        temperature=_mean([[model.info.temperature] for model in models], shares)[0],
    )
    return first


def training_crops(recipe: str, batches: int) -> Iterator[torch.Tensor]:
    """Raw images (B, bands, H, W) as training with that config would see them first."""
    config = train_config(recipe, [])
    folder = open_data(config)
    config = complete(config, folder, "cpu")
    loader = make_loader(training_set(config, folder), config.batch_size or 1, batches, workers=0, device="cpu")
    return (images.float() for images, *_ in loader)


@torch.no_grad()
def count_norms(model: SegmentationModel, crops: Iterable[torch.Tensor]) -> None:
    """Give every batch norm the mean of its inputs' statistics over the crops, all else as in evaluation."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    kept = [norm.momentum for norm in norms]
    normalisation = model.info.normalisation(torch.device("cpu"))
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all that comes
        norm.train()
    for images in crops:
        model(normalisation(images))
    model.eval()
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum


def _mean(rows: Sequence[Sequence[float]], shares: Sequence[float]) -> tuple[float, ...]:
    weights = torch.tensor(shares, dtype=torch.float64)
    return tuple((torch.tensor(rows, dtype=torch.float64) * weights[:, None]).sum(0).div(weights.sum()).tolist())


if __name__ == "__main__":
    sys.exit(main())
