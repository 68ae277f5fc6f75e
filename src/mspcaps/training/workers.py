"""Worker processes of a sweep on this machine: one per GPU, or several on a CPU.

A worker trains the jobs it is sent in threads, as `ThisProcess` does, and sends back outcomes and progress. When the
pipe to it closes, for whatever reason, its runs save their checkpoints and it ends.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from mspcaps.errors import MspcapsError
from mspcaps.progress import Progress, Task
from mspcaps.training.device import choose_device
from mspcaps.training.job import TIME_TO_SAVE, Job, Outcome, WorkerLost, train_job
from mspcaps.training.monitor import ShowProgress


@dataclass(frozen=True)
class Slot:
    """What a worker computes on."""

    device: str  # cpu or cuda
    gpu: str = ""  # its name in CUDA_VISIBLE_DEVICES
    threads: int = 1  # on a CPU


def find_slots(device: torch.device, workers: int | None) -> list[Slot]:
    """One per GPU, or as many as requested on a CPU; none if a single process will do."""
    if workers is not None and workers < 1:
        raise MspcapsError(f"--workers is {workers}, but must be at least 1")
    if device.type != "cuda":
        count = workers or 1
        return [Slot(device.type, threads=max(1, torch.get_num_threads() // count))] * count if count > 1 else []
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",")[:count] if visible else [str(number) for number in range(count)]
    if workers is not None and workers > len(gpus):
        raise MspcapsError(f"--workers is {workers}, but each needs a GPU of its own and there are {len(gpus)}")
    gpus = gpus[:workers]
    return [Slot("cuda", gpu) for gpu in gpus] if len(gpus) > 1 else []


class WorkerProcess:
    """A worker as the sweep sees it; if it is lost, the next job starts another."""

    capacity = 1.0

    def __init__(self, slot: Slot, progress: Progress) -> None:
        self.slot, self.progress = slot, progress
        self.numbers, self.lock = itertools.count(), threading.Lock()
        self.futures: dict[int, Future[Outcome]] = {}
        self.connection: Connection | None = None
        self.process: Any = None

    def start(self) -> None:
        """Spawn a fresh interpreter: a fork of this one could not use the GPU."""
        context = get_context("spawn")
        connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.slot))
        with without_ctrl_c():
            self.process.start()
        theirs.close()
        self.connection = connection
        threading.Thread(target=self.listen, args=(connection, self.process), daemon=True).start()

    def submit(self, job: Job, share: float) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        with self.lock:
            if self.connection is None:
                self.start()
            assert self.connection is not None
            number = next(self.numbers)
            self.futures[number] = future
            with suppress(OSError):  # the worker has just been lost: `listen` will report it
                self.connection.send((number, job))
        return future

    def listen(self, connection: Connection, process: Any) -> None:
        """Receive messages until the worker closes its end. The next job may have started another worker by then."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    number, content = connection.recv()
                    if number is not None:
                        self.futures.pop(number).set_result(content)
                    else:
                        self.progress.update(*content)
        finally:
            connection.close()  # tells the worker, if it is still alive, to save its checkpoints and end
            with self.lock:
                self.connection, orphans = None, list(self.futures.values())
                self.futures.clear()
            process.join()
            for future in orphans:
                future.set_exception(WorkerLost(f"its worker ended with status {process.exitcode}"))

    def stop(self) -> None:
        with self.lock, suppress(OSError):
            if self.connection is not None:
                self.connection.send(None)

    def close(self, at_once: bool) -> None:
        self.stop()
        if self.process is not None:
            self.process.join(timeout=TIME_TO_SAVE if at_once else None)
            if self.process.is_alive():
                self.process.kill()


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C, which a terminal sends to all of them: the sweep tells them to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def serve(connection: Connection, slot: Slot) -> None:
    """The worker itself: receives (number, job), sends (number, outcome) and (None, progress); None means stop."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # terminals and clusters send them to all; the sweep decides
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if slot.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA is initialised; the worker sees no other GPU
    else:
        torch.set_num_threads(slot.threads)
    device, stop, lock = choose_device(slot.device), threading.Event(), threading.Lock()

    def send(number: int | None, content: object) -> None:
        with lock, suppress(OSError):  # the sweep has closed the pipe
            connection.send((number, content))

    listener = ShowProgress(RemoteProgress(send), named=True)

    def train(number: int, job: Job) -> None:
        send(number, train_job(job, device, listener, stop))

    with ThreadPoolExecutor(max_workers=4) as pool:
        with suppress(EOFError, OSError):
            while (message := connection.recv()) is not None:
                pool.submit(train, *message)
        stop.set()
    connection.close()


class RemoteProgress(Progress):
    """Sends updates to the sweep, at most one per second and run."""

    def __init__(self, send: Callable[[None, object], None]) -> None:
        super().__init__(every=1.0)
        self.send = send

    def update(self, task: str, done: float, total: float | None, detail: str = "", label: str = "") -> None:
        self.tasks.setdefault(task, Task()).shown_at = time.monotonic()
        self.send(None, (task, done, total, detail, label))
