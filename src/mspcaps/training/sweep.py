"""Many runs on one device: side by side where that pays, within a time budget, each entered in the ledger as it ends.

Runs share one process: each has its own thread and CUDA stream and replays its own graphs, so small models fill the
gaps that one of them leaves, and a model compiled for one run serves the next.
"""

import itertools
import math
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mspcaps.errors import MspcapsError, nearest
from mspcaps.models import check_name
from mspcaps.models.summary import summarize
from mspcaps.training.checkpoint import CHECKPOINT, read_checkpoint, run_folder
from mspcaps.training.images import MIN_SIDE
from mspcaps.training.ledger import device_name, entry_path, find_run, read_run
from mspcaps.training.recipe import Recipe, load_recipe, read_toml, recipe_folder
from mspcaps.training.trainer import Listener, Log, Trainer

FILLS_A_GPU = 160e6  # multiply-adds per image at batch 128: four T share an H200; `bench train --packed` tells the gain


@dataclass(frozen=True)
class Outcome:
    """done: entered in the ledger now; known: was there before; stopped: checkpoint kept; left: not begun; failed."""

    recipe: Recipe
    state: str
    detail: str = ""

    @property
    def name(self) -> str:
        return f"{self.recipe.dataset}/{self.recipe.model}/{self.recipe.run_name}"


def list_sweeps() -> list[str]:
    """Names that `load_sweep` takes, such as baselines."""
    return sorted(path.stem for path in (recipe_folder() / "sweeps").glob("*.toml"))


def load_sweep(name: str | Path) -> list[Recipe]:
    """[[runs]] with `recipe`, optional `seeds`, `folds` and `grid`, and any field of the recipe to override, in the
    order of the file: a TOML file, or the name of one that comes with mspcaps."""
    path = Path(name).expanduser()
    if path.suffix != ".toml" and not path.is_file():
        path = recipe_folder() / "sweeps" / f"{name}.toml"
        if not path.is_file():
            hint = nearest(str(name), list_sweeps(), f"there are {', '.join(list_sweeps())}.")
            raise MspcapsError(f"there is no sweep {str(name)!r}: {hint}")
    table = read_toml(path, "the sweep")
    runs = table.get("runs")
    if not isinstance(runs, list) or not runs or set(table) != {"runs"}:
        raise MspcapsError(f"{path} must hold a list of [[runs]] and nothing else")
    recipes: list[Recipe] = []
    for number, run in enumerate(runs, start=1):
        try:
            recipes += _recipes(run, path.parent)
        except MspcapsError as error:
            raise MspcapsError(f"run {number} of {path}: {error}") from error
    return recipes


def _recipes(run: object, folder: Path) -> list[Recipe]:
    """One of the [[runs]], once for every point of its grid, every fold and every seed. The path of a recipe is looked
    for beside the sweep first."""
    if not isinstance(run, dict) or not isinstance(run.get("recipe"), str):
        raise MspcapsError('it names no recipe: add one, such as recipe = "paper/cifar10/mspcaps_t"')
    folds = run.get("folds") if "fold" not in run else None  # with a fold it is one run
    special = {"recipe", "seeds", "grid"} | ({"folds"} if folds is not None else set())
    changes = {key: value for key, value in run.items() if key not in special}
    beside = folder / run["recipe"]
    base = load_recipe(beside if beside.suffix == ".toml" and beside.is_file() else run["recipe"])
    seeds = run.get("seeds")
    if "seeds" in run and "seed" in run:
        raise MspcapsError("it has both seed and seeds: leave one of them out")
    if "seeds" in run and not (isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)):
        raise MspcapsError(f"seeds must be a list of whole numbers such as [0, 1, 2], not {seeds!r:.80}")
    if folds is not None and not (type(folds) is int and folds >= 2):
        raise MspcapsError(f"folds must be a whole number of at least 2, not {folds!r:.80}")
    changed = base.replace(**changes)
    recipes = [changed.replace(**point) for point in _grid_points(run)]
    for recipe in recipes:
        check_name(recipe.model)  # now, not after hours of other runs
    if folds:
        recipes = [recipe.replace(folds=folds, fold=fold + 1) for recipe in recipes for fold in range(folds)]
    return [recipe.replace(seed=seed) for recipe in recipes for seed in seeds or [recipe.seed]]


def _grid_points(run: dict[str, Any]) -> list[dict[str, Any]]:
    """{lr = [1, 2], ema = [0.9]} -> [{lr: 1, ema: 0.9}, {lr: 2, ema: 0.9}]; without a grid one point that changes
    nothing."""
    grid = run.get("grid", {})
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise MspcapsError(f"grid must be a table of lists such as {{lr = [1e-3, 5e-4]}}, not {grid!r:.80}")
    if twice := sorted(grid.keys() & run.keys()):
        raise MspcapsError(f"{twice[0]} is in the grid and beside it: leave one of them out")
    if others := sorted(grid.keys() & {"name", "seed", "fold", "folds"}):
        raise MspcapsError(f"{others[0]} cannot be in a grid: write seeds = [0, 1] or folds = 5 beside the grid")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def share_of_device(recipe: Recipe, device: torch.device) -> float:
    """How much of the device a run takes: 1 if it fills it."""
    if device.type != "cuda":
        return 1.0
    macs = summarize(recipe.model, img_size=recipe.resolve().img_size or MIN_SIDE).macs
    return min(1.0, max(0.25, macs / FILLS_A_GPU))


