"""`mspcaps train` and `mspcaps sweep`: choose recipes, apply the changes of the command line, train."""

import ast
import dataclasses
import inspect
import os
import sys
import textwrap
import typing
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.common import Maybe, Switch, show_page, stoppable
from mspcaps.errors import MspcapsError
from mspcaps.progress import Progress, say

if TYPE_CHECKING:
    from mspcaps.training import Recipe


def changes_type() -> type:
    """The fields of the recipe as optional arguments. Made when the parser asks for it: torch is slow to import."""
    from mspcaps.training import Recipe

    changes = optional_fields(Recipe)
    changes.__doc__ = "Changes to the recipe; they become part of the run's name."
    return changes


def optional_fields(kind: type) -> type:
    """A dataclass with the fields, types and help texts of another, but None as every default."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    notes = {
        field.target.id: note.value.value
        for field, note in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant)
    }  # fmt: skip
    hints = typing.get_type_hints(kind)
    optional: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(kind):
        inner = next((arg for arg in typing.get_args(hints[field.name]) if dataclasses.is_dataclass(arg)), None)
        if inner is not None:
            nested = optional_fields(typing.cast(type, inner))
            nested.__doc__ = str(notes.get(field.name, kind.__doc__))
            optional.append((field.name, nested, dataclasses.field(default_factory=nested)))
            continue
        table = typing.get_origin(hints[field.name]) is dict
        hint = list[str] if table else hints[field.name]
        note, metavar = str(notes.get(field.name, "")), "NAME=VALUE ..." if table else None
        option = tyro.conf.arg(help=note, help_behavior_hint="", metavar=metavar)
        optional.append((field.name, Annotated[hint | None, option], dataclasses.field(default=None)))
    return dataclasses.make_dataclass(f"{kind.__name__}Changes", optional, frozen=True)


def train(
    recipe: Positional[Maybe[str]] = None,
    changes: Annotated[Any, tyro.conf.arg(name="", constructor_factory=changes_type)] = None,
    list: Switch = False,
    device: Maybe[str] = None,
    engine: Maybe[Literal["eager", "compile", "cudagraph"]] = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
    save_every: float = 30.0,
    log_dir: Maybe[Path] = None,
    overwrite: Switch = False,
) -> None:
    """Train a recipe, or --model on --data. An interrupted run continues from its checkpoint.

    The folder of the run gets the weights and a page with curves, confusion matrix, measures of every class and the
    most confident mistakes.

    Args:
        recipe: A name shown by --list, such as paper/cifar10/mspcaps_t, or the path of a .toml file.
        list: List the recipes and exit.
        device: cpu, cuda or mps; default: the GPU if there is one.
        engine: How training steps run; default: the fastest engine that the device supports.
        out: Folder for weights and checkpoints.
        results: Folder of the results; the ledger is runs/ inside it, one JSON file per finished run.
        save_every: Seconds between checkpoints.
        log_dir: Also log loss, learning rate and accuracy for TensorBoard to this folder.
        overwrite: Train a finished run again and replace its ledger entry.
    """
    import mspcaps.training

    if list:
        print("\n".join(mspcaps.training.list_recipes()))
        return
    chosen = choose_recipe(recipe, changed_fields(changes))
    with stoppable() as stop:
        result = mspcaps.training.train(
            chosen, device=device, engine=engine, out=out, results=results, save_every=save_every,
            log_dir=log_dir, stop=stop, overwrite=overwrite,
        )  # fmt: skip
    from mspcaps.report import run_page, write_page
    from mspcaps.report.run import PAGE

    page = result.folder / PAGE
    if os.environ.get("RANK", "0") == "0":
        finished_before = result.images is None and page.is_file()
        show_page(lambda: page.resolve() if finished_before else write_page(page, run_page(result), result.model))


def changed_fields(changes: Any) -> dict[str, Any]:
    """The fields that the command line sets: {"epochs": 3, "augment": {"crop": 2}}."""
    fields = {}
    for name, value in vars(changes).items():
        if dataclasses.is_dataclass(value):
            value = changed_fields(value) or None
        if name == "options" and value is not None:
            value = dict(map(parse_option, value))
        if value is not None:
            fields[name] = value
    return fields


def parse_option(text: str) -> tuple[str, Any]:
    """iterations=3 -> ("iterations", 3); values are written as in Python or TOML, text without quotes."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise MspcapsError(f"--options takes NAME=VALUE, not {text!r}")
    try:
        return name, ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError):
        return name, value


