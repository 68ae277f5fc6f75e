"""A sweep on a cluster: each run is a Ray task with a share of a GPU, or a CPU core.

Ray chooses the machine. All machines must see the same `out` and `results`: if one is lost, its runs resume from their
checkpoints on another, and all runs enter the same ledger.
"""

import logging
import math
import os
import signal
import threading
from concurrent.futures import Future
from typing import Any

import torch

from mspcaps.errors import MspcapsError, first_line
from mspcaps.training.device import choose_device
from mspcaps.training.job import TIME_TO_SAVE, Job, Outcome, WorkerLost, train_job
from mspcaps.training.ledger import find_run


class RayCluster:
    """The cluster that RAY_ADDRESS names, or that this machine belongs to, or a new one on this machine alone."""

    capacity = math.inf  # Ray queues tasks that do not fit yet

    def __init__(self, device: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise MspcapsError("--ray needs Ray: pip install 'mspcaps[ray]'") from error
        self.ray: Any = ray
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise MspcapsError(f"cannot join or start a Ray cluster: {first_line(error)}") from error
        for number, handler in before.items():  # Ray has installed its own
            signal.signal(number, handler)
        resources = ray.cluster_resources()
        gpus = resources.get("GPU", 0)
        if device not in (None, "cpu", "cuda") or (device == "cuda" and not gpus):
            ray.shutdown()
            raise MspcapsError(
                f"--device is {device!r}, but this Ray cluster has {gpus:.0f} GPUs: use cpu or leave it out"
            )
        self.device = torch.device(device or ("cuda" if gpus else "cpu"))
        machines = len(ray.nodes())
        self.summary = (
            f"{machines} machine{'s' * (machines != 1)}, {resources.get('CPU', 0):.0f} cores, {gpus:.0f} GPUs"
        )
        self.tasks: set[Any] = set()

    def submit(self, job: Job, share: float) -> Future[Outcome]:
        gpu = {"num_gpus": share} if self.device.type == "cuda" else {}
        task = self.ray.remote(train_in_task).options(num_cpus=1, max_retries=0, **gpu)
        ref = task.remote(job, self.device.type, os.getcwd())
        self.tasks.add(ref)
        future: Future[Outcome] = Future()

        def settle(answer: Future[Outcome]) -> None:
            try:
                self.tasks.discard(ref)
                future.set_result(self.outcome(job, answer))
            except BaseException as error:
                future.set_exception(error)

        ref.future().add_done_callback(settle)
        return future

    def outcome(self, job: Job, answer: Future[Outcome]) -> Outcome:
        exceptions = self.ray.exceptions
        try:
            outcome = answer.result()
        except exceptions.TaskCancelledError:
            return Outcome(job.recipe, "left", "the sweep was stopped before it")
        except exceptions.RayTaskError as error:  # raised before the run began
            return Outcome(job.recipe, "failed", first_line(error.cause))
        except exceptions.RayError as error:
            raise WorkerLost(f"its worker was lost ({type(error).__name__})") from error
        if outcome.state == "done" and find_run(job.results, job.recipe) is None:
            return Outcome(
                job.recipe, "failed", f"it is done, but this machine does not see its entry in {job.results}: give "
                "--out and --results folders that all machines share"
            )  # fmt: skip
        return outcome

    def stop(self) -> None:
        """Running tasks get a Ctrl-C and save their checkpoints."""
        for ref in list(self.tasks):
            self.ray.cancel(ref)

    def close(self, at_once: bool) -> None:
        if tasks := list(self.tasks):
            self.ray.wait(tasks, num_returns=len(tasks), timeout=TIME_TO_SAVE)
        self.ray.shutdown()


def train_in_task(job: Job, device: str, folder: str) -> Outcome:
    """Train a job in one of Ray's processes, on any machine."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())  # Ray cancels a task with this signal
    try:
        os.chdir(folder)  # paths in recipes and modules of models may be relative to it
        return train_job(job, choose_device(device), lambda trainer: None, stop)
    finally:
        signal.signal(signal.SIGINT, before)
