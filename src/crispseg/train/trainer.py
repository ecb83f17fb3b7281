"""A run in progress: its batches, steps, validations and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crispseg import config as configs
from crispseg.data.dataset import SegmentationDataset
from crispseg.data.folder import Folder
from crispseg.data.joined import JoinedSet
from crispseg.data.loader import make_loader
from crispseg.data.shares import SplitShares
from crispseg.errors import UserError
from crispseg.models.vssd import VSSD
from crispseg.models.vssd_checkpoint import other_fusion
from crispseg.train import run_folder
from crispseg.train.checkpoint import BEST, LAST, State, save_checkpoint
from crispseg.train.config import TrainConfig
from crispseg.train.distributed import Processes
from crispseg.train.finish import Result, Scores, finish, save_best
from crispseg.train.log import MetricsLog
from crispseg.train.meter import Meter
from crispseg.train.optimizer import without_effect
from crispseg.train.progress import Progress
from crispseg.train.schedule import too_long_a_warmup
from crispseg.train.setup import (
    build_model,
    choose_workers,
    scoring_set,
    training_set,
    validation_set,
)
from crispseg.train.step import Part, Stepper, use_fast_kernels
from crispseg.train.track import Tracker, named_trackers
from crispseg.train.validate import Validation, flat_scores, validate
from crispseg.train.watch import FiniteWatch, StopRequest, shielding_workers


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
        self.begun = contextlib.ExitStack()  # of trackers, which are told of the end
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
        model = self.stepper.model  # which was made anew, without the weights that the run once began with
        model.info = dataclasses.replace(model.info, started_from=state.get("started_from", ""))

    def begin(self, out: Path, silent: bool = False) -> None:
        self.out, self.started = out, time.monotonic()
        for data in (self.training, self.validation, self.scoring):
            data.show_means(self.stepper.model.info.mean)
        self.progress = Progress(self.steps, self.done, silent=silent or not self.processes.first)
        self.log = MetricsLog(out, self.done, self._begin_trackers()) if self.processes.first else None
        self.meter = Meter(self.processes, self.log, self.progress, self.batch_size)
        self.meter.load_state_dict(self.meter_state)
        self.progress.say(self._greeting())
        if self.processes.first and not self.done:
            self.progress.warn(too_long_a_warmup(self.config.schedule))
            self.progress.warn(without_effect(self.stepper.model, self.config.optimizer))
        backbone, weights = getattr(self.stepper.model, "backbone", None), self.config.model.weights
        if self.processes.first and not self.done and isinstance(backbone, VSSD) and Path(weights or "").is_file():
            self.progress.warn(other_fusion(backbone))

    def _begin_trackers(self) -> list[Tracker]:
        told = [*named_trackers(self.config.track, self.progress.say), *self.trackers]
        for tracker in told:
            tracker.begin(self.out, configs.to_dict(self.config), self.done)
            self.begun.callback(tracker.close)
        return told

    def end(self) -> Result:
        if self.done < self.steps:
            resume = f"crisp train --resume {shlex.quote(str(self.out))}"
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
        self.begun.close()

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
        batches = shielding_workers(iter(loader))
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
        score, highest = found.scores["mIoU"], self.best["mIoU"]
        if score is None or highest is None or score > highest:  # where nothing is labelled, the latest weights
            self.best = {
                "step": self.done,
                "mIoU": score,
                "temperature": found.temperature,
            }
            # before last.pt: killed between the two, the resumed run comes by here again
            self._write(BEST)
            if self.processes.first:
                save_best(self.out, self.stepper, self._score_line(), found.scores, self.best)

    def _judge(self, images: SegmentationDataset, boundaries: bool) -> Validation:
        """Scores of the weights as they are; of boundaries too, where there are labels for them."""
        labels = self.folder.protocol.boundary_labels
        self.stepper.model.eval()
        with self.stepper.final_weights():
            return validate(
                self.stepper.logits,
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
                "started_from": self.stepper.model.info.started_from,
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
            f"{len(self.folder.records('train'))} training{self._along()} and {len(self.folder.records('val'))} "
            f"validation images; "
            f"{self.steps} steps of {self.batch_size} crops of {self.config.crop} px\n"
            f"starts from {model.origin}\n"
            f"{self._score_line()}\n{self.shares}\n"
            + "".join(f"warning: {text}\n" for text in self.shares.warnings)
            + f"run folder {self.out}"
        )

    @property
    def along(self) -> list[Folder]:
        """The sets of `data.also`."""
        return [one.data.folder for one in self.training.companions] if isinstance(self.training, JoinedSet) else []

    def _along(self) -> str:
        counts = [f"{len(other.records('train'))} of {other.protocol.dataset}" for other in self.along]
        return f" (and {', '.join(counts)} along with them)" if counts else ""


def _part_size(batch_size: int, accumulate: int, processes: int) -> int:
    """Images a process works through at once."""
    if batch_size % (accumulate * processes):
        raise UserError(
            f"batch_size {batch_size} cannot be shared out evenly to {processes} process(es) in {accumulate} part(s); "
            f"it must be a multiple of {accumulate * processes}"
        )
    return batch_size // (accumulate * processes)
