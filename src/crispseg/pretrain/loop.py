"""The pretraining loop: steps, scores of the features, checkpoints, and the backbone's folder at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.files import write_json, write_text
from crispseg.models.backbone_folder import save_backbone
from crispseg.models.pretrained import start_backbone
from crispseg.models.shipped import PRETRAINED
from crispseg.models.vssd import VSSD, create_backbone
from crispseg.outputs import only_one
from crispseg.pretrain.card import card_facts
from crispseg.pretrain.config import MACHINE_KEYS, PretrainConfig, resumed_config
from crispseg.pretrain.data_record import describe
from crispseg.pretrain.feed import Feed, LearningSet, hold_pictures, open_sets, share_out
from crispseg.pretrain.network import Pretraining
from crispseg.pretrain.scores import score_features
from crispseg.pretrain.step import PretrainStepper
from crispseg.pretrain.teacher import Teacher
from crispseg.reading import read_json
from crispseg.threads import available_cores
from crispseg.train import run_folder
from crispseg.train.checkpoint import LAST, Sums, load_checkpoint, remove_leftovers, save_checkpoint
from crispseg.train.data_record import check_data, record_data
from crispseg.train.distributed import Processes, is_first, join_processes
from crispseg.train.finish import Result
from crispseg.train.log import MetricsLog
from crispseg.train.meter import Meter
from crispseg.train.progress import Progress
from crispseg.train.setup import choose_device, choose_precision
from crispseg.train.start import SCRATCH
from crispseg.train.step import autocast, use_fast_kernels
from crispseg.train.watch import FiniteWatch, StopRequest

_BATCH = {"cuda": 1024, "cpu": 64}
_EPOCHS = {"cuda": 30.0, "cpu": 1.0}
_SCORES = 5  # on the way, unless told otherwise


@dataclasses.dataclass(frozen=True)
class Pretrained(Result):
    """How a run ended."""

    def __str__(self) -> str:
        lines = [f"{name}: {100 * value:.1f} %" for name, value in self.values["scores"].items()]
        folder = self.out / PRETRAINED
        word = shlex.quote(f"model.weights={folder}")
        return "\n".join([*lines, f"backbone: {folder}; use it with crisp train FOLDER {word}"])


def pretrain(config: PretrainConfig, *, quiet: bool = False) -> Pretrained:
    """Run a new pretraining; `config.out` (or a new folder below runs/) will hold all it leaves."""
    device = choose_device(config.device)
    with join_processes(device) as processes, StopRequest().listening() as stop:
        sets = open_sets(config)
        config = complete(config, sets, device)
        trainer = Pretrainer(config, sets, processes, stop)
        with contextlib.ExitStack() as held:
            out = _new_run(config, sets, processes, held)
            return trainer.run(out, quiet)


def _new_run(
    config: PretrainConfig, sets: Sequence[LearningSet], processes: Processes, held: contextlib.ExitStack
) -> Path:
    if processes.first:
        label = "+".join(one.name for one in sets)
        out = run_folder.new_run_folder(config.out, label, config.model.name, "pretrain")
        held.enter_context(only_one(out, "training"))
        config = dataclasses.replace(config, out=str(out))
        with run_folder.beginning(out):
            record_data(out, describe(sets))
            write_json(out / run_folder.ENVIRONMENT, run_folder.environment(processes))
            _write_config(config, out / run_folder.CONFIG)
    return Path(str(processes.from_first(config.out)))


def resume(run: Path, words: Sequence[str] = (), *, quiet: bool = False) -> Pretrained:
    """Continue the run in this folder from its last checkpoint (or from the start, when it has none yet)."""
    path = run / run_folder.CONFIG
    if not path.exists():
        raise UserError(f"{run} holds no run to resume: it has no {run_folder.CONFIG}")
    if "sets" not in configs.read_yaml(path):
        raise UserError(f"{run} is no pretraining run; continue it with `crisp train --resume {shlex.quote(str(run))}`")
    for word in words:
        if word.partition("=")[0] not in MACHINE_KEYS:
            raise UserError(f"a resumed run keeps its config; only {', '.join(MACHINE_KEYS)} may change, not {word!r}")
    if (run / run_folder.RESULT).exists():
        if not quiet:
            print(f"{run} is finished already", file=sys.stderr)
        values = configs.checked(_Ended, read_json(run / run_folder.RESULT), str(run / run_folder.RESULT))
        return Pretrained(run, values, first=is_first())
    with only_one(run, "training") if is_first() else contextlib.nullcontext():
        return _go_on(run, words, quiet)


def _go_on(run: Path, words: Sequence[str], quiet: bool) -> Pretrained:
    config = resumed_config(configs.read_yaml(run / run_folder.CONFIG), words)
    chosen = (config.schedule.steps, config.schedule.warmup, config.batch_size, config.score_every, config.precision)
    if None in chosen:
        raise UserError(f"{run / run_folder.CONFIG} is damaged: a run's config leaves nothing open")
    state = load_checkpoint(run / LAST, _State) if (run / LAST).exists() else None
    with join_processes(choose_device(config.device)) as processes, StopRequest().listening() as stop:
        sets = open_sets(config)
        # a checkpoint holds all weights: those the run once began with may be gone
        trainer = Pretrainer(config, sets, processes, stop, begun=state is not None)
        if processes.first:
            remove_leftovers(run)
            check_data(run, describe(sets), ", ".join(one.config.path for one in sets))
        if state is not None:
            trainer.load(state)
        return trainer.run(run, quiet)


def complete(config: PretrainConfig, sets: Sequence[LearningSet], device: str) -> PretrainConfig:
    """The config with everything chosen that was left open, so that the run can be repeated elsewhere."""
    batch_size = config.batch_size or _BATCH[device]
    pictures = sum(len(one.training) for one in sets)
    epochs = config.schedule.epochs or _EPOCHS[device]
    steps = config.schedule.steps or math.ceil(epochs * pictures / batch_size)
    warmup = steps // 20 if config.schedule.warmup is None else config.schedule.warmup
    return dataclasses.replace(
        config,
        sets=tuple(
            dataclasses.replace(one.config, name=one.name, path=str(Path(one.config.path).resolve())) for one in sets
        ),
        schedule=dataclasses.replace(config.schedule, steps=steps, epochs=None, warmup=warmup),
        batch_size=batch_size,
        precision=config.precision or choose_precision(device),
        score_every=config.score_every or math.ceil(steps / _SCORES),
    )


def sizes_by_step(config: PretrainConfig) -> list[int]:
    """The side of the network's input at every step."""
    assert config.schedule.steps is not None
    shares = config.size_shares or (1.0,) * len(config.sizes)
    ends = [sum(shares[: i + 1]) / sum(shares) * config.schedule.steps for i in range(len(shares))]
    return [
        next((size for size, end in zip(config.sizes, ends, strict=True) if step < end), config.sizes[-1])
        for step in range(config.schedule.steps)
    ]


