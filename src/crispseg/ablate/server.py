"""A process that trains one run after the other, as it is told on its standard input.

A process of its own for every run would spend longer on starting torch and CUDA than on a short run's steps. Each
line in is a JSON object, {"configs": [PATH, ...], "words": [...], "log": PATH}: config files of runs, several if they
share their batches, words for all of them, and where to put what is said; or {"resume": [RUN, ...], "words": [...],
"log": PATH}. Each line out is the exit status. When whoever told it is gone, in whatever way, a run in progress saves
and ends: nobody would wait for it, and the same command could not go on while it trains.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def serve() -> None:
    replies = os.fdopen(os.dup(1), "w")
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    for line in sys.stdin:
        task = json.loads(line)
        with _written_to(task["log"]):
            status = _guarded(lambda: _train(task))  # noqa: B023 - called before the next task
        print(status, file=replies, flush=True)


def _stop_when_alone() -> None:
    """The pipe that tasks come through is asked, without reading it, whether it still has another end."""
    if not hasattr(select, "poll"):
        return
    pipe = select.poll()
    pipe.register(0, 0)
    pipe.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _train(task: dict[str, Any]) -> int:
    from crispseg.train.config import train_config
    from crispseg.train.loop import resume_together, train_together

    if "resume" in task:
        results = resume_together([Path(run) for run in task["resume"]], task["words"])
    else:
        results = train_together([train_config(path, task["words"]) for path in task["configs"]])
    print(*(result for result in results if result.finished), sep="\n")
    return 0


def _guarded(train: Callable[[], int]) -> int:
    from crispseg.errors import UserError

    try:
        return train()
    except UserError as error:
        print(f"crisp: {error}", file=sys.stderr)
        return 1
    except Exception as problem:  # a fault of one run is not the next one's; its last line is what the table shows
        traceback.print_exc()
        print(f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}", file=sys.stderr)
        return 1
    finally:
        _free_memory()


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _written_to(path: str) -> Iterator[None]:
    """Everything this process and those it starts say goes to the end of that file."""
    kept = [os.dup(1), os.dup(2)]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(log)


if __name__ == "__main__":
    serve()
