"""Why runs of MSPCaps-T differ: the health of its routing blocks after training, beside the accuracy of the run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mspcaps.evaluation.health import BlockHealth
from mspcaps.report.runs import Group, Spread
from mspcaps.training.ledger import Run
from reproduction.significance import Correlation

T = "mspcaps_t"
VARIANTS = {  # others with cross-agreement in two blocks, by the name of their recipe
    "mspcaps_t_unshared": "own weights", "mspcaps_t_mean": "mean agreement", "mspcaps_t_p2": "patch size 2",
    "mspcaps_t_p3": "patch size 3", "mspcaps_t_no_position": "no positions", "mspcaps_t_decoder": "decoder",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A run with the health of its blocks after every epoch."""

    run: Run
    epochs: tuple[tuple[BlockHealth, ...], ...]

    @property
    def blocks(self) -> tuple[BlockHealth, ...]:
        return self.epochs[-1]

    @property
    def last(self) -> float:
        return self.run.accuracy.last

    @property
    def loss(self) -> float:
        """Of the training images, in the last epoch."""
        return float(self.run.curve["loss"][-1])

    def collapsed_epochs(self, block: int) -> int:
        return sum(blocks[block].collapsed for blocks in self.epochs)


def measured_runs(group: Group | None) -> list[Measured]:
    """Of every seed the first run of two blocks or more whose health was recorded, the most accurate first."""
    runs: dict[int, Measured] = {}
    for run in (*group.runs, *group.repeats) if group else ():
        health = run.curve.get("health") or {}
        entropies = [curves["entropy"] for curves in health.values()]
        if len(health) > 1 and all(len(curve) == run.epochs and None not in curve for curve in entropies):
            epochs = tuple(blocks_after(health, epoch) for epoch in range(run.epochs))
            runs.setdefault(run.seed, Measured(run, epochs))
    return sorted(runs.values(), key=lambda run: -run.last)


def blocks_after(health: Mapping[str, Any], epoch: int) -> tuple[BlockHealth, ...]:
    def block(name: str, curves: Mapping[str, Any]) -> BlockHealth:
        values = {key: curves[key][epoch] for key in ("entropy", "top", "starved")}
        swapped = {key: curve[epoch] for key, curve in curves["swapped"].items()}
        return BlockHealth(name, curves["capsules"], **values, swapped=swapped)

    return tuple(block(name, curves) for name, curves in health.items())


def minus(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


@dataclass(frozen=True)
class Study:
    """All runs of T by the paper's recipe that recorded their health, and those of its variants."""

    runs: Sequence[Measured]
    others: Mapping[str, Sequence[Measured]]
    repeated: Sequence[int]  # seeds of T whose first run did not, so that a repeat stands for it

    def correlation(self, values: Iterable[float]) -> Correlation | None:
        """Of the last accuracy with a measure of every run."""
        return Correlation.of(list(values), [one.last for one in self.runs])

    @property
    def before_repeats(self) -> Correlation | None:
        """Of the last accuracy with the entropy of the second block, as it was before the repeats were trained."""
        firsts = [one for one in self.runs if one.run.seed not in self.repeated]
        return Correlation.of([one.blocks[1].entropy for one in firsts], [one.last for one in firsts])

    @cached_property
    def entropies(self) -> list[Correlation | None]:
        """Of every block, in order."""
        return [self.correlation(one.blocks[i].entropy for one in self.runs) for i in range(len(self.runs[0].blocks))]

    @cached_property
    def loss(self) -> Correlation | None:
        return self.correlation(one.loss for one in self.runs)

    def collapsed(self, block: int) -> tuple[Spread | None, Spread | None]:
        """Last accuracies of the runs whose block has collapsed by the rule, and of the others."""
        sides = ([one.last for one in self.runs if one.blocks[block].collapsed == side] for side in (True, False))
        first, second = (Spread.of(side) if side else None for side in sides)
        return first, second

    def always(self, block: int) -> int:
        """In how many runs the block counts as collapsed after every single epoch."""
        return sum(one.collapsed_epochs(block) == len(one.epochs) for one in self.runs)

    def lost(self, block: int, which: str) -> Spread:
        """Points of accuracy when this input comes from another image."""
        return Spread.of([one.blocks[block].swapped[which] for one in self.runs])

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(one.run.seed), f"{one.last:.2f}", f"{one.run.accuracy.best:.2f}", f"{one.loss:.4f}",
                *(f"{block.entropy:.3f}" for block in one.blocks), *(f"{block.top:.2f}" for block in one.blocks),
                *("yes" if block.collapsed else "no" for block in one.blocks),
                *(minus(block.swapped[which]) for block in one.blocks for which in ("fine", "coarse")),
            )
            for one in self.runs
        ]  # fmt: skip

    heads = (
        "seed", "last", "best", "training loss", "entropy 1", "entropy 2", "top 1", "top 2", "collapsed 1",
        "collapsed 2", "fine 1", "coarse 1", "fine 2", "coarse 2",
    )  # fmt: skip

    @property
    def points(self) -> dict[str, list[tuple[float, float]]]:
        """For the chart: entropy of the second block and last accuracy, T first."""
        by_name = {"MSPCaps-T": self.runs} | {VARIANTS[model]: runs for model, runs in self.others.items()}
        return {name: [(run.blocks[1].entropy, run.last) for run in runs] for name, runs in by_name.items()}


def study_collapse(groups: Mapping[str, Group]) -> Study | None:
    """`groups` are the runs on CIFAR-10 by the paper's recipe; None if no run of T recorded its health."""
    runs = measured_runs(groups.get(T))
    if not runs:
        return None
    others = {model: measured for model in VARIANTS if (measured := measured_runs(groups.get(model)))}
    return Study(runs, others, sorted(one.run.seed for one in runs if one.run not in groups[T].runs))
