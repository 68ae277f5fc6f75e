"""What the commands share: options that may be left out, progress, Ctrl-C, tables, results picture by picture, and
documents for programs."""

import csv
import json
import math
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from mspcaps.data.pictures import Skipped, describe_skipped, pictures_below
from mspcaps.errors import MspcapsError, first_line
from mspcaps.files import to_utf8
from mspcaps.progress import Progress, printable, say

T = TypeVar("T")
STOPPING = [signal.SIGINT, signal.SIGTERM] + ([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])
Maybe = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]  # left out of the help: its "(default: None)"
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
SkipBroken = Annotated[Switch, tyro.conf.arg(help="Leave out pictures that cannot be read, and say which.")]
JsonSwitch = Annotated[Switch, tyro.conf.arg(help="Print one JSON document instead, and nothing else on stdout.")]
CsvSwitch = Annotated[Switch, tyro.conf.arg(help="Print one CSV table instead, and nothing else on stdout.")]
Format = Literal["text", "json", "csv"]


def show_progress(unit: str = "") -> Progress:
    """A bar on a terminal; elsewhere a line on stderr every few seconds, and none about work that takes less."""
    return Progress(unit, last_line=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A table on stdout; the columns whose numbers are in `right` are aligned to the right."""
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
    """What --json and --csv ask for."""
    if json and csv:
        raise MspcapsError("--json and --csv print different documents: choose one of them")
    return "json" if json else "csv" if csv else "text"


def print_document(form: Format, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """On stdout: the document as JSON, or its rows, which all have the same keys, as CSV with a head.

    What is not a number is null in JSON and empty in CSV. JSON is written in ASCII, so that no terminal changes it.
    docs/formats.md lists the keys, which stay as they are.
    """
    if form == "json":
        print(json.dumps(plain(document), indent=1, allow_nan=False))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([rows[0].keys()] if rows else [])
    writer.writerows(["" if value is None else value for value in plain(row).values()] for row in rows)


def plain(value: Any) -> Any:
    """The same in types that JSON has: paths and names as valid text, what is not a finite number as None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return to_utf8(str(value)) if isinstance(value, str | Path) else value


def show_page(write: Callable[[], Path], form: Format = "text") -> Path | None:
    """Write a result page and say where it is; whatever goes wrong, what it tells about is done, so it is a note."""
    try:
        page = write()
    except Exception as error:  # the figures are printed or in the ledger: no failure of the page may hide them
        note(f"the result page could not be written: {first_line(error)}")
        return None
    if form == "text":
        say(f"Result page: {page}")
    return page


def note_skipped(paths: Iterable[Path]) -> None:
    """On stderr: what lies in the folders and is no picture."""
    skipped: Skipped = Counter()
    for folder in filter(os.path.isdir, map(Path.expanduser, paths)):
        deque(pictures_below(folder, skipped=skipped), maxlen=0)
    if skipped:
        note(f"there are also {describe_skipped(skipped)}")


def note(sentence: str) -> None:
    """On stderr, so that it is not taken for a result."""
    say(f"note: {sentence}", sys.stderr)


def is_onnx(weights: str, device: str | None) -> bool:
    """Whether it is an exported file; that runs on the CPU only."""
    exported = weights.lower().endswith(".onnx")
    if exported and device not in (None, "cpu"):
        raise MspcapsError(f"{weights} runs on the CPU, with onnxruntime: leave out --device {device}")
    return exported


def print_results(results: Iterable[tuple[str, str | None]]) -> int:
    """A line per picture, or an error on stderr, as they come; the exit status says whether any failed."""
    status = 0
    for line, error in results:
        text, file = (line, sys.stdout) if error is None else (f"error: {error}", sys.stderr)
        say(printable(text), file)
        status = status if error is None else 1
    return status


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """What Ctrl-C sets, or a cluster or a closed terminal, so that runs can save their checkpoints; a second one ends
    everything at once.

    KeyboardInterrupt alone would not do: it gets lost when it is raised while torch.compile looks for code that fits,
    and a thread that is just being started is left behind.
    """
    from mspcaps.training import Stopped

    stop, status = threading.Event(), 0

    def interrupted(number: int, _: object) -> None:
        nonlocal status
        status = 128 + number
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        with suppress(OSError):  # of a terminal that is gone
            os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")

    before = {number: signal.signal(number, interrupted) for number in STOPPING}
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
