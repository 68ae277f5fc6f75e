"""The command line, a thin layer over the Python API. This file parses arguments, dispatches and reports errors."""

import contextlib
import errno
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import tyro

from mspcaps import __version__
from mspcaps.cli import bench, commands, datasets, evaluation, training
from mspcaps.errors import MspcapsError, first_line, nearest, reason
from mspcaps.progress import say

Command = Callable[..., int | None]
Table = dict[str, Command]
DESCRIPTION = """Train, evaluate, explain and export capsule networks. Start with `mspcaps quickstart`.

`mspcaps --import MODULE COMMAND ...` imports your own Python module first, for example one that registers models.
`mspcaps --version` prints the version. `mspcaps --tyro-print-completion bash` (or zsh, tcsh) prints a script that makes
the shell complete commands and options."""
COMMANDS: Table = {
    "quickstart": commands.quickstart,
    "data": datasets.data,
    "models": commands.models,
    "train": training.train,
    "sweep": training.sweep,
    "eval": evaluation.evaluate,
    "attack": evaluation.attack,
    "predict": commands.predict,
    "explain": commands.explain,
    "export": commands.export,
    "bench": bench.bench,
    "report": commands.report,
    "app": commands.app,
}
DATA: Table = {"list": datasets.show, "get": datasets.get, "verify": datasets.verify}


def main(args: list[str] | None = None) -> int:
    """Exit status 0: done; 1: part of the work failed; 2: refused, with one sentence on stderr; 130 or 128 + N: stopped
    by Ctrl-C or by signal N."""
    args = sys.argv[1:] if args is None else args
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        # torch reads it when it is imported, which is later. Waiting threads spin 300,000 times by default, which made
        # training many times slower beside another program on the same cores. With 3,000 the two share the cores.
        os.environ["GOMP_SPINCOUNT"] = "3000"
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may have characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run(args)
        sys.stdout.flush()
        return status
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except MspcapsError as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `mspcaps models | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else reason(error)
        return refuse(f"{error.filename}: {why}" if error.filename else why)
    except (MemoryError, RuntimeError) as error:
        out_of_memory = type(error).__name__ == "OutOfMemoryError" or re.search(  # GPU, CPU, or a size that overflows
            "can't allocate memory|calculation overflowed|multiplication overflow", str(error)
        )
        if isinstance(error, MemoryError) or out_of_memory:
            return refuse("there is not enough memory for this: a smaller batch, image size or model may fit")
        if re.match("Could not determine home|Symlink loop", str(error)):  # pathlib's wording
            return refuse(f"cannot resolve a path, so write it in full: {error}")
        raise


def run(args: list[str]) -> int:
    """Parse the arguments and call the command."""
    if "" in args:
        raise MspcapsError("one of the arguments is empty: is a shell variable unset?")
    while args and args[0].partition("=")[0] == "--import":
        args = import_first(args)
    if args in (["--version"], ["-V"]):
        print(f"mspcaps {__version__}")
        return 0
    table, program, description = COMMANDS, "mspcaps", DESCRIPTION
    if args[:1] == ["data"]:
        table, program, description, args = DATA, "mspcaps data", "List, fetch and verify data sets.", args[1:]
    name = args[0] if args else "--help"
    if name in table:
        command = parse(f"{program} {name}", partial(tyro.cli, deferred(table[name]), args=args[1:]))
    elif not name.startswith("-"):
        hint = nearest(name, table, f"the commands are {', '.join(table)}.")
        raise MspcapsError(f"there is no command {name!r}: {hint}")
    else:
        commands = {name: deferred(command) for name, command in table.items()}
        parser = partial(tyro.extras.subcommand_cli_from_dict, commands, description=description, args=args or [name])
        command = parse(program, parser)
    return command() or 0


def import_first(args: list[str]) -> list[str]:
    """Import the module of --import, from the working directory too, as `python -m` does -> the other arguments"""
    _, equals, name = args[0].partition("=")
    rest = args[1:] if equals else args[2:]
    name = name if equals else "".join(args[1:2])
    if not all(part.isidentifier() for part in name.split(".")):
        raise MspcapsError(f"--import takes the name of a module as Python imports it, such as my.models, not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name)
    except MspcapsError:
        raise
    except ModuleNotFoundError as error:
        raise MspcapsError(f"cannot import {name}: there is no module {error.name!r} here or installed") from error
    except Exception as error:  # from the user's own code
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {first_line(error)}, in line {last.lineno} of {last.filename}"
        raise MspcapsError(f"cannot import {name}: {why}") from error
    return rest


def deferred(command: Command) -> Callable[..., Command]:
    """The command with its arguments bound, to be called later: `parse` captures only what the parser prints."""
    # tyro would break the help of an option wherever our source does
    command.__doc__ = re.sub(r"\n {12}", " ", command.__doc__ or "")

    @wraps(command)
    def bind(*args: Any, **options: Any) -> Command:
        return partial(command, *args, **options)

    return bind


def parse(program: str, parser: Callable[..., Command]) -> Command:
    """Call tyro; its box about wrong arguments becomes one line that refers to --help for the rest."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            # help texts must not offer "None" as a value
            return parser(prog=program, config=(tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName))
    except SystemExit as end:
        if not end.code:  # --help
            raise
    except AssertionError as error:  # --tyro-print-completion does not know the shell
        box.write(f"\n{error}")
    raise MspcapsError(f"{message_in(box.getvalue())}: see `{program} --help`")


def message_in(box: str) -> str:
    """The first paragraph below the title of tyro's box, and what it thinks was meant."""
    without_colours = re.sub(r"\x1b\[[0-9;]*m|-{5,}", "", box)
    lines = [line.strip("│╭╰╮╯─ ") for line in without_colours.splitlines()]
    first_paragraph = "\n".join(lines[1:]).strip("\n").partition("\n\n")[0]
    message = first_paragraph.replace("\n", " ").rstrip(".")
    if "Perhaps you meant:" in lines:
        message += f", perhaps you meant {lines[lines.index('Perhaps you meant:') + 1]}"
    return re.sub("'None', |, 'None'(?=[])])", "", message)  # refused as a value


def refuse(why: str) -> int:
    say(f"error: {' '.join(why.split())}", sys.stderr)  # messages of libraries may span several lines
    return 2
