"""Runs what is not finished, in a few processes that each train one run after the other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crispseg.ablate.plan import Run
from crispseg.ablate.store import Store
from crispseg.errors import UserError
from crispseg.metrics.words import percent
from crispseg.threads import available_cores
from crispseg.train.config import write_config
from crispseg.train.data_record import describe, digest
from crispseg.train.log import METRICS
from crispseg.train.loop import batch_settings
from crispseg.train.run_folder import CONFIG, ENVIRONMENT, PROTOCOL, RESULT
from crispseg.train.setup import open_data

Say = Callable[[str], None]
_SMALL_FILES = (CONFIG, ENVIRONMENT, PROTOCOL, METRICS, RESULT)


class Failure(NamedTuple):
    """A run that went wrong."""

    title: str
    why: str
    log: Path


class Worker:
    """A process that trains what it is told (see `server`)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "crispseg.ablate.server"]
        # a session of its own: Ctrl-C is for the runner, which then asks the workers to stop
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def train(self, task: Mapping[str, Any]) -> bool:
        """Whether the process is still there afterwards."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(task), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return False
        return bool(self.process.stdout.readline())

    def ask_to_stop(self) -> None:
        """A run in progress saves and ends."""
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


class Runner:
    """At most `together` at once. Asked to stop, its processes save and end; the same command goes on.

    Up to `sharing` runs that differ in nothing that makes a batch are one process's, which makes each batch once; runs
    that were cut off go on so, too.
    """

    def __init__(
        self,
        store: Store,
        together: int,
        say: Say,
        keep_all: bool = True,
        minutes: float | None = None,
        sharing: int = 1,
    ) -> None:
        self.store, self.together, self.say, self.keep_all = store, together, say, keep_all
        self.sharing = sharing
        self.last_start = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, runs: Sequence[Run], beside: Sequence[Run] = ()) -> list[Failure]:
        """What went wrong, one for each failed run. `beside` are others that stand in the same tables."""
        self._check_data(runs, beside)
        before = signal.signal(signal.SIGTERM, _interrupt)
        pool = ThreadPoolExecutor(self.together)
        try:
            found = pool.map(self._run_group, self._groups(runs))
            return [problem for problems in found for problem in problems]
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for worker in self._idle:
                worker.end()
            signal.signal(signal.SIGTERM, before)

    def _check_data(self, runs: Sequence[Run], beside: Sequence[Run] = ()) -> None:
        """Refuse data that cannot be opened, and to set new runs beside finished ones that learnt from other pixels or
        labels."""
        left = {repr(run.config.data): run for run in runs if self.store.find(run) is None}
        if not left:
            return
        for run in left.values():
            open_data(run.config)  # or each of its runs would fail in a process of its own
        now: dict[str, str] = {}
        for run in (*runs, *beside):
            key = repr(run.config.data)
            for name, before in self.store.learnt_from(run).items():
                now[key] = now.get(key) or digest(describe(open_data(run.config)))
                if now[key] != before:
                    raise UserError(
                        f"{name} is finished, and the data in {run.config.data.path} has changed since: rows of one "
                        "table would not belong together. Choose another --out, or remove the run from "
                        f"{self.store.path}"
                    )

    def _groups(self, runs: Sequence[Run]) -> list[list[Run]]:
        """What a process trains at once, in the order of the runs: new ones, or some that were begun."""
        groups: list[list[Run]] = []
        open_groups: dict[str, list[Run]] = {}
        for run in runs:
            if self.store.find(run) is not None:
                self.say(f"{run.title}: finished already")
                self._tidy(run)
                continue
            key = repr((_begun(run), batch_settings(run.config)))
            if len(open_groups.get(key, [])) in range(1, self.sharing):
                open_groups[key].append(run)
            else:
                groups.append([run])
                open_groups[key] = groups[-1]
        return groups

    def _run_group(self, runs: list[Run]) -> list[Failure]:
        """What went wrong with any of them."""
        if self._stopping:
            return []
        if time.monotonic() > self.last_start:
            for run in runs:
                self.say(f"{run.title}: not started, the time is up")
            return []
        self._train(runs)
        if len(runs) > 1 and not self._stopping and not all(run.result_file.exists() for run in runs):
            return [problem for run in runs for problem in self._run_group([run])]  # one's fault is not the others'
        return [problem for run in runs if (problem := self._take(run, runs[0].log))]

    def _take(self, run: Run, log: Path) -> Failure | None:
        """Put the result away; what went wrong, where there is none."""
        if run.result_file.exists():
            miou = self.store.add(run)["last"]["mIoU"]
            self.say(f"{run.title}: finished, mIoU {percent(miou)}")
            self._tidy(run)
            return None
        if self._stopping:
            return None
        why = _last_line(log)
        self.store.fail(run, why)
        return Failure(run.title, why, log)

    def _train(self, runs: list[Run]) -> None:
        """The runs of a group; what all of them say goes to the first one's log."""
        run, begun = runs[0], _begun(runs[0])
        names = [str(one.folder if begun else one.config_file) for one in runs]
        work = {"resume" if begun else "configs": names}
        for one in runs:
            if not begun:
                write_config(one.config, one.config_file)
            self.say(f"{one.title}: {'resumed' if begun else 'started'}, log {run.log}")
        worker = self._take_worker()
        lives = worker.train({**work, "words": self._fair_share(), "log": str(run.log)})
        with self._lock:
            self._busy.discard(worker)
            if lives:
                self._idle.append(worker)
        if not lives:
            code = worker.process.wait()
            with run.log.open("a", encoding="utf-8") as log:
                log.write(f"\nits process ended with status {code}\n")

    def _take_worker(self) -> Worker:
        with self._lock:
            worker = self._idle.pop() if self._idle else Worker(self._environment())
            self._busy.add(worker)
            return worker

    def _tidy(self, run: Run) -> None:
        """Checkpoints, model and pictures of a finished run go, if only results are to be kept."""
        if self.keep_all or not run.result_file.exists():
            return
        for path in run.folder.iterdir():
            if path.name in _SMALL_FILES:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _cores(self) -> int:
        """Of this machine, for each of the runs that go together."""
        return max(1, available_cores() // self.together)

    def _fair_share(self) -> list[str]:
        """Beside a GPU the cores are for the loaders."""
        return [f"workers={self._cores()}"] if self.together > 1 and torch.cuda.is_available() else []

    def _environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self._cores()), **os.environ}

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            for worker in self._busy:
                worker.ask_to_stop()


def _begun(run: Run) -> bool:
    return (run.folder / CONFIG).exists()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt(number)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "ended without a word"
