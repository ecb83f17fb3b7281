"""The distinct runs behind several tables on several data sets with several seeds."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crispseg import config as configs
from crispseg.ablate.identity import describe, fingerprint
from crispseg.ablate.start import Start, starting_from, table_start
from crispseg.ablate.table import Table, row_values
from crispseg.configs import SUFFIXES, find_config, find_config_or_folder
from crispseg.data.bands import true_bands
from crispseg.data.folder import scored_split
from crispseg.data.manifest import MANIFEST
from crispseg.errors import UserError
from crispseg.train.config import TrainConfig, config_from
from crispseg.train.run_folder import RESULT

_OPTIONS = {"seed": "--seeds", "out": "--out"}  # keys of a config that are options of the command


@dataclasses.dataclass(frozen=True)
class DataSet:
    label: str  # in headings
    values: Mapping[str, Any]  # of a config


@dataclasses.dataclass(frozen=True)
class Run:
    folder: Path
    config: TrainConfig
    description: Mapping[str, Any]
    title: str  # the first place that needs it

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config_file(self) -> Path:
        return self.folder.with_name(f"{self.name}.yaml")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.name}.log")

    @property
    def result_file(self) -> Path:
        return self.folder / RESULT


class Place(NamedTuple):
    """Where a run's scores go."""

    table: str
    row: str
    data: str
    seed: int

    def __str__(self) -> str:
        return f"{self.table}: {self.row}, {self.data}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class ExperimentPlan:
    tables: tuple[Table, ...]
    data: tuple[DataSet, ...]
    seeds: tuple[int, ...]
    out: Path
    places: Mapping[Place, Run]
    starts: Mapping[tuple[str, str], Start]  # by the names of table and data set
    remarks: Mapping[Place, str]  # on what a run is trained or scored on

    @property
    def runs(self) -> list[Run]:
        """Each once, in the order in which they should be run."""
        return list({run.name: run for run in self.places.values()}.values())

    def runs_of(self, rows: Sequence[str] | None) -> list[Run]:
        """Those that rows of these names need; all, where none are named."""
        if rows is None:
            return self.runs
        known = list(dict.fromkeys(row.name for table in self.tables for row in table.rows))
        for name in rows:
            if name not in known:
                raise UserError(f"no table has a row {name!r}; there are: {'; '.join(known)}")
        return [run for run in self.runs if any(place.row in rows for place in self.uses(run))]

    def uses(self, run: Run) -> list[Place]:
        return [place for place, other in self.places.items() if other.name == run.name]

    def start_lines(self, table: Table) -> list[str]:
        """What a table's rows start from, one line for all data sets where it is the same."""
        lines = {one.label: str(self.starts[table.name, one.label]) for one in self.data}
        if len(set(lines.values())) == 1:
            return [f"Start: {next(iter(lines.values()))}."]
        return [f"Start on {label}: {line}." for label, line in lines.items()]

    def warnings(self, table: Table) -> list[str]:
        """What is doubtful about a table."""
        found = [text for one in self.data for text in self.starts[table.name, one.label].warnings]
        found += [text for place, text in self.remarks.items() if place.table == table.name and text]
        return list(dict.fromkeys(found))


def make_plan(
    tables: Sequence[Table], data: Sequence[DataSet], words: Sequence[str], seeds: Sequence[int], out: Path
) -> ExperimentPlan:
    """Every config is checked before anything runs. Seed by seed, so that a plan cut short has whole tables."""
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise UserError(f"two tables are called {next(n for n in names if names.count(n) > 1)!r}; give one a `name:`")
    for word in words:
        name, _, value = word.partition("=")
        if name in _OPTIONS:  # the plan sets it for every run
            raise UserError(f"{word} says nothing here, as every run has its own; give {_OPTIONS[name]} {value}")
    seeds = list(dict.fromkeys(seeds))
    places: dict[Place, Run] = {}
    starts: dict[tuple[str, str], Start] = {}
    remarks: dict[Place, str] = {}
    facts = _Facts()
    for seed in seeds:
        for one in data:
            for table in tables:
                rows = {}
                for row in table.rows:
                    place = Place(table.name, row.name, one.label, seed)
                    values = row_values(table, row, one.values)
                    rows[row.name], remarks[place] = _row_config(values, [*words, f"seed={seed}"], one.label, facts)
                key = (table.name, one.label)
                starts[key] = starts.get(key) or table_start(rows)
                for name, config in rows.items():
                    place = Place(table.name, name, one.label, seed)
                    places[place] = _plan_run(place, starting_from(config, starts[key].weights[name]), out)
    return ExperimentPlan(tuple(tables), tuple(data), tuple(seeds), out, places, starts, remarks)


class _Facts:
    """What the data folders say, each asked once."""

    def __init__(self) -> None:
        self.scored_split, self.true_bands = functools.cache(scored_split), functools.cache(true_bands)


def _row_config(values: Mapping[str, Any], words: Sequence[str], label: str, facts: _Facts) -> tuple[TrainConfig, str]:
    """The config of a row, and what must be said of it. Its bands are those of the images, and it is scored as the
    config's or the folder's own protocol says unless told otherwise: val may be a single tile models are chosen on.
    """
    config = config_from(values, words)
    data, said = config.data, []
    if data.bands and (bands := facts.true_bands(data.path, data.bands)) != data.bands:
        usual = ", ".join(data.bands)
        said.append(f"the bands of {label} are {', '.join(bands)}, as {MANIFEST} says, and not {usual}")
        config = dataclasses.replace(config, data=dataclasses.replace(data, bands=bands))
    split = facts.scored_split(data.path, data.protocol, data.split)
    if split != "val" and config.score == "val":
        if "score" in values or any(word.partition("=")[0] == "score" for word in words):
            said.append(f"{label} is scored on val, as asked, and not on {split}")
        else:
            config = dataclasses.replace(config, score="protocol")
    return config, "; ".join(said)


def _plan_run(place: Place, config: TrainConfig, out: Path) -> Run:
    description = describe(config)
    words = (place.data, config.model.name or "model", f"seed{place.seed}", fingerprint(description))
    folder = out / "runs" / "-".join(slug(word) for word in words)
    return Run(folder, dataclasses.replace(config, out=str(folder)), description, str(place))


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def read_data_sets(words: Sequence[str]) -> list[DataSet]:
    """From configs, configs with another place for their images (`CONFIG=FOLDER`), and plain data folders."""
    sets = [_read_data_set(word) for word in words]
    labels = [one.label for one in sets]
    for i, word in enumerate(words):
        if labels.count(labels[i]) > 1:  # two recipes for the same images
            sets[i] = dataclasses.replace(sets[i], label=Path(word.partition("=")[0]).stem)
    if len({one.label for one in sets}) < len(sets):
        raise UserError(f"--data names the same twice: {', '.join(words)}")
    return sets


def _read_data_set(word: str) -> DataSet:
    first, _, folder = word.partition("=")
    if folder and "." in first and not first.endswith(SUFFIXES):
        raise UserError(f"--data {word}: that is a key, and no data set; key=value words go before --data")
    try:
        path = find_config(first) if folder else find_config_or_folder(word)
    except UserError as error:
        raise UserError(f"--data {word}: {error}; key=value words go before --data") from None
    if path.is_dir():
        return DataSet(path.resolve().name, {"data": {"path": word}})
    values = configs.read_yaml(path)
    if folder:
        values = configs.merge(values, {"data": {"path": folder}})
    config = config_from(values)
    return DataSet(config.data.protocol or Path(config.data.path).name or Path(first).stem, values)
