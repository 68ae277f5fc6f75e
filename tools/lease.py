"""Carries data sets and pure-Python packages to a GPU machine that is lent for minutes, bare and without a network, and
keeps it at work there.

Here:   python -m tools.lease pack .carry cifar10 mnist       makes .carry/packages.tar.xz and .carry/set-N folders
There, in the first call, which carries packages and set-0:
        cp -r . /root/tree; mkdir /root/sets; cp -r .carry/set-0 /root/sets; tar xf .carry/packages.tar.xz -C /root
in the calls that carry the other sets:
        cp -r .carry/set-1 /root/sets
and in the last of them, after
        cd /root/tree; export PYTHONPATH=$PWD:$PWD/src:/root/packages MSPCAPS_DATA=/root/data MSPCAPS_COMMIT=...
        python3 -m tools.lease unpack /root/sets/*            writes the sets into the cache
        setsid python3 -m tools.lease warm capsnet deepcaps & compiles their steps, so that training begins in seconds
        setsid python3 -m tools.lease work queue.txt &        runs the commands of a file, a line each
        python3 -m tools.lease bring $OUT --seconds 500       keeps what is new in OUT, until the work is done
and at the end
        python3 -m tools.lease bring $OUT --seconds 20 --stop ends the work first, so that checkpoints are written
Here:   cat part.* | tar xz                                   unpacks what came back

The blocks of a queue, parted by empty lines, run side by side; the commands of a block run one by one.

Images travel as lossless WebP mosaics, about 60 % of their size, in folders of at most --mb megabytes, each of which
fits into one call; the tree travels with every call, so set the weights of mspcaps_l aside. What was started with
setsid goes on between calls, but the machine goes back half a minute after one: send all the calls of a lease in one
go, not one after looking at the last. One sweep that trains four small networks at a time does half as much again as
one network alone; more runs in more processes under MPS do hardly more, so a large network whose checkpoint does not
fit into what comes back should run beside few others, or it may not end in time. Under MPS a kernel whose assertion
fails may leave all the other processes waiting for ever, so run GPU tests without it.
"""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from mspcaps.data.cache import match_variant, read_cached, store
from mspcaps.data.catalog import ARRAYS, facts
from mspcaps.data.formats import array_sha256
from mspcaps.errors import MspcapsError

COLUMNS = 100  # images in a row of a mosaic
PICTURES = 5_000  # images of a mosaic, whose sides must not exceed 16,383 pixels
WORK = Path("work")  # over there: what the commands print
PID, ENDED = WORK / "pid", WORK / "ended"
PART, TOTAL = 15_000_000, 62_000_000  # bytes of a file that comes back, and of all together
PERIOD = 20  # seconds
PYTHON = "3.12"  # over there
PACKAGES = (
    "tyro", "docstring-parser", "typeguard", "rich", "markdown-it-py", "mdurl", "pygments", "pytest", "iniconfig",
    "pluggy", "pytest-xdist", "execnet", "pytest-timeout", "hypothesis==6.130.0", "attrs", "sortedcontainers",
    "foolbox", "eagerpy", "GitPython", "gitdb", "smmap",
)  # fmt: skip


