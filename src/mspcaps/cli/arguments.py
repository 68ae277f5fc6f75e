"""Arguments that do not parse: one sentence in place of tyro's box."""

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tyro

from mspcaps.errors import MspcapsError, nearest

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "[INT [INT ...]]": "whole numbers"}
SHELLS = ("bash", "zsh", "tcsh", "fish")  # tyro writes completions for them
ShowHelp = Callable[[], object]


def refusal(why: str, program: str, name: str = "", known: Iterable[str] = ()) -> MspcapsError:
    """Why not, the nearest of the known names if one is misspelt, and where the help is."""
    hint = nearest(name, known, "")
    return MspcapsError(f"{why}: {hint} See `{program} --help`" if hint else f"{why}: see `{program} --help`")


def readable_parse_errors(
    program: str, args: Sequence[str], show_help: ShowHelp
) -> contextlib.AbstractContextManager[object]:
    """What tyro is about to refuse of the arguments of `program` is refused in our words.

    The hook is not of tyro's public interface: a version without it, or whose events are others, uses its own words.
    """
    if args and args[0].startswith("--tyro") and not {*args[1:2]} & {*SHELLS}:  # tyro would fail an assertion
        raise refusal(f"{args[0]} takes {one_of(SHELLS)}", program)
    if not hasattr(getattr(tyro, "_errors", None), "on_parse_error"):
        return contextlib.nullcontext()

    def refuse(event: Any) -> None:
        with contextlib.suppress(AttributeError):
            if error := explained(event, program, args, show_help):
                raise error

    return tyro._errors.on_parse_error(refuse)


def explained(event: Any, program: str, args: Sequence[str], show_help: ShowHelp) -> MspcapsError | None:
    argument: Any = getattr(event, "argument", None)
    takes = f"{called(argument)} takes {expected(argument)}" if argument else ""
    match type(event).__name__:
        case "UnrecognizedArgs":
            return unknown(event.tokens[0], program, show_help)
        case "MissingArgs":
            return missing([entry.arg for entry in event.missing_arguments], program, args, show_help)
        case "BadValue" if argument.is_positional():
            return missing([argument], program, args, show_help)
        case "BadValue":
            return refusal(f"{takes}, but none is given", program)
        case "InvalidChoice":
            return refusal(f"{takes}, not {event.value!r}", program, event.value, event.choices)
        case "InstantiationFailure" if argument:
            return refusal(f"{takes}, not {given(argument, args)!r}", program)
    return None


def missing(arguments: Sequence[Any], program: str, args: Sequence[str], show_help: ShowHelp) -> MspcapsError:
    known = flags(show_help)
    for word in args:  # a misspelt option takes with it what is missing
        if word.startswith("--") and word.partition("=")[0].replace("_", "-") not in known:
            return unknown(word, program, show_help)
    names = [called(one) + (f" ({expected(one)})" if one.lowered.choices else "") for one in arguments]
    return refusal(f"{program} needs {' and '.join(names)}", program)


def unknown(word: str, program: str, show_help: ShowHelp) -> MspcapsError:
    if not word.startswith("-"):
        return refusal(f"{program} does not expect {word!r}", program)
    flag, known = word.partition("=")[0], flags(show_help)
    group = next((name for name in known if name.endswith(f".{flag.lstrip('-')}")), flag)  # --flip: --augment.flip
    return refusal(f"{program} has no option {flag!r}", program, group, known)


def called(argument: Any) -> str:
    lowered = argument.lowered
    return str(lowered.metavar if argument.is_positional() else lowered.name_or_flags[0])


def expected(argument: Any) -> str:
    metavar = argument.lowered.metavar
    if metavar.startswith("{"):  # the choices, in their order
        return one_of(metavar.strip("{}").split(","))
    return one_of(argument.lowered.choices) if argument.lowered.choices else KINDS.get(metavar, "a value")


def one_of(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def given(argument: Any, args: Sequence[str]) -> str:
    """The value of an option, the last time it is named: --flag VALUE ..., --flag=VALUE."""
    values: list[str] = []
    taking = False
    for word in args:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            taking = name.replace("_", "-") in argument.lowered.name_or_flags
            values = ([value] if equals else []) if taking else values
        elif taking:
            values.append(word)
    count = argument.lowered.nargs
    return " ".join(values[:count] if isinstance(count, int) else values)


def flags(show_help: ShowHelp) -> list[str]:
    """All options of a command, as its help has them at the beginning of lines."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        show_help()
    starts = re.findall(r"^\W* (-\S+(?:, --\S+)*)", text.getvalue(), re.MULTILINE)
    return re.findall(r"--[\w.-]+", " ".join(starts))