def expected_seconds(recipe: Recipe, device: torch.device, out: Path, results: Path) -> float:
    """By what finished runs of the same model, data and adversary took on such a device, for the epochs that are still
    to do; nothing is known before the first."""
    took, adversary = [0.0], recipe.to_dict()["adversary"]
    for path in entry_path(results, recipe).parent.glob("*.json"):
        with suppress(MspcapsError):  # the report will name what cannot be read
            run = read_run(path)
            alike = run.device == device_name(device) and run.recipe["adversary"] == adversary
            took += [run.seconds.per_epoch] if alike else []
    epochs, checkpoint = recipe.epochs, run_folder(out, recipe) / CHECKPOINT
    if checkpoint.is_file():
        epochs -= read_checkpoint(checkpoint, whole=False)[0]["epoch"]
    return max(took) * epochs


def run_sweep(
    recipes: list[Recipe],
    device: torch.device,
    budget: float = math.inf,
    out: Path = Path("runs"),
    results: Path = Path("results"),
    log: Log = print,
    listener: Listener = lambda trainer: None,
    stop: threading.Event | None = None,
) -> list[Outcome]:
    """Runs what the ledger lacks, in order, as many at a time as fit; what is named twice is run once.

    Begins nothing that cannot end within `budget` seconds, as far as the ledger can tell. When `stop` is set, runs save
    their checkpoints and end.
    """
    deadline = time.monotonic() + budget
    whole = [recipe.resolve() for recipe in recipes]
    recipes = [recipe for place, recipe in enumerate(recipes) if whole[place] not in whole[:place]]
    done = [find_run(results, recipe) is not None for recipe in recipes]
    known = [recipe for recipe, there in zip(recipes, done, strict=True) if there]
    waiting = [recipe for recipe, there in zip(recipes, done, strict=True) if not there]
    outcomes = [Outcome(recipe, "known") for recipe in known]
    running: dict[Future[Outcome], float] = {}
    stop = stop or threading.Event()
    # Known before the first run begins: counting hooks into every module that runs meanwhile, in whichever thread.
    shares = {id(recipe): share_of_device(recipe, device) for recipe in waiting}
    log(f"{len(waiting)} runs to do, {len(outcomes)} already in the ledger")
    with ThreadPoolExecutor(max_workers=4) as pool, ExitStack() as leaving:
        leaving.push(lambda error, *_: stop.set() if error else None)  # runs that go on save their checkpoints and end
        while waiting or running:
            for recipe in list(waiting):
                share = shares[id(recipe)]
                if sum(running.values()) + share > 1 or stop.is_set():
                    break
                waiting.remove(recipe)
                try:
                    late = time.monotonic() + expected_seconds(recipe, device, out, results) > deadline
                except MspcapsError as error:  # a damaged checkpoint or entry
                    outcomes.append(Outcome(recipe, "failed", str(error)))
                    log(f"{outcomes[-1].name} failed: {error}")
                    continue
                if late:
                    outcomes.append(Outcome(recipe, "left", "there was no time left for it"))
                    continue
                work = (recipe, device, int(1 / share), out, results, deadline, listener, stop)
                running[pool.submit(_train_one, *work)] = share
            if not running:
                if stop.is_set():
                    break
                continue
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                del running[future]
                outcome = future.result()
                outcomes.append(outcome)
                log(f"{outcome.name} {outcome.state}: {outcome.detail}")
    return outcomes + [Outcome(recipe, "left", "the sweep was stopped before it") for recipe in waiting]


_idle: dict[torch.device, list[torch.cuda.Stream]] = {}  # streams that no run has now


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream that no other run has meanwhile; few are ever made: see `recording_stream`."""
    if device.type != "cuda":
        yield
        return
    idle = _idle.setdefault(device, [])
    try:
        stream = idle.pop()  # not asked for before: another thread may be quicker
    except IndexError:
        stream = torch.cuda.Stream(device)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        idle.append(stream)


def _train_one(
    recipe: Recipe, device: torch.device, together: int, out: Path, results: Path, deadline: float, listener: Listener,
    stop: threading.Event,
) -> Outcome:  # fmt: skip
    """One run on a stream of its own. A run that fails does not take the others with it."""
    try:
        with own_stream(device):
            trainer = Trainer(
                recipe, device, out=out, results=results, listener=listener, side_by_side=together, stop=stop,
                log=lambda line: None,
            )  # fmt: skip
            result = trainer.run(deadline)
    except MspcapsError as error:
        return Outcome(recipe, "failed", str(error))
    except Exception as error:  # a bug, or the device: the others may still come through, and hours are at stake
        traceback.print_exc()
        return Outcome(recipe, "failed", f"{type(error).__name__}: {error}".partition("\n")[0])
    if result is None:
        return Outcome(recipe, "stopped", "its checkpoint is kept")
    return Outcome(recipe, "done", f"{result.run.accuracy}; in {result.run.seconds.train:.0f} s")
