"""Many runs, several at a time if the device has room, within a time budget; each enters the ledger as it finishes.

Runs on one device share one process: each has its own thread and CUDA stream and replays its own graphs. Small models
fill the gaps that one of them would leave, and a model compiled for one run serves the next. Several GPUs have a worker
process each (`workers`); a cluster uses Ray (`cluster`). This file decides what is trained next, those decide where.
"""

import itertools
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import torch

from mspcaps.errors import MspcapsError, nearest
from mspcaps.models import check_name
from mspcaps.models.registry import defining_module
from mspcaps.progress import Progress
from mspcaps.training.cluster import RayCluster
from mspcaps.training.device import choose_device
from mspcaps.training.job import Job, Outcome, Place, ThisProcess, WorkerLost, share_of_device
from mspcaps.training.ledger import find_run
from mspcaps.training.recipe import Recipe, load_recipe, read_toml, recipe_folder
from mspcaps.training.trainer import SAVE_EVERY, Listener, Log
from mspcaps.training.workers import WorkerProcess, find_slots

POLL = 0.2  # seconds between checks of whether to stop
MAX_LOSSES = 3  # how many workers a run may lose before it counts as failed


def list_sweeps() -> list[str]:
    """Names that `load_sweep` takes, such as baselines."""
    return sorted(path.stem for path in (recipe_folder() / "sweeps").glob("*.toml"))


def load_sweep(name: str | Path) -> list[Recipe]:
    """The recipes of a sweep: a TOML file, or the name of one that comes with mspcaps. It lists [[runs]] with `recipe`,
    optional `seeds`, `folds` and `grid`, and any field of the recipe to override."""
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
    """One of the [[runs]], once for every point of its grid, every fold and every seed. A path of a recipe is tried
    relative to the sweep's folder first."""
    if not isinstance(run, dict) or not isinstance(run.get("recipe"), str):
        raise MspcapsError('it names no recipe: add one, such as recipe = "paper/cifar10/mspcaps_t"')
    folds = run.get("folds") if "fold" not in run else None  # if it names a fold, it is a single run
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
        check_name(recipe.model)  # now rather than after hours of other runs
    if folds:
        recipes = [recipe.replace(folds=folds, fold=fold + 1) for recipe in recipes for fold in range(folds)]
    return [recipe.replace(seed=seed) for recipe in recipes for seed in seeds or [recipe.seed]]


def _grid_points(run: dict[str, Any]) -> list[dict[str, Any]]:
    """{lr = [1, 2], ema = [0.9]} -> [{lr: 1, ema: 0.9}, {lr: 2, ema: 0.9}]; without a grid -> [{}]."""
    grid = run.get("grid", {})
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise MspcapsError(f"grid must be a table of lists such as {{lr = [1e-3, 5e-4]}}, not {grid!r:.80}")
    if duplicates := sorted(grid.keys() & run.keys()):
        raise MspcapsError(f"{duplicates[0]} is both in the grid and beside it: leave one of them out")
    if reserved := sorted(grid.keys() & {"name", "seed", "fold", "folds"}):
        raise MspcapsError(f"{reserved[0]} cannot be in a grid: write seeds = [0, 1] or folds = 5 beside the grid")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def choose_places(
    device: str | None, workers: int | None, ray: bool, progress: Progress, log: Log
) -> tuple[torch.device, list[Place]]:
    """-> the kind of device to train on, and the places to train in; no place means this process."""
    if "WORLD_SIZE" in os.environ and os.environ["WORLD_SIZE"] != "1":
        raise MspcapsError("a sweep starts its own processes, one per GPU: run it without torchrun")
    if ray:
        if workers is not None:
            raise MspcapsError("--workers is for one machine: with --ray every core or GPU of the cluster is used")
        cluster = RayCluster(device)
        log(f"Ray cluster: {cluster.summary}")
        return cluster.device, [cluster]
    chosen = choose_device(device)
    if device is not None and ":" in device:
        if workers not in (None, 1):
            raise MspcapsError(f"--device {device} is one device, but --workers is {workers}: leave one of them out")
        return chosen, []
    slots = find_slots(chosen, workers)
    if slots:
        log(f"{len(slots)} workers, each with {'a GPU' if chosen.type == 'cuda' else 'a share of the cores'}")
    return chosen, [WorkerProcess(slot, progress) for slot in slots]


