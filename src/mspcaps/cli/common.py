"""What the commands share: optional arguments, progress, Ctrl-C, tables, a line per picture, JSON and CSV."""

import csv
import json
import math
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from mspcaps.errors import MspcapsError, first_line
from mspcaps.files import to_utf8
from mspcaps.progress import Progress, printable, say

T = TypeVar("T")
STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM] + ([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])
Maybe = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]  # without "(default: None)" in the help
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
SkipBroken = Annotated[Switch, tyro.conf.arg(help="Leave out pictures that cannot be read, and say which.")]
JsonSwitch = Annotated[Switch, tyro.conf.arg(help="Print one JSON document instead, and nothing else on stdout.")]
CsvSwitch = Annotated[Switch, tyro.conf.arg(help="Print one CSV table instead, and nothing else on stdout.")]
Format = Literal["text", "json", "csv"]


def show_progress(unit: str = "") -> Progress:
    """A bar on a terminal; elsewhere a line on stderr every few seconds, and none if the work is done sooner."""
    return Progress(unit, last_line=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table; the columns whose numbers are in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)  # a file has no edge to wrap at
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(head):
        grid.add_column(name, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, map(printable, row)))
    console.print(grid)


def choose_format(json: bool, csv: bool) -> Format:
    """The output format that --json or --csv selects."""
    if json and csv:
        raise MspcapsError("--json and --csv print different documents: choose one of them")
    return "json" if json else "csv" if csv else "text"


def print_document(form: Format, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the document as JSON, or its rows, which all have the same keys, as CSV with a header.

    Numbers that are not finite become null in JSON and empty in CSV. JSON is written in ASCII, which every terminal
    shows unchanged. docs/formats.md lists the keys, which never change.
    """
    if form == "json":
        print(json.dumps(plain(document), indent=1, allow_nan=False))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([rows[0].keys()] if rows else [])
    writer.writerows(["" if value is None else value for value in plain(row).values()] for row in rows)


def plain(value: Any) -> Any:
    """The value in the types of JSON: paths and names as valid text, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return to_utf8(str(value)) if isinstance(value, str | Path) else value


def show_page(write: Callable[[], Path], form: Format = "text") -> Path | None:
    """Write a result page and print its path; if that fails, only note it, because the work itself is done."""
    try:
        page = write()
    except Exception as error:  # the figures are printed or in the ledger already
        note(f"the result page could not be written: {first_line(error)}")
        return None
    if form == "text":
        say(f"Result page: {page}")
    return page


def note_skipped(paths: Iterable[Path]) -> None:
    """Note which files in the folders are not pictures."""
    from mspcaps.data.pictures import Skipped, describe_skipped, pictures_below

    skipped: Skipped = Counter()
    for folder in filter(os.path.isdir, map(Path.expanduser, paths)):
        for _ in pictures_below(folder, skipped=skipped):
            pass  # only the other files count
    if skipped:
        note(f"there are also {describe_skipped(skipped)}")


def note(sentence: str) -> None:
    """Print a note to stderr, where it is not mistaken for a result."""
    say(f"note: {sentence}", sys.stderr)


def is_onnx(weights: str, device: str | None) -> bool:
    """Whether the weights are an exported file, which runs on the CPU only."""
    exported = weights.lower().endswith(".onnx")
    if exported and device not in (None, "cpu"):
        raise MspcapsError(f"{weights} runs on the CPU, with onnxruntime: leave out --device {device}")
    return exported


def print_results(results: Iterable[tuple[str, str | None]]) -> int:
    """Print a line per picture as it comes, errors to stderr; the exit status is 1 if any failed."""
    status = 0
    for line, error in results:
        text, file = (line, sys.stdout) if error is None else (f"error: {error}", sys.stderr)
        say(printable(text), file)
        status = status if error is None else 1
    return status


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM or a closed terminal sets, so that runs can save their checkpoints; a second signal
    ends everything at once.

    KeyboardInterrupt alone would not do: it is lost if it is raised while torch.compile checks its guards, and a thread
    that is just starting would be left behind.
    """
    from mspcaps.training import Stopped

    stop, status = threading.Event(), 0

    def interrupted(number: int, _: object) -> None:
        nonlocal status
        status = 128 + number
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        with suppress(OSError):  # the terminal may be gone
            os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")

    before = {number: signal.signal(number, interrupted) for number in STOP_SIGNALS}
    try:
        yield stop
    except Stopped as stopped:
        with suppress(OSError):
            if str(stopped):
                say(str(stopped), sys.stderr)
        raise SystemExit(status) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