def to_mosaic(images: np.ndarray) -> np.ndarray:
    """[n, c, h, w] -> [rows * h, COLUMNS * w, 3]; the last row is filled with black, grey images become three equal
    channels."""
    n, c, h, w = images.shape
    rows = -(-n // COLUMNS)
    canvas = np.zeros((rows * COLUMNS, c, h, w), np.uint8)
    canvas[:n] = images
    canvas = canvas.reshape(rows, COLUMNS, c, h, w).transpose(0, 3, 1, 4, 2).reshape(rows * h, COLUMNS * w, c)
    return canvas if c == 3 else canvas.repeat(3, axis=2)


def from_mosaic(canvas: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    n, c, h, w = shape
    tiles = canvas[..., :c].reshape(-1, h, COLUMNS, w, c).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(-1, c, h, w)[:n])


def pieces(name: str) -> Iterator[tuple[str, bytes]]:
    """File names and contents: mosaics of the images, then labels with the sums of all arrays."""
    arrays = read_cached(name, "all")
    for key in ("x_train", "x_test"):
        step = min(PICTURES, 16_383 // arrays[key].shape[2] * COLUMNS)
        for start in range(0, len(arrays[key]), step):
            part, buffer = arrays[key][start : start + step], io.BytesIO()
            Image.fromarray(to_mosaic(part)).save(buffer, "WEBP", lossless=True, quality=60, method=4)
            yield f"{name}.{key}.{start:06d}.{'.'.join(map(str, part.shape))}.webp", buffer.getvalue()
    labels = {key: arrays[key].tolist() for key in ("y_train", "y_test")}
    sums = {key: array_sha256(array) for key, array in arrays.items()}
    yield f"{name}.json", json.dumps({"sha256": sums, **labels}).encode()


def pack(out: Path, names: list[str], megabytes: list[float]) -> None:
    """Write the sets, one after the other, into as few folders as hold them; the last limit is that of all further
    folders."""
    pack_packages(out / "packages.tar.xz")
    number, size = 0, 0.0
    for name in names:
        for file, content in pieces(name):
            if size + len(content) > megabytes[min(number, len(megabytes) - 1)] * 1e6 and size:
                number, size = number + 1, 0.0
            folder = out / f"set-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
            size += len(content)
    for folder in sorted(out.glob("set-*")):
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB")


def pack_packages(out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        pure = ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "py"]
        pure += ["--abi", "none", "--platform", "any", "-d", f"{place}/wheels"]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *pure, *PACKAGES], check=True)
        for wheel in Path(place, "wheels").glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(place, "packages"))
        with tarfile.open(out, "w:xz") as archive:
            archive.add(Path(place, "packages"), "packages")