def choose_recipe(name: str | None, changes: dict[str, Any]) -> "Recipe":
    """The recipe with the changes of the command line."""
    from mspcaps.data import CATALOG
    from mspcaps.training import Recipe, load_recipe, recipe_for
    from mspcaps.training.images import open_split, training_size

    own = name is None and "data" in changes and changes["data"] not in CATALOG
    if name is not None:
        recipe = load_recipe(name)
    elif own:
        recipe = recipe_for(changes["data"])
    elif "data" in changes:
        recipe = Recipe(data=changes["data"])
    else:
        raise MspcapsError("name what to train: a recipe (`mspcaps train --list`), or --data FOLDER --model NAME")
    if "options" in changes:
        changes["options"] = recipe.options | changes["options"]
    if "adversary" in changes:
        before = dataclasses.asdict(recipe.adversary) if recipe.adversary else {}
        changes["adversary"] = before | changes["adversary"]
    if augment := changes.pop("augment", None):
        resolved = recipe.replace(**changes).resolve()
        if resolved.augment is None:
            resolved = resolved.resolve(training_size(resolved, open_split(resolved, "train")))
        changes["augment"] = dataclasses.asdict(typing.cast(Any, resolved.augment)) | augment
    return recipe_for(**changes) if own else recipe.replace(**changes)


def sweep(
    file: Positional[str],
    budget: Maybe[str] = None,
    device: Maybe[str] = None,
    workers: Maybe[int] = None,
    ray: Switch = False,
    out: Path = Path("runs"),
    results: Path = Path("results"),
    save_every: float = 30.0,
) -> int:
    """Train all runs of a file that are not in the ledger yet, in order, several at a time where that is faster.

    All GPUs of the machine are used, each by a worker process; with --ray those of a cluster. If a worker is lost, its
    run continues from its checkpoint; so does an interrupted sweep when you repeat the command.

    Args:
        file: TOML file with a list of [[runs]]: each has a recipe, optional seeds, folds and grid, and any recipe
            fields to change; or the name of a sweep that comes with mspcaps, such as baselines.
        budget: Time for the whole sweep, such as 540s, 9m or 2h. A run that would take longer by the ledger is not
            started; one that the ledger cannot judge stops with a checkpoint at the end of its epoch.
        device: cpu, cuda, cuda:1 or mps; default: all GPUs if there are any.
        workers: Worker processes; default: one per GPU. On a CPU they share its cores.
        ray: Train on the Ray cluster that RAY_ADDRESS names or this machine belongs to; without one, start one here.
        out: Folder for weights and checkpoints, shared by all machines of a cluster.
        results: Folder of the results, shared likewise; the ledger is runs/ inside it.
        save_every: Seconds between checkpoints of a run.
    """
    from mspcaps.training import Stopped
    from mspcaps.training.monitor import ShowProgress
    from mspcaps.training.sweep import choose_places, load_sweep, run_sweep

    recipes, seconds = load_sweep(file), parse_duration(budget) if budget else float("inf")
    with stoppable() as stop, Progress("images", every=30.0, file=sys.stdout, parallel=True) as progress:
        kind, places = choose_places(device, workers, ray, progress, say)
        outcomes = run_sweep(
            recipes, kind, seconds, out.absolute() if ray else out, results.absolute() if ray else results, say,
            ShowProgress(progress, named=True), stop, places, save_every,
        )  # fmt: skip
        if stop.is_set():
            raise Stopped(f"stopped; the same command continues from the checkpoints in {out}")
    counts = Counter(outcome.state for outcome in outcomes)
    words = {"known": "already in the ledger", "left": "not started"}
    print(", ".join(f"{count} {words.get(state, state)}" for state, count in counts.items()))
    return 1 if counts["failed"] else 0


def parse_duration(text: str) -> float:
    """540s, 9m, 2h or plain seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise MspcapsError(f"--budget is {text!r}, but must be a time such as 540s, 9m or 2h")
    return seconds
