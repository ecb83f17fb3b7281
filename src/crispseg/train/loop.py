"""Runs from their start, or from where they were left, to an orderly end whoever asks for it."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from crispseg import config as configs
from crispseg.data.folder import Folder
from crispseg.errors import UserError
from crispseg.models.shipped import is_pretraining
from crispseg.outputs import only_one
from crispseg.train import run_folder
from crispseg.train.checkpoint import LAST, State, load_checkpoint, remove_leftovers
from crispseg.train.config import MACHINE_KEYS, TrainConfig, config_from
from crispseg.train.data_record import check_data, describe, record_data
from crispseg.train.distributed import Processes, is_first, join_processes
from crispseg.train.finish import Result
from crispseg.train.setup import (
    choose_device,
    complete,
    open_data,
    read_labels,
    say_bands,
)
from crispseg.train.track import Tracker
from crispseg.train.trainer import Trainer
from crispseg.train.watch import StopRequest


def train(config: TrainConfig, trackers: Iterable[Tracker] = (), *, quiet: bool = False) -> Result:
    """Run a new training; `config.out` (or a new folder below runs/) will hold all it leaves. `quiet`: no progress."""
    return train_together([config], trackers, quiet=quiet)[0]


def train_together(
    wanted: Sequence[TrainConfig], trackers: Iterable[Tracker] = (), *, quiet: bool = False
) -> list[Result]:
    """Run several new trainings side by side on the same batches, which are made once.

    Each is what it would be alone, if their cards have one mean: where single bands have no data, all are shown the
    first one's. They must agree in all that makes a batch (see `batch_settings`).
    """
    device = choose_device(wanted[0].device)
    with join_processes(device) as processes, StopRequest().listening() as stop:
        folder = open_data(wanted[0])
        completed = [complete(config, folder, device) for config in wanted]
        if len({repr(batch_settings(config)) for config in completed}) > 1:
            raise UserError("trainings side by side need the same data, crops, seed, batch size and number of steps")
        if processes.first and not quiet and (said := say_bands(wanted[0], completed[0])):
            print(said, file=sys.stderr)
        shares = read_labels(folder, processes)
        trainers = [Trainer(config, folder, processes, stop, shares, trackers) for config in completed]
        with contextlib.ExitStack() as held:
            outs = [_new_run(config, folder, trainers[0].along, processes, held) for config in completed]
            return run_trainers(trainers, outs, quiet)


def batch_settings(config: TrainConfig) -> tuple[Any, ...]:
    """What decides the batches of a training, and how many there are."""
    making = config.data, config.augment, config.crop, config.batch_size, config.accumulate, config.seed
    return *making, config.schedule.steps, config.schedule.epochs, config.device


def _new_run(
    config: TrainConfig, folder: Folder, along: Sequence[Folder], processes: Processes, held: contextlib.ExitStack
) -> Path:
    if processes.first:
        assert config.model.name is not None
        out = run_folder.new_run_folder(config.out, folder.protocol.dataset, config.model.name)
        held.enter_context(only_one(out, "training"))
        config = dataclasses.replace(config, out=str(out))
        with run_folder.beginning(out):
            record_data(out, describe(folder, along))
            run_folder.describe_run(out, config, folder.protocol, processes)
    return Path(str(processes.from_first(config.out)))


def run_trainers(trainers: Sequence[Trainer], outs: Sequence[Path], quiet: bool = False) -> list[Result]:
    """Train until the end, or until somebody asks to stop. All take their batches from the first."""
    try:
        for trainer, out in zip(trainers, outs, strict=True):
            trainer.begin(out, silent=quiet or len(trainers) > 1)
        for parts in trainers[0].batches():
            for trainer in trainers:
                trainer.step(parts)
            if trainers[0].asked_to_stop():
                for trainer in trainers:
                    trainer.save()
                break
        return [trainer.end() for trainer in trainers]
    finally:
        for trainer in trainers:
            trainer.close()


def resume(run: Path, words: Sequence[str] = (), trackers: Iterable[Tracker] = (), *, quiet: bool = False) -> Result:
    """Continue the run in this folder from its last checkpoint (or from the start, when it has none yet)."""
    return resume_together([run], words, trackers, quiet=quiet)[0]


def resume_together(
    runs: Sequence[Path], words: Sequence[str] = (), trackers: Iterable[Tracker] = (), *, quiet: bool = False
) -> list[Result]:
    """Continue runs that began side by side and were left at the same step; finished ones are left as they are."""
    for run in runs:
        if not (run / run_folder.CONFIG).exists():
            raise UserError(f"{run} holds no run to resume: it has no {run_folder.CONFIG}")
        _refuse_pretraining(run)
        _check_words(words, run)
    finished = [run for run in runs if (run / run_folder.RESULT).exists()]
    results = {run: Result(run, run_folder.read_result(run), first=is_first()) for run in finished}
    if finished and not quiet:
        print(*(f"{run} is finished already" for run in finished), sep="\n", file=sys.stderr)
    left = [run for run in runs if run not in results]
    if left:
        with contextlib.ExitStack() as held:
            for run in left if is_first() else ():
                held.enter_context(only_one(run, "training"))
            results |= dict(zip(left, _go_on(left, words, trackers, quiet), strict=True))
    return [results[run] for run in runs]


def _check_words(words: Sequence[str], run: Path) -> None:
    for word in words:
        if word.partition("=")[0] not in MACHINE_KEYS:
            raise UserError(
                f"a resumed run keeps its config; only {', '.join(MACHINE_KEYS)} may change, not {word!r}. "
                f"For a new run from these weights give model.weights={run / 'best'}"
            )


def _refuse_pretraining(run: Path) -> None:
    if is_pretraining(run):
        finished = (run / run_folder.RESULT).exists()
        word = shlex.quote(f"model.weights={run}")
        how = (
            f"it is finished, and `crisp train FOLDER {word}` trains a model from its backbone"
            if finished
            else f"continue it with `crisp pretrain --resume {shlex.quote(str(run))}`"
        )
        raise UserError(f"{run} is a pretraining run; {how}")


def _go_on(runs: Sequence[Path], words: Sequence[str], trackers: Iterable[Tracker], quiet: bool) -> list[Result]:
    left = [_read(run, words) for run in runs]
    if len({(repr(batch_settings(config)), state["step"] if state else 0) for config, state in left}) > 1:
        raise UserError("runs go on side by side only from the same step and with the same batches: resume each alone")
    first = left[0][0]
    with join_processes(choose_device(first.device)) as processes, StopRequest().listening() as stop:
        folder = open_data(first, run_folder.recorded_split(runs[0], first.data.path))
        folder.protocol = run_folder.under_its_name(folder.protocol, runs[0])
        shares = read_labels(folder, processes)
        trainers = [Trainer(config, folder, processes, stop, shares, trackers) for config, _ in left]
        for run, trainer, (_, state) in zip(runs, trainers, left, strict=True):
            if processes.first:
                remove_leftovers(run)
            if state is not None:
                trainer.load(state)
            if processes.first:
                check_data(run, describe(folder, trainer.along), str(folder.root))
        return run_trainers(trainers, runs, quiet)


def _read(run: Path, words: Sequence[str]) -> tuple[TrainConfig, State | None]:
    """Its config, and the checkpoint it goes on from, if there is one."""
    config = config_from(configs.read_yaml(run / run_folder.CONFIG), words)
    _refuse_open_choices(config, run / run_folder.CONFIG)
    if not (run / LAST).exists():
        return config, None
    # it holds all weights: those the run once began with may be gone
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, weights=None))
    return config, load_checkpoint(run / LAST, State)


def _refuse_open_choices(config: TrainConfig, path: Path) -> None:
    """A run writes its config with every choice made; one that leaves something open was changed since."""
    choices = {
        "schedule.steps": config.schedule.steps,
        "schedule.warmup": config.schedule.warmup,
        "batch_size": config.batch_size,
        "val_every": config.val_every,
        "crop": config.crop,
        "precision": config.precision,
        "model.name": config.model.name,
        "optimizer.lr": config.optimizer.lr,
    }
    missing = [name for name, value in choices.items() if value is None]
    if missing:
        raise UserError(f"{path} is damaged: it does not say {', '.join(missing)}")