class Pretrainer:
    """A run in progress. All that decides its weights is a function of the config and of the steps `done`."""

    out: Path
    meter: Meter

    def __init__(
        self,
        config: PretrainConfig,
        sets: Sequence[LearningSet],
        processes: Processes,
        stop: StopRequest,
        begun: bool = False,
    ) -> None:
        assert config.schedule.steps and config.batch_size and config.score_every, "complete the config first"
        self.config, self.sets, self.processes, self.stop = config, sets, processes, stop
        self.steps, self.score_every = config.schedule.steps, config.score_every
        use_fast_kernels(processes.device)
        share_out(sets, config.batch_size, processes.count)
        self.sizes = sizes_by_step(config)
        teacher = Teacher(config.teacher, processes.device) if config.teacher.build else None
        self.twice = [one.name for one in sets if not one.labelled and teacher is None]
        self.feed = Feed(sets, config, processes, self.twice)
        self.stepper = PretrainStepper(self._network(teacher, begun), config, processes, teacher)
        self.watch = FiniteWatch(processes)
        self.done, self.saved = 0, -1  # steps
        self.scores: dict[str, float] = {}
        self.seconds = 0.0  # spent in earlier sittings
        self.meter_state: dict[str, Any] = {"sums": {}, "steps": 0}
        self.started = time.monotonic()

    def _network(self, teacher: Teacher | None, begun: bool) -> Pretraining:
        torch.manual_seed(self.config.seed)
        backbone = create_backbone(self.config.model.name, **self.config.model.options)
        weights = self.config.model.weights
        if weights and weights != SCRATCH and not begun:
            start_backbone(backbone, weights)
        size, taught = self.config.sizes[-1], list[tuple[int, ...]]()
        if teacher is not None:
            taught = [teacher.shapes(side, self.processes.device) for side in self.config.sizes][-1]
        classes = {one.name: len(one.training.classes) for one in self.sets if one.labelled}
        return Pretraining(backbone, self.feed.parts, classes, taught, size, self.twice, self.config.views.width)

    def load(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint."""
        if state["pictures"] != self._pictures():
            raise UserError("the sets have other pictures or classes than when this run began")
        self.stepper.load_state_dict(state)
        self.done = self.saved = state["step"]
        self.scores, self.seconds, self.meter_state = dict(state["scores"]), state["seconds"], state["meter"]
        self.backbone.origin = state.get("started_from", self.config.model.weights or VSSD.origin)

    @property
    def backbone(self) -> VSSD:
        return self.stepper.model.backbone

    def _pictures(self) -> dict[str, list[int]]:
        return {one.name: [len(one.training), len(one.training.classes)] for one in self.sets}

    def run(self, out: Path, quiet: bool = False) -> Pretrained:
        """Train until the end, or until somebody asks to stop."""
        self.out, self.started = out, time.monotonic()
        log = MetricsLog(out, self.done) if self.processes.first else None
        progress = Progress(self.steps, self.done, silent=quiet or not self.processes.first, score="k-NN")
        assert self.config.batch_size is not None
        self.meter = Meter(self.processes, log, progress, self.config.batch_size)
        self.meter.load_state_dict(self.meter_state)
        try:
            progress.say(self._greeting())
            hold_pictures(self.sets, self.config.hold, self.config.cache, self.processes.device)
            self._steps()
            if self.done < self.steps:
                line = f"crisp pretrain --resume {shlex.quote(str(out))}"
                progress.say(f"stopped after step {self.done} of {self.steps}; continue: {line}")
                return Pretrained(out, signal=self.stop.signal, first=self.processes.first)
            return Pretrained(out, self._finish(), first=self.processes.first)
        finally:
            progress.close()
            if log is not None:
                log.close()

    def _steps(self) -> None:
        first = self.done
        for batch in self.feed.from_step(self.done, self.steps, self._workers(), self.sizes):
            said = self.stepper.step(self.done, batch)
            self.done += 1
            if self.done == first + 1:
                self.meter.progress.count_from(self.done)
            self._after_step(said)
            if self._asked_to_stop():
                self._save()
                return

    def _workers(self) -> int:
        if self.config.workers is not None:
            return self.config.workers
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return min(16, max(1, available_cores() // local)) if self.processes.device.type == "cuda" else 0

    def _after_step(self, said: dict[str, Tensor]) -> None:
        finite = said["loss"] if self.config.precision == "fp16" else torch.stack([said["loss"], said["grad_norm"]])
        self.watch.note(self.done, finite, [one.name for one in self.sets])
        self.meter.add(said)
        ended = self.done == self.steps
        log_due = ended or self.done % self.config.log_every == 0
        score_due = ended or self.done % self.score_every == 0
        save_due = score_due or self.done % self.config.save_every == 0
        if log_due or save_due:
            self.watch.verify()
        if score_due:  # before the record, whose line shows the score
            with self.meter.pause():
                self._score()
        if log_due:
            facts = {"lr": self.stepper.lr, "size": self.sizes[self.done - 1], "seconds": self._elapsed()}
            self.meter.record(self.done, facts)
        if save_due:
            with self.meter.pause():
                self._save()

    def _score(self) -> None:
        """k-NN and linear scores of every set that has pictures kept back; the same in every process."""

        def embed(images: Tensor) -> Tensor:
            with autocast(self.processes.device, self.config.precision):
                return self.stepper.model.pooled(self.stepper.normalised(images))

        self.stepper.model.eval()
        size = self.sizes[self.done - 1]
        with self.stepper.final_weights():
            for one in self.sets:
                if one.held_back is not None:
                    found = score_features(
                        embed, one.training, one.held_back, self.config.score_images, size, self.processes.device
                    )
                    self.scores |= {f"{one.name}/{kind}": value for kind, value in found.items()}
        if self.scores:
            self.meter.write(self.done, {f"val/{name}": value for name, value in self.scores.items()})
            self.meter.progress.score = next(iter(self.scores.values()))

    def _save(self) -> None:
        if self.saved == self.done:
            return
        self.watch.verify()
        meter = self.meter.state_dict()
        if self.processes.first:
            state = {
                "step": self.done,
                "meter": meter,
                "scores": self.scores,
                "seconds": self._elapsed(),
                "pictures": self._pictures(),
                "started_from": self.backbone.origin,
                "config": configs.to_dict(self.config),
            }
            save_checkpoint(self.out / LAST, {**state, **self.stepper.state_dict()})
        self.saved = self.done

    def _asked_to_stop(self) -> bool:
        limit = self.config.max_minutes
        late = limit is not None and time.monotonic() - self.started > 60 * limit
        return self.done < self.steps and self.processes.any(bool(self.stop) or late)

    def _finish(self) -> dict[str, Any]:
        values = {
            "backbone": self.config.model.name,
            "sets": self._pictures(),
            "steps": self.steps,
            "batch_size": self.config.batch_size,
            "seed": self.config.seed,
            "seconds": self._elapsed(),
            "scores": self.scores,
        }
        if self.processes.first:
            info = card_facts(self.config, self.sets, self.backbone.origin, self.scores)
            with self.stepper.final_weights():
                save_backbone(self.backbone, self.out / PRETRAINED, self.config.model.name, info)
            write_json(self.out / run_folder.RESULT, values)
        self.processes.wait()
        return values

    def _elapsed(self) -> float:
        return round(self.seconds + time.monotonic() - self.started, 2)

    def _greeting(self) -> str:
        size = sum(p.numel() for p in self.backbone.parameters()) / 1e6
        several = f" x {self.processes.count}" if self.processes.count > 1 else ""
        sets = "; ".join(
            f"{one.name}: {len(one.training)} pictures, "
            + (f"{len(one.training.classes)} classes" if one.labelled else "no labels")
            + f", {one.count} per step"
            for one in self.sets
        )
        sides = ", ".join(map(str, self.config.sizes))
        return (
            f"{self.config.model.name} ({size:.2f} M parameters) on {self.processes.device}{several}, "
            f"{self.config.precision}; {self.steps} steps of {self.config.batch_size} pictures of {sides} px\n"
            f"starts from {self.backbone.origin}\n{sets}\n"
            + "".join(f"{one.name}: {note}\n" for one in self.sets for note in one.training.source.notes)
            + f"run folder {self.out}"
        )


class _Always(TypedDict):
    step: int
    meter: Sums
    scores: dict[str, float]
    seconds: float
    pictures: dict[str, list[int]]


class _State(_Always, total=False):
    """What a checkpoint holds; `PretrainStepper` knows more of its parts."""

    started_from: str


class _Ended(TypedDict):
    scores: dict[str, float]


def _write_config(config: PretrainConfig, path: Path) -> None:
    import yaml

    write_text(path, yaml.safe_dump(configs.to_dict(config), sort_keys=False, allow_unicode=True))
