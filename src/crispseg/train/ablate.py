"""Running a table: every row with every seed, each a training process of its own; finished ones are not run again."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.files import write_json, write_text
from crispseg.train.config import config_from
from crispseg.train.run_folder import CONFIG, RESULT
from crispseg.train.table import Row, Table, as_markdown, read_results, row_values, summarise

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Job:
    row: Row
    seed: int
    folder: Path  # of the run
    config: Path

    @property
    def title(self) -> str:
        return f"{self.row.name}, seed {self.seed}"

    @property
    def log(self) -> Path:
        return self.config.with_suffix(".log")

    @property
    def finished(self) -> bool:
        return (self.folder / RESULT).exists()


def plan_jobs(
    table: Table, base: Mapping[str, Any], words: Sequence[str], seeds: Sequence[int], out: Path
) -> list[Job]:
    """One job per row and seed. Its config is checked and written; a folder made with another one is refused."""
    jobs = []
    for row in table.rows:
        for seed in seeds:
            folder = out / row.slug / f"seed{seed}"
            job = Job(row, seed, folder, folder.with_suffix(".yaml"))
            config = config_from(row_values(table, row, base), [*words, f"seed={seed}", f"out={folder}"])
            text = _yaml(configs.to_dict(config))
            begun = (folder / CONFIG).exists() and job.config.exists()
            if begun and job.config.read_text(encoding="utf-8") != text:
                raise UserError(
                    f"{job.config} was made for another table, data or settings; repeat them, or choose another --out"
                )
            write_text(job.config, text)
            jobs.append(job)
    return jobs


def _yaml(values: Any) -> str:
    import yaml

    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


class Runner:
    """Runs jobs, at most `together` at once. Asked to stop, its processes save and end; the same command goes on."""

    def __init__(self, together: int, say: Say) -> None:
        self.together, self.say = together, say
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> list[str]:
        """What went wrong, one sentence per failed job."""
        before = signal.signal(signal.SIGTERM, _interrupt)
        pool = ThreadPoolExecutor(self.together)
        try:
            return [problem for problem in pool.map(self._run_one, jobs) if problem]
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            signal.signal(signal.SIGTERM, before)

    def _run_one(self, job: Job) -> str:
        if self._stopping:
            return ""
        if job.finished:
            self.say(f"{job.title}: finished already")
            return ""
        words = ["--resume", str(job.folder)] if (job.folder / CONFIG).exists() else [str(job.config)]
        self.say(f"{job.title}: {'resumed' if len(words) > 1 else 'started'}, log {job.log}")
        command = [sys.executable, "-m", "crispseg.cli.main", "train", *words, *self._fair_share()]
        with job.log.open("ab") as log, self._lock:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self._environment())
            self._running.add(process)
        process.wait()
        with self._lock:
            self._running.discard(process)
        if job.finished:
            miou = read_results([job.folder])[0]["last"]["mIoU"]
            self.say(f"{job.title}: finished, mIoU {100 * (miou or 0):.2f}")
            return ""
        return "" if self._stopping else f"{job.title}: {_last_line(job.log)} (see {job.log})"

    def _cores(self) -> int:
        """Of this machine, for each of the jobs that run together."""
        return max(1, (os.cpu_count() or 1) // self.together)

    def _fair_share(self) -> list[str]:
        """Beside a GPU the cores are for the loaders."""
        return [f"workers={self._cores()}"] if self.together > 1 and torch.cuda.is_available() else []

    def _environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self._cores()), **os.environ}

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "ended without a word"


def report(table: Table, jobs: Sequence[Job], out: Path) -> str:
    """Write table.md and table.json from the runs that are finished; returns the Markdown."""
    results = [(row, read_results([job.folder for job in jobs if job.row == row])) for row in table.rows]
    markdown = as_markdown(table, results)
    write_text(out / "table.md", markdown)
    write_json(
        out / "table.json",
        {
            "title": table.title,
            "rows": [
                {"name": row.name, "set": row.set, "paper": row.paper, "scores": summarise(found), "runs": found}
                for row, found in results
            ],
        },
    )
    return markdown
