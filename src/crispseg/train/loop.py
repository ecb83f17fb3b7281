"""The training loop: steps, validations, checkpoints, and an orderly end whoever asks for it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crispseg import config as configs
from crispseg.data.dataset import SegmentationDataset
from crispseg.data.folder import Folder
from crispseg.data.loader import make_loader
from crispseg.data.shares import SplitShares
from crispseg.errors import UserError
from crispseg.outputs import only_one
from crispseg.train import run_folder
from crispseg.train.checkpoint import BEST, LAST, State, load_checkpoint, remove_leftovers, save_checkpoint
from crispseg.train.config import MACHINE_KEYS, TrainConfig, config_from
from crispseg.train.data_record import check_data, describe, record_data
from crispseg.train.distributed import Processes, is_first, join_processes
from crispseg.train.finish import Result, Scores, finish, save_best
from crispseg.train.log import MetricsLog
from crispseg.train.meter import Meter
from crispseg.train.progress import Progress
from crispseg.train.setup import (
    build_model,
    choose_device,
    choose_workers,
    complete,
    open_data,
    read_labels,
    scoring_set,
    training_set,
    validation_set,
)
from crispseg.train.step import Part, Stepper, autocast, use_fast_kernels
from crispseg.train.track import Tracker, named_trackers
from crispseg.train.validate import Validation, flat_scores, validate
from crispseg.train.watch import FiniteWatch, StopRequest, without_signals


def train(config: TrainConfig, trackers: Iterable[Tracker] = (), *, quiet: bool = False) -> Result:
    """Run a new training; `config.out` (or a new folder below runs/) will hold all it leaves. `quiet`: no progress."""
    return train_together([config], trackers, quiet=quiet)[0]


def train_together(
    wanted: Sequence[TrainConfig], trackers: Iterable[Tracker] = (), *, quiet: bool = False
) -> list[Result]:
    """Run several new trainings side by side on the same batches, which are made once.

    Each is what it would be alone. They must agree in all that makes a batch (see `batch_settings`).
    """
    device = choose_device(wanted[0].device)
    with join_processes(device) as processes, StopRequest().listening() as stop:
        folder = open_data(wanted[0])
        completed = [complete(config, folder, device) for config in wanted]
        if len({repr(batch_settings(config)) for config in completed}) > 1:
            raise UserError("trainings side by side need the same data, crops, seed, batch size and number of steps")
        shares = read_labels(folder, processes)
        trainers = [Trainer(config, folder, processes, stop, shares, trackers) for config in completed]
        with contextlib.ExitStack() as held:
            outs = [_new_run(config, folder, processes, held) for config in completed]
            return run_trainers(trainers, outs, quiet)


def batch_settings(config: TrainConfig) -> tuple[Any, ...]:
    """What decides the batches of a training, and how many there are."""
    making = config.data, config.augment, config.crop, config.batch_size, config.accumulate, config.seed
    return *making, config.schedule.steps, config.schedule.epochs, config.device


def _new_run(config: TrainConfig, folder: Folder, processes: Processes, held: contextlib.ExitStack) -> Path:
    if processes.first:
        assert config.model.name is not None
        out = run_folder.new_run_folder(config.out, folder.protocol.dataset, config.model.name)
        held.enter_context(only_one(out, "training"))
        config = dataclasses.replace(config, out=str(out))
        with run_folder.beginning(out):
            record_data(out, describe(folder))
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
    path = run / run_folder.CONFIG
    if not path.exists():
        raise UserError(f"{run} holds no run to resume: it has no {run_folder.CONFIG}")
    if (run / run_folder.RESULT).exists():
        values = run_folder.read_result(run)
        if not quiet:
            print(f"{run} is finished already", file=sys.stderr)
        return Result(run, values, first=is_first())
    for word in words:
        if word.partition("=")[0] not in MACHINE_KEYS:
            raise UserError(
                f"a resumed run keeps its config; only {', '.join(MACHINE_KEYS)} may change, not {word!r}. "
                f"For a new run from these weights give model.weights={run / 'best'}"
            )
    with only_one(run, "training") if is_first() else contextlib.nullcontext():
        return _go_on(run, words, trackers, quiet)


def _go_on(run: Path, words: Sequence[str], trackers: Iterable[Tracker], quiet: bool) -> Result:
    config = config_from(configs.read_yaml(run / run_folder.CONFIG), words)
    _refuse_open_choices(config, run / run_folder.CONFIG)
    state = load_checkpoint(run / LAST, State) if (run / LAST).exists() else None
    if state is not None:  # it holds all weights: those the run once began with may be gone
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, weights=None))
    with join_processes(choose_device(config.device)) as processes, StopRequest().listening() as stop:
        folder = open_data(config, run_folder.recorded_split(run))
        trainer = Trainer(config, folder, processes, stop, read_labels(folder, processes), trackers)
        if processes.first:
            remove_leftovers(run)
        if state is not None:
            trainer.load(state)
        if processes.first:
            check_data(run, describe(folder), str(folder.root))
        return run_trainers([trainer], [run], quiet)[0]


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


class Trainer:
    """A run in progress. All that decides its weights is a function of the config and of the steps `done`."""

    out: Path
    meter: Meter
    progress: Progress
    log: MetricsLog | None = None

    def __init__(
        self,
        config: TrainConfig,
        folder: Folder,
        processes: Processes,
        stop: StopRequest,
        shares: SplitShares,
        trackers: Iterable[Tracker] = (),
    ) -> None:
        assert config.schedule.steps and config.val_every and config.batch_size, "complete the config first"
        self.config, self.folder, self.processes, self.stop, self.shares = config, folder, processes, stop, shares
        self.steps, self.val_every, self.batch_size = config.schedule.steps, config.val_every, config.batch_size
        self.part_size = _part_size(config.batch_size, config.accumulate, processes.count)
        use_fast_kernels(processes.device)
        self.training, self.validation = training_set(config, folder), validation_set(config, folder)
        self.scoring = scoring_set(config, folder)
        self.stepper = Stepper(build_model(config, folder), config, processes)
        self.watch = FiniteWatch(processes)
        self.trackers = [*trackers]  # beside those that the config names
        self.files = {record.name: str(record.image) for record in folder.records("train")}  # for messages
        self.done, self.saved = 0, -1  # steps
        self.stepped = False  # whether this process has made one
        self.best: dict[str, Any] = {"step": 0, "mIoU": None}
        self.final: Scores | None = None  # of the last weights, once they are there
        self.seconds = 0.0  # spent in earlier sittings
        self.meter_state: dict[str, Any] = {"sums": {}, "steps": 0}
        self.started = time.monotonic()

    def load(self, state: State) -> None:
        """Take over a checkpoint."""
        if state["protocol"] != self.folder.protocol.hash:
            raise UserError(f"the data in {self.folder.root} has other images or classes than when this run began")
        if not 0 <= state["step"] <= self.steps:
            raise UserError(f"the checkpoint is of step {state['step']}, and the run has {self.steps}")
        self.stepper.load_state_dict(state)
        self.done = self.saved = state["step"]
        self.best, self.seconds = {**state["best"]}, state["seconds"]
        self.meter_state = {**state["meter"]}

    def begin(self, out: Path, silent: bool = False) -> None:
        self.out, self.started = out, time.monotonic()
        self.progress = Progress(self.steps, self.done, silent=silent or not self.processes.first)
        self.log = MetricsLog(out, self.done, self._begin_trackers()) if self.processes.first else None
        self.meter = Meter(self.processes, self.log, self.progress, self.batch_size)
        self.meter.load_state_dict(self.meter_state)
        self.progress.say(self._greeting())

    def _begin_trackers(self) -> list[Tracker]:
        told = [*named_trackers(self.config.track, self.progress.say), *self.trackers]
        for tracker in told:
            tracker.begin(self.out, configs.to_dict(self.config), self.done)
        return told

    def end(self) -> Result:
        if self.done < self.steps:
            resume = f"crisp train --resume {self.out}"
            self.progress.say(f"stopped after step {self.done} of {self.steps}; continue: {resume}")
            return Result(self.out, signal=self.stop.signal, first=self.processes.first)
        values = self._finish()
        if self.log is not None:
            self.log.finish(values)
        return Result(self.out, values, first=self.processes.first)

    def close(self) -> None:
        if hasattr(self, "progress"):
            self.progress.close()
        if self.log is not None:
            self.log.close()

    def batches(self) -> Iterator[list[Part]]:
        """The parts of each step that is left."""
        several = self.config.accumulate
        loader = make_loader(
            self.training,
            self.part_size,
            self.steps * several,
            seed=self.config.seed,
            start_step=self.done * several,
            rank=self.processes.rank,
            world=self.processes.count,
            workers=choose_workers(self.config, self.processes.device),
            device=self.processes.device,
        )
        batches = iter(loader)
        # A Ctrl-C or a batch system's SIGTERM goes to every process; the workers, which start with the first batch,
        # must live until the step is done.
        with without_signals(signal.SIGTERM, signal.SIGINT):
            first = list(itertools.islice(batches, 1))
        batches = itertools.chain(first, batches)
        for _ in range(self.done, self.steps):
            yield [Part(*next(batches)) for _ in range(several)]

    def step(self, parts: Sequence[Part]) -> None:
        said = self.stepper.step(self.done, parts)
        self.done += 1
        if not self.stepped:
            self.stepped = True
            self.progress.count_from(self.done)
        self.watch.note(
            self.done, self._must_be_finite(said), [self.files.get(n, n) for part in parts for n in part.names]
        )
        self.meter.add(said)
        ended = self.done == self.steps
        log_due = ended or self.done % self.config.log_every == 0
        val_due = ended or self.done % self.val_every == 0
        save_due = val_due or self.done % self.config.save_every == 0
        if log_due or save_due or self.processes.device.type == "cpu":  # on a GPU asking means waiting
            self.watch.verify()
        if log_due:
            self.meter.record(self.done, {"lr": self.stepper.lr, "epoch": self._epoch(), "seconds": self._elapsed()})
        with self.meter.pause():
            if val_due:
                self._validate()
            if save_due:
                self.save()

    def _must_be_finite(self, said: dict[str, Tensor]) -> Tensor:
        # in fp16 the gradient overflows now and then; such steps are skipped and the scale lowered
        return said["loss"] if self.config.precision == "fp16" else torch.stack([said["loss"], said["grad_norm"]])

    def _validate(self) -> None:
        ended = self.done == self.steps
        found = self._judge(self.validation, boundaries=ended)
        self.final = found.scores if ended and self.scoring.split == "val" else None
        self.meter.write(self.done, flat_scores(found.scores, "val/"))
        self.meter.progress.score = found.scores["mIoU"]
        if self.processes.first:
            run_folder.draw(self.out, self.done, found.shown, self.folder.protocol.palette)
        if self.best["mIoU"] is None or (found.scores["mIoU"] or 0.0) > self.best["mIoU"]:
            self.best = {
                "step": self.done,
                "mIoU": found.scores["mIoU"] or 0.0,
                "temperature": found.temperature,
            }
            # before last.pt: killed between the two, the resumed run comes by here again
            self._write(BEST)
            if self.processes.first:
                save_best(self.out, self.stepper, self._score_line(), found.scores, self.best)

    def _judge(self, images: SegmentationDataset, boundaries: bool) -> Validation:
        """Scores of the weights as they are; of boundaries too, where there are labels for them."""
        labels = self.folder.protocol.boundary_labels

        def network(images: Tensor) -> Tensor:
            with autocast(self.processes.device, self.config.precision):
                return self.stepper.model(self.stepper.normalised(images))

        self.stepper.model.eval()
        with self.stepper.final_weights():
            return validate(
                network,
                images,
                self.processes,
                batch=self.part_size,
                images=self.config.val_images,
                samples=self.config.samples,
                boundaries=boundaries and all(labels in record.masks for record in images.records),
            )

    def save(self) -> None:
        if self.saved != self.done:
            self.watch.verify()
            self._write(LAST)
            self.saved = self.done

    def _write(self, name: str) -> None:
        meter = self.meter.state_dict()
        if self.processes.first:
            state = {
                "step": self.done,
                "meter": meter,
                "best": self.best,
                "seconds": self._elapsed(),
                "protocol": self.folder.protocol.hash,
                "config": configs.to_dict(self.config),
            }
            save_checkpoint(self.out / name, {**state, **self.stepper.state_dict()})

    def asked_to_stop(self) -> bool:
        limit = self.config.max_minutes
        late = limit is not None and time.monotonic() - self.started > 60 * limit
        return self.done < self.steps and self.processes.any(bool(self.stop) or late)

    def _finish(self) -> dict[str, Any]:
        facts = {
            "model": self.config.model.name,
            "protocol": run_folder.score_line(self.folder.protocol, self.config.val_images, self.scoring.split),
            "seed": self.config.seed,
            "steps": self.steps,
            "seconds": self._elapsed(),
        }

        def score() -> Scores:
            return self._judge(self.scoring, boundaries=True).scores

        return finish(self.out, self.stepper, self.processes, score, self.final or score(), facts, self.best)

    def _epoch(self) -> float:
        return round(self.done * self.batch_size / len(self.training), 3)

    def _elapsed(self) -> float:
        return round(self.seconds + time.monotonic() - self.started, 2)

    def _score_line(self) -> str:
        return run_folder.score_line(self.folder.protocol, self.config.val_images)

    def _greeting(self) -> str:
        if self.done:
            return f"{self.out}: going on after step {self.done} of {self.steps}"
        model, processes = self.stepper.model, self.processes
        size = sum(p.numel() for p in model.parameters()) / 1e6
        several = f" x {processes.count}" if processes.count > 1 else ""
        return (
            f"{model.name} ({size:.2f} M parameters) on {processes.device}{several}, {self.config.precision}; "
            f"{len(self.folder.records('train'))} training and {len(self.folder.records('val'))} validation images; "
            f"{self.steps} steps of {self.batch_size} crops of {self.config.crop} px\n"
            f"starts from {model.origin}\n"
            f"{self._score_line()}\n{self.shares}\n"
            + "".join(f"warning: {text}\n" for text in self.shares.warnings)
            + f"run folder {self.out}"
        )


def _part_size(batch_size: int, accumulate: int, processes: int) -> int:
    """Images a process works through at once."""
    if batch_size % (accumulate * processes):
        raise UserError(
            f"batch_size {batch_size} cannot be shared out evenly to {processes} process(es) in {accumulate} part(s); "
            f"it must be a multiple of {accumulate * processes}"
        )
    return batch_size // (accumulate * processes)
