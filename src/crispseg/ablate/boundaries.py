"""Tables of boundary scores need labels that have boundaries, which is asked before anything is trained."""

from __future__ import annotations

from crispseg.ablate.plan import ExperimentPlan, Run
from crispseg.ablate.store import Store
from crispseg.ablate.table import Table
from crispseg.errors import UserError
from crispseg.train.setup import open_data, scoring_split


def check_boundaries(plan: ExperimentPlan, store: Store) -> None:
    """Refuse to train for a table that is about boundaries where the images to score have no labels for them."""
    for table in plan.tables:
        if not any("@" in name for name in table.scores[:1]):  # what a table shows first is what it is about
            continue
        runs = {place.data: run for place, run in plan.places.items() if place.table == table.name}
        for run in runs.values():
            if store.find(run) is None:
                _check(table, run)


def _check(table: Table, run: Run) -> None:
    folder = open_data(run.config)
    split, labels = scoring_split(run.config, folder), folder.protocol.boundary_labels
    records = folder.records(split)
    lacking = [record.name for record in records if labels not in record.masks]
    if lacking:
        raise UserError(
            f"the table {table.name} scores boundaries on {labels} labels, which {len(lacking)} of the {len(records)} "
            f"{split} images in {folder.root} do not have: its rows would be trained for empty columns. Prepare it "
            f"with {labels} labels, or take another table"
        )
