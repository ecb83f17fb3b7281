"""The model card of a shipped model, as Markdown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crispseg.config import read_yaml
from crispseg.errors import UserError
from crispseg.evaluate import Evaluation
from crispseg.evaluate.tables import headline, per_class
from crispseg.evaluate.worst import WorstWindow
from crispseg.models.base import SegmentationModel

_OF_THE_MACHINE = ("out", "device", "workers", "samples", "save_every", "log_every", "max_minutes")


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """What the card says about a data set whose models may be shipped."""

    imagery: str
    licence: str
    origin: str
    limits: str
    chosen_on: str  # what the validation images were used for


DATA = {
    "dubai": DataFacts(
        imagery="satellite images of Dubai",
        licence="CC0 1.0",
        origin=(
            "Satellite imagery of Dubai by the Mohammed Bin Rashid Space Centre (MBRSC), labelled by Humans in the "
            "Loop, in the public domain (CC0 1.0). Tiles 4, 5, 7 and 8 train, tiles 1 and 3 validate; tiles 4 and 8 "
            "overlap on the ground and so stay on one side."
        ),
        limits=(
            "Dubai is one city in a desert, 36 training images; their scale is not given and differs between tiles. "
            "Other places are harder, as far as they were measured: look at the map before using it. The labels are "
            "coarse and uneven; on the validation tiles, for instance, in tracks through the sand (land or road) and "
            "yards between roofs (land or building), so some of what counts as an error is theirs."
        ),
        chosen_on=(
            "There is no test part: recipe and training length were chosen on the two validation tiles, so these "
            "scores are a little kind. They compare our own runs with each other, not with anyone's table."
        ),
    ),
    "nz_buildings": DataFacts(
        imagery="aerial photographs of Christchurch",
        licence="CC BY 4.0, Land Information New Zealand",
        origin=(
            "Aerial photographs of Christchurch by Land Information New Zealand (CC BY 4.0), with the buildings of the "
            "NZ32km2 set of H. Guo et al.; labels say building or not, so the loss asks of the rest only that it be no "
            "building."
        ),
        limits="Christchurch's patches show 20 m each: little around a building, and no wide roads.",
        chosen_on="",
    ),
    "scenes": DataFacts(
        imagery="aerial pictures of woods, fields and shores in the USA",
        licence="public domain, USGS",
        origin=(
            "600 pictures of the UC Merced land use set (Yang and Newsam 2010; USGS imagery, public domain): forest is "
            "vegetation; fields, courts, scrub and beaches are labelled by what their pixels can be, not one by one."
        ),
        limits="",
        chosen_on="",
    ),
    "towns": DataFacts(
        imagery="aerial photographs of towns, streets and rivers in the USA",
        licence="public domain, USGS",
        origin=(
            "526 pictures of the same set, of houses, streets, car parks and rivers, labelled for this model segment "
            "by segment (labels/ucmerced): a fifth validates. Car parks, drives and pavements may be road or land."
        ),
        limits="American pictures show 77 m each, at one scale.",
        chosen_on="",
    ),
}


def facts_of(training_data: str) -> DataFacts:
    """Of all sets that a card names (`dubai/own5 #hash, ...; scenes/own3 #hash, ...`), as one."""
    names = [part.partition("/")[0].strip() for part in training_data.split(";")]
    for name in names:
        if name not in DATA:
            raise UserError(
                f"nothing trained on {name!r} is shipped: its licence is not in tools/model_card.py, which has "
                f"{', '.join(DATA)}"
            )
    parts = [DATA[name] for name in dict.fromkeys(names)]
    return DataFacts(
        imagery=", ".join(part.imagery for part in parts),
        licence="; ".join(dict.fromkeys(part.licence for part in parts)),
        origin="\n\n".join(part.origin for part in parts),
        limits=" ".join(part.limits for part in parts if part.limits),
        chosen_on=parts[0].chosen_on,
    )


@dataclasses.dataclass(frozen=True)
class Shipment:
    name: str
    model: SegmentationModel
    run: Path
    weights: str  # best or last
    facts: DataFacts
    full: Evaluation  # of the float32 weights
    scored: Evaluation  # of the weights as they are stored
    failures: list[WorstWindow]
    note: str
    elsewhere: str = ""  # how it does on other data, as Markdown

    def picture(self, number: int) -> str:
        return f"failure_{number}.jpg"


def card(shipment: Shipment) -> str:
    sections = (_head, _use, _data, _recipe, _scores, _failures)
    return "\n".join(f"{section(shipment)}\n" for section in sections)


def _head(shipment: Shipment) -> str:
    model = shipment.model
    parameters = sum(p.numel() for p in model.parameters())
    start = _config(shipment)["model"].get("weights") or "none"
    start = "scratch" if start == "none" else start
    return (
        f"# {shipment.name}\n\n"
        f"`{model.name}` ({parameters / 1e6:.2f} M parameters, stored in half precision), trained from {start} on "
        f"{shipment.facts.imagery}.\n\n"
        f"- Classes: {', '.join(model.info.classes)}\n"
        f"- Bands: {', '.join(model.info.bands) or model.in_channels}, 8 bit{_pixels(model)}\n"
        f"- Licence: {model.info.licence}"
    )


def _pixels(model: SegmentationModel) -> str:
    sizes = model.info.resolutions
    return f", pixels of {sizes[0]:g} to {sizes[1]:g} m" if sizes else ""


def _use(shipment: Shipment) -> str:
    name = shipment.name
    return (
        "## How to use it\n\n"
        f"```\ncrisp predict city.tif -o map.tif -m {name} --polygons map.gpkg\n"
        f"crisp train data=my_folder model={shipment.model.name} model.weights={name}      # start from it\n```\n\n"
        f'```python\nimport crispseg\n\nclasses = crispseg.segment("city.tif", "{name}")  # (H, W) class ids\n'
        f'model = crispseg.load("{name}")  # a torch.nn.Module in float32\n```'
    )


def _data(shipment: Shipment) -> str:
    return f"## Data\n\n{shipment.facts.origin}\n\n{shipment.facts.limits}"


def _recipe(shipment: Shipment) -> str:
    shown = yaml.safe_dump(_config(shipment), sort_keys=False, default_flow_style=None, width=110)
    result = json.loads((shipment.run / "result.json").read_text(encoding="utf-8"))
    machine = json.loads((shipment.run / "environment.json").read_text(encoding="utf-8"))
    step = result["best_step"] if shipment.weights == "best" else result["steps"]
    where = machine["gpu"] or f"{machine['threads']} CPU thread{'' if machine['threads'] == 1 else 's'}"
    note = f"{shipment.note}\n\n" if shipment.note else ""
    return (
        f"## Recipe\n\n{note}Weights of step {step} of {result['steps']}; {result['seconds'] / 60:.1f} minutes on "
        f"{where}, torch {machine['packages']['torch']}, crispseg {machine['crispseg']}.\n\n```yaml\n{shown}```"
    )


def _config(shipment: Shipment) -> dict[str, Any]:
    """The run's config without what only its machine knows."""
    config = read_yaml(shipment.run / "config.yaml")
    also = [{**one, "path": Path(one["path"]).name} for one in config["data"].get("also") or ()]
    config["data"] = {key: config["data"].get(key) for key in ("protocol", "bands")} | ({"also": also} if also else {})
    if config["model"].get("weights"):
        config["model"]["weights"] = Path(config["model"]["weights"]).name
    return {key: value for key, value in config.items() if key not in _OF_THE_MACHINE}


