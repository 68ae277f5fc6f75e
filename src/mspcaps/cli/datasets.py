"""`mspcaps data list | get | verify`."""

from pathlib import Path
from typing import Annotated

import tyro

from mspcaps.cli.common import show_progress, table
from mspcaps.files import format_bytes
from mspcaps.progress import say


def data() -> None:
    """List, fetch and verify data sets: data list, data get NAME, data verify [NAME]."""
    # never called: it lists `data`, which has commands of its own, in --help


def show() -> None:
    """List the data sets and which of them are on this machine."""
    from mspcaps.data import list_datasets

    rows = []
    for status in list_datasets():
        facts = status.facts
        height, width = facts.native_size
        images = (f"{facts.channels} x {height} x {width}", f"{facts.train:,} + {facts.test:,}")
        here = format_bytes(status.bytes) if status.ready else f"`mspcaps data get {facts.name}`"
        rows.append((facts.name, f"{len(facts.classes)}", *images, here))
    table(("name", "classes", "image", "train + test", "on this machine"), rows, right=(1, 2, 3))


def get(
    name: tyro.conf.Positional[str],
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="PATH", help_behavior_hint="")] = None,
) -> None:
    """Fetch a data set, verify it and store it in the cache.

    Args:
        name: A name listed by `mspcaps data list`.
        source: Import files you already have (raw files, packed parts or an .npz) instead of downloading.
    """
    from mspcaps.data import get as fetch
    from mspcaps.data import import_files

    if source is not None:
        import_files(name, source, say)
        return
    with show_progress("bytes") as progress:
        fetch(name, say, progress.update)


def verify(
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(help_behavior_hint="")] = None,
) -> None:
    """Recompute the checksums of a cached data set, or of all of them.

    Args:
        name: A name listed by `mspcaps data list`; default: every data set on this machine.
    """
    from mspcaps.data import list_datasets
    from mspcaps.data import verify as check

    names = [status.facts.name for status in list_datasets() if status.ready] if name is None else [name]
    for each in names:
        print(f"{each}: sha256 verified. {check(each)}")
