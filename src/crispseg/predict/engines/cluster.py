"""Row bands over a Ray cluster: each task makes some neighbouring strips; lost workers' tasks are run again.

A task goes through the strips that overlap its first one again, as a resumed run does, so no sums travel: only
finished bands come back, compressed. The scene's file must be readable on every machine under the same name.

Whoever may talk to a Ray cluster may run code on it. One that is started here listens on this machine only and lets in
nobody without a token that is made for it; a cluster that RAY_ADDRESS names is asked for what its owner has set up.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Generator
from typing import Any

from crispseg.errors import UserError
from crispseg.predict.journal import decode, encoded
from crispseg.predict.work import Work
from crispseg.raster.products import Band

_TASKS_PER_WORKER = 2  # fewer repeat less of the overlap, more even out the ends
_RETRIES = 5
QUIETLY: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def lock_up() -> None:
    """For a cluster that this process is going to start: a token of its own, and loopback where Ray is not loaded yet.

    Nothing is changed that the user has set. Ray reads all of it from the environment, also in the workers.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        if "RAY_AUTH_TOKEN" not in os.environ and "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray's switch for machines that are no part of a cluster: its own address is then 127.0.0.1, the only one it hears
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


class RayEngine:
    """Uses the cluster that RAY_ADDRESS names, or starts one on this machine."""

    def __init__(self) -> None:
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            lock_up()
        try:
            import ray
        except ImportError as error:
            raise UserError("the ray engine needs Ray: pip install 'crispseg[ray]'") from error
        self.ray: Any = ray
        self.started = not ray.is_initialized()
        if self.started:
            try:
                ray.init(address or "local", include_dashboard=None if address else False, **QUIETLY)
            except Exception as error:  # Ray raises just that when one of its processes ends while it starts
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise UserError(
                    f"cannot join the Ray cluster {address or 'on this machine'}: {reason}; is it there, and is its "
                    "token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH?"
                ) from error

    def bands(self, work: Work, runs: list[range], on_tile: Callable[[], None]) -> Generator[Band]:
        gpus = self._gpus(work)
        task = self.ray.remote(max_retries=_RETRIES, num_cpus=1, num_gpus=min(gpus, 1))(_encoded_bands)
        shared = self.ray.put(work)
        waiting = {task.remote(shared, strips): strips for strips in split(runs, self._workers(gpus))}
        try:
            while waiting:
                (done,), _ = self.ray.wait(list(waiting), num_returns=1)
                strips = waiting.pop(done)
                for strip, data in zip(strips, self._get(done), strict=True):
                    for _ in work.plan.cols.starts:
                        on_tile()
                    yield decode(data, strip, work.plan, work.products, work.model.num_classes)
        finally:
            for left in waiting:
                self.ray.cancel(left, force=True)

    def close(self) -> None:
        if self.started:
            self.ray.shutdown()

    def _get(self, done: Any) -> list[bytes]:
        errors = self.ray.exceptions
        try:
            return list(self.ray.get(done))
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise
        except errors.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"the Ray cluster lost a band {_RETRIES + 1} times: {reason}") from error

    def _gpus(self, work: Work) -> int:
        if work.settings.device is None or work.settings.device.startswith("cuda"):
            return int(self.ray.cluster_resources().get("GPU", 0))
        return 0

    def _workers(self, gpus: int) -> int:
        return gpus or int(self.ray.cluster_resources().get("CPU", 1))


def split(runs: list[range], workers: int) -> list[range]:
    """Cut runs of strips into parts of about equal length, some for every worker."""
    total = sum(map(len, runs))
    length = max(1, -(-total // (workers * _TASKS_PER_WORKER)))
    return [run[k : k + length] for run in runs for k in range(0, len(run), length)]


def _encoded_bands(work: Work, strips: range) -> list[bytes]:
    return [b"".join(encoded(band)) for band in work.bands(strips)]
