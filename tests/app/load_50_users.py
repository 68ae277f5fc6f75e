"""Fifty users at once: each uploads a picture, then moves sliders without a pause. Run by hand:

    PYTHONPATH=src python tests/app/load_50_users.py [--users 50] [--seconds 60]

It starts `mspcaps app` with an untrained MSPCaps-T and prints answers, errors, latencies and the memory of the server.
"""

import argparse
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from app_makers import Server, start_server, weights
from hostile import noise, save

MODEL = "mspcaps_t · FashionMNIST · grey.safetensors"
QUICK = "mspcaps_t_scale8 · FashionMNIST · quick.safetensors"  # its few patches take a tenth of the time


@dataclass
class Tally:
    """What one user saw."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    answers: int
    errors: list[str]
    latency: dict[int, float]  # percentile -> seconds
    memory: tuple[int, int, int]  # bytes: before, peak, after

    def __str__(self) -> str:
        before, peak, after = (f"{value / 2**20:.0f} MB" for value in self.memory)
        waits = ", ".join(f"p{share} {value:.2f} s" for share, value in self.latency.items())
        told = f" ({self.errors[0][:200]})" if self.errors else ""
        return (
            f"{self.answers} answers, {len(self.errors)} errors{told}; {waits}; "
            f"memory {before} before, {peak} at most, {after} after"
        )


def user(server: Server, model: str, number: int, data: bytes, end: float) -> Tally:
    tally, generator = Tally(), random.Random(number)
    while time.monotonic() < end:
        try:
            status, reply = server.upload(data)
            if status != 200:
                tally.errors.append(str(reply))
                continue
            for _ in range(10):
                changes = (generator.randint(-180, 180), generator.randint(0, 64), generator.randint(0, 32) / 2)
                start = time.monotonic()
                said = server.ask(reply["picture"], model, *changes)
                tally.seconds.append(time.monotonic() - start)
                if "It says" not in said:
                    tally.errors.append(said)
                if time.monotonic() > end:
                    break
        except Exception as error:
            tally.errors.append(repr(error))
    return tally


def run(server: Server, users: int, seconds: float, model: str = MODEL) -> Load:
    """Half of the uploads are photographs of 3 megapixels, half small pictures."""
    pictures = [save(noise(size=size), "JPEG", quality=80) for size in ((64, 48), (2000, 1500))]
    before = server.forget_peak()
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(users) as pool:
        jobs = [pool.submit(user, server, model, number, pictures[number % 2], end) for number in range(users)]
        tallies = [job.result() for job in jobs]
    waits = sorted(value for tally in tallies for value in tally.seconds)
    cuts = statistics.quantiles(waits, n=100)
    return Load(
        len(waits),
        [error for tally in tallies for error in tally.errors],
        {share: cuts[share - 1] for share in (50, 90, 99)},
        (before, server.peak(), server.memory()),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        running = start_server(Path(folder), weights(Path(folder) / "grey.safetensors"))
        try:
            print(run(running, words.users, words.seconds))
        finally:
            running.stop()