def assemble(name: str, files: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    """The arrays of a set from its pieces; arrays that are not what they were are refused."""
    known = json.loads(files[f"{name}.json"])
    arrays = {key: np.array(known[key], np.uint8) for key in ("y_train", "y_test")}
    for key in ("x_train", "x_test"):
        parts = []
        for file in sorted(file for file in files if file.startswith(f"{name}.{key}.")):
            n, c, h, w = map(int, file.split(".")[3:7])
            parts.append(from_mosaic(np.asarray(Image.open(io.BytesIO(files[file])).convert("RGB")), (n, c, h, w)))
        arrays[key] = np.concatenate(parts) if parts else np.empty(0, np.uint8)
    if wrong := [key for key in ARRAYS if array_sha256(arrays[key]) != known["sha256"][key]]:
        raise MspcapsError(f"{', '.join(wrong)} of {name} did not arrive whole: unpack all the folders in one command")
    return arrays


def unpack(folders: list[Path]) -> None:
    """Write the sets in these folders into the cache."""
    files = {file.name: file.read_bytes() for folder in folders for file in folder.iterdir()}
    for name in [file.removesuffix(".json") for file in files if file.endswith(".json")]:
        arrays = assemble(name, files)
        # SVHN as published has no sums of arrays in the catalog, only of raw files: its pieces were made from those
        print(f"{name}: {store(facts(name), arrays, match_variant(facts(name), arrays, True, 'what arrived'))}")


def warm(models: list[str]) -> None:
    """Compile training steps into the cache that all processes share, and print how long a step takes at most."""
    from mspcaps.bench.timing import wait_for  # PyTorch is not needed for the other commands
    from mspcaps.bench.variants import EngineRun, Task
    from mspcaps.training.device import choose_device

    device, task = choose_device(), Task()
    for name in models:
        began = time.perf_counter()
        run = EngineRun(task.model(name), task.data().to(device), task)
        run.run(1)
        wait_for(device)
        compiled = time.perf_counter()
        steps = run.run(100)
        wait_for(device)
        ms = 1000 * (time.perf_counter() - compiled) / steps
        print(
            f"{name}: {compiled - began:.0f} s to prepare, {ms:.2f} ms per step beside whatever else runs", flush=True
        )


def work(queue: Path) -> None:
    """Run the blocks of a file side by side; SIGTERM ends the commands that run, and no other begins."""
    WORK.mkdir()
    PID.write_text(str(os.getpid()))
    running: set[subprocess.Popen[bytes]] = set()
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        for process in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def run(number: int, lines: list[str]) -> None:
        with (WORK / f"{number}.log").open("w") as log:
            for line in lines:
                if stopped.is_set():
                    break
                print("$", line, file=log, flush=True)
                process = subprocess.Popen(line, shell=True, stdout=log, stderr=log, start_new_session=True)
                running.add(process)
                process.wait()
                running.remove(process)

    signal.signal(signal.SIGTERM, stop)
    blocks = [block.splitlines() for block in queue.read_text().strip().split("\n\n")]
    with ThreadPoolExecutor(len(blocks)) as pool:
        list(pool.map(run, range(len(blocks)), blocks))
    ENDED.touch()


def bring(out: Path, seconds: float, stop: bool) -> None:
    """Until the work ends or the time is over, keep archives of what it has made in OUT."""
    deadline = time.monotonic() + seconds
    if stop and not ENDED.exists():
        os.kill(int(PID.read_text()), signal.SIGTERM)
    while not ENDED.exists() and time.monotonic() < deadline:
        keep(out, [small_files()])  # in case this call is cut off
        time.sleep(max(0.0, min(PERIOD, deadline - time.monotonic())))
    left = keep(out, [small_files(), *weights()])
    for log in sorted(WORK.glob("*.log")):
        print(f"== {log}", *log.read_text(errors="replace").splitlines()[-8:], sep="\n")
    if left:
        print("No room for", *left)


def small_files() -> list[Path]:
    """Results and logs since the work began."""
    began = PID.stat().st_mtime
    paths = [path for folder in (WORK, Path("results")) for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.stat().st_mtime >= began]


def weights() -> list[list[Path]]:
    """Of unfinished runs what resuming needs, then of finished ones the weights that they report; the smallest first.
    Trials on held-out images are only compared: nobody needs their weights."""
    unfinished, finished = [], []
    for folder in {path.parent for path in Path("runs").rglob("*.safetensors") if "held_out" not in path.parent.name}:
        checkpoint, best, last = (folder / f"{name}.safetensors" for name in ("checkpoint", "best", "last"))
        if checkpoint.is_file():
            unfinished.append([path for path in (checkpoint, best) if path.is_file()])
        else:
            finished.append([last if last.is_file() else best])
    return sorted(unfinished, key=size_of) + sorted(finished, key=size_of)


def size_of(group: list[Path]) -> int:
    return sum(path.stat().st_size for path in group)


def keep(out: Path, groups: list[list[Path]]) -> list[Path]:
    """Write an archive in parts, with all of a group or nothing -> files for which there is no room."""
    packed, left, total = list[Path](), list[Path](), 0
    for group in groups:
        size = size_of(group)
        if total + size > TOTAL:
            left += group
        else:
            packed += group
            total += size
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for path in packed:
            with contextlib.suppress(FileNotFoundError):  # renamed by now
                archive.add(path)
    whole = content.getbuffer()
    for start in range(0, len(whole), PART):
        part = out / "new"
        part.write_bytes(whole[start : start + PART])
        part.rename(out / f"part.{start // PART}")
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    to = commands.add_parser("pack")
    to.add_argument("out", type=Path)
    to.add_argument("names", nargs="+", metavar="SET")
    to.add_argument("--mb", type=float, nargs="+", default=[46, 62])
    commands.add_parser("unpack").add_argument("folders", type=Path, nargs="+")
    commands.add_parser("warm").add_argument("models", nargs="+", metavar="MODEL")
    commands.add_parser("work").add_argument("queue", type=Path)
    back = commands.add_parser("bring")
    back.add_argument("out", type=Path)
    back.add_argument("--seconds", type=float, default=500)
    back.add_argument("--stop", action="store_true")
    args = parser.parse_args()
    if args.command == "pack":
        pack(args.out, args.names, args.mb)
    elif args.command == "unpack":
        unpack(args.folders)
    elif args.command == "warm":
        warm(args.models)
    elif args.command == "work":
        work(args.queue)
    else:
        bring(args.out, args.seconds, args.stop)


if __name__ == "__main__":
    main()
