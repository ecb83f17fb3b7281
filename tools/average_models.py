"""Average the weights of trained models that began alike.

  python tools/average_models.py OUT MODEL=SHARE MODEL=SHARE ...

Runs of one recipe from one backbone lie in one valley of the loss: their mean is often better than each, and between
two that were shown different shares of the data it is a compromise that neither is. Mean and standard deviation of the
pixels and the temperature are averaged too; the rest of the card is the first model's.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import torch

from crispseg.errors import UserError
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load, save


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("models", nargs="+", metavar="MODEL=SHARE")
    args = parser.parse_args(argv)
    try:
        given = [word.rpartition("=") for word in args.models]
        save(averaged([load(path) for path, _, _ in given], [float(share) for _, _, share in given]), args.out)
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


def _mean(rows: Sequence[Sequence[float]], shares: Sequence[float]) -> tuple[float, ...]:
    weights = torch.tensor(shares, dtype=torch.float64)
    return tuple((torch.tensor(rows, dtype=torch.float64) * weights[:, None]).sum(0).div(weights.sum()).tolist())


if __name__ == "__main__":
    sys.exit(main())
