"""The command line: words into calls of the Python API. This file has the way in and the way out, errors included."""

import errno
import os
import sys

import tyro

from mspcaps.cli import commands, datasets
from mspcaps.errors import MspcapsError

DESCRIPTION = "Capsule networks: train, evaluate and use MSPCaps and its relatives. `mspcaps quickstart` shows it all."
COMMANDS = {
    "quickstart": commands.quickstart,
    "data": datasets.data,
    "models": commands.models,
    "train": commands.train,
    "sweep": commands.sweep,
    "eval": commands.evaluate,
    "predict": commands.predict,
}
DATA = {"list": datasets.show, "get": datasets.get, "verify": datasets.verify}


def main(args: list[str] | None = None) -> int:
    """Exit status 0: done; 1: some of it failed; 2: one sentence on stderr says why not; 130: stopped by Ctrl-C."""
    args = sys.argv[1:] if args is None else args
    try:
        status = run(args)
        sys.stdout.flush()
        return status
    except MspcapsError as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `mspcaps models | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return refuse(sentence(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return refuse("there is not enough memory for this: a smaller batch, image size or model may fit")
        raise


def run(args: list[str]) -> int:
    """Parse and call; argument errors end here with tyro's own words."""
    try:
        if args[:1] == ["data"]:
            line = "Fetch, list and verify data sets."
            return tyro.extras.subcommand_cli_from_dict(DATA, prog="mspcaps data", description=line, args=args[1:]) or 0
        shown = args or ["--help"]
        return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="mspcaps", description=DESCRIPTION, args=shown) or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0


def refuse(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


def sentence(error: OSError) -> str:
    """What the system says, with the file it says it about."""
    why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why