def _scores(shipment: Shipment) -> str:
    full, half = shipment.full.scores.miou, shipment.scored.scores.miou
    tables = [table(shipment.scored).markdown().replace("## ", "### ", 1) for table in (headline, per_class)]
    return "\n".join(
        [
            f"## Scores\n\n{shipment.scored.conditions.line}\n\n{shipment.facts.chosen_on}\n",
            *tables,
            f"Scored as stored, in half precision; the float32 weights have mIoU {100 * full:.2f} "
            f"(difference {100 * (half - full):+.3f}).",
            *(["", "### Elsewhere", "", shipment.elsewhere] if shipment.elsewhere else []),
        ]
    )


def _failures(shipment: Shipment) -> str:
    lines = [
        "## Known failures",
        "",
        "The most frequent mistakes, as a share of all wrong pixels:",
        "",
        *(f"- {text}" for text in frequent_mistakes(shipment.scored)),
        "",
        "The worst windows of the validation images, one from an image:",
    ]
    names = shipment.scored.conditions.protocol.classes
    for number, window in enumerate(shipment.failures, 1):
        place = f"{window.name}, row {window.top}, column {window.left}"
        lines += ["", f"{place}: {100 * window.share:.0f} % wrong, {main_mistake(window, names)}", ""]
        lines += [f"![{place}]({shipment.picture(number)})"]
    return "\n".join(lines)


def frequent_mistakes(evaluation: Evaluation, limit: int = 5) -> list[str]:
    """The largest cells beside the diagonal of the confusion matrix."""
    names = evaluation.conditions.protocol.classes
    wrong = evaluation.confusion.counts.numpy().copy()
    np.fill_diagonal(wrong, 0)
    total = max(int(wrong.sum()), 1)
    order = np.argsort(wrong, axis=None)[::-1][:limit]
    cells = (divmod(int(spot), len(names)) for spot in order)
    return [f"{names[t]} taken for {names[p]}: {100 * wrong[t, p] / total:.0f} %" for t, p in cells if wrong[t, p]]


def main_mistake(window: WorstWindow, names: tuple[str, ...]) -> str:
    wrong = (window.truth != window.prediction) & (window.truth < len(names))
    pairs = window.truth[wrong].astype(np.int64) * 256 + window.prediction[wrong]
    true, predicted = divmod(int(np.bincount(pairs).argmax()), 256)
    return f"mostly {names[true]} taken for {names[predicted]}"