def run_sweep(
    recipes: list[Recipe],
    device: torch.device,
    budget: float = math.inf,
    out: Path = Path("runs"),
    results: Path = Path("results"),
    log: Log = print,
    listener: Listener = lambda trainer: None,
    stop: threading.Event | None = None,
    places: Sequence[Place] = (),
    save_every: float = SAVE_EVERY,
) -> list[Outcome]:
    """Run what the ledger lacks, in order, as many at a time as fit; a recipe listed twice is run once.

    A run that cannot finish within `budget` seconds, judging by the ledger, is not started. Once `stop` is set, runs
    save their checkpoints and end. They are trained in `places`, by default in this process, on devices like `device`.
    """
    deadline = time.time() + budget
    recipes = without_duplicates(recipes)
    waiting = [recipe for recipe in recipes if find_run(results, recipe) is None]
    outcomes = [Outcome(recipe, "known") for recipe in recipes if recipe not in waiting]
    stop = stop or threading.Event()
    # Before the first run begins: counting multiply-adds hooks into all modules that run meanwhile, in any thread.
    shares = {id(recipe): share_of_device(recipe, device) for recipe in waiting}
    log(f"{len(waiting)} runs to do, {len(outcomes)} already in the ledger")
    with RunningJobs(places or [ThisProcess(device, listener, stop)]) as running:
        while waiting or running.jobs:
            for recipe in list(waiting):
                share = shares[id(recipe)]
                if stop.is_set() or not (place := running.place_for(share)):
                    break
                waiting.remove(recipe)
                module = defining_module(recipe.model)
                job = Job(recipe, out, results, deadline, module, int(1 / share), save_every)
                running.begin(job, place, share)
            if not running.jobs:
                break  # stopped
            for outcome in running.wait(stop):
                if outcome.state == "lost":
                    log(f"{outcome.name}: {outcome.detail}; restarting it from its checkpoint")
                    waiting.insert(0, outcome.recipe)
                    continue
                outcomes.append(outcome)
                log(f"{outcome.name} {outcome.state}: {outcome.detail}")
    return outcomes + [Outcome(recipe, "left", "the sweep was stopped before it") for recipe in waiting]


def without_duplicates(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Each run once; different runs must not share a name, as that of their files."""
    named: dict[Path, Recipe] = {}
    for recipe in recipes:
        first = named.setdefault(recipe.run_path, recipe)
        if differing := first.resolve().differences(recipe.resolve().to_dict()):
            raise MspcapsError(
                f"two runs are called {recipe.run_path.as_posix()}, but differ in {differing[0]}: give one another name"
            )
    return [*named.values()]


class RunningJobs:
    """The jobs being trained, each in its place."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.jobs: dict[Future[Outcome], tuple[Job, Place, float]] = {}
        self.losses: Counter[str] = Counter()  # name of a run -> workers it has lost
        self.stopping = False

    def __enter__(self) -> "RunningJobs":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for place in self.places if kind is not None else ():
            place.stop()  # its runs save their checkpoints and end
        for place in self.places:
            place.close(at_once=kind is not None)

    def place_for(self, share: float) -> Place | None:
        """The least loaded place that has room for the share, if any."""
        used = {id(place): 0.0 for place in self.places}
        for _, place, load in self.jobs.values():
            used[id(place)] += load
        fitting = [place for place in self.places if used[id(place)] + share <= place.capacity]
        return min(fitting, key=lambda place: used[id(place)], default=None)

    def begin(self, job: Job, place: Place, share: float) -> None:
        self.jobs[place.submit(job, share)] = (job, place, share)

    def wait(self, stop: threading.Event) -> list[Outcome]:
        """The outcomes of the jobs that have ended by the time the first one does, or after POLL seconds."""
        done, _ = wait(self.jobs, timeout=POLL, return_when=FIRST_COMPLETED)
        if stop.is_set() and not self.stopping:
            self.stopping = True
            for place in self.places:
                place.stop()
        return [self.outcome(future) for future in done]

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Of a finished job; a run whose worker was lost is tried again, but not forever."""
        job, _, _ = self.jobs.pop(future)
        try:
            return future.result()
        except WorkerLost as error:
            lost = Outcome(job.recipe, "stopped" if self.stopping else "lost", str(error))
            self.losses[lost.name] += 1
            if self.losses[lost.name] <= MAX_LOSSES:
                return lost
            return Outcome(job.recipe, "failed", f"{error}, for the {self.losses[lost.name]}th time")
