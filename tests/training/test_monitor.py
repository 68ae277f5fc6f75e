"""What listeners show of a run."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mspcaps.progress import Progress
from mspcaps.training import Epoch, Recipe
from mspcaps.training.distributed import World
from mspcaps.training.monitor import ShowProgress, TensorBoard, each_epoch
from mspcaps.training.recipe import Adversary

ROWS = [Epoch(n, 0.5**n, 1 / n, 10.0 * n) for n in (1, 2, 3)]


def at(epoch: int, steps_done: int, loss_sum: float = 0.0, rows: int = 0, rank: int = 0) -> Any:
    """A run of three epochs of ten steps, in batches of 32, at this point."""
    return SimpleNamespace(
        recipe=Recipe(epochs=3, batch_size=32), loader=SimpleNamespace(steps=10), world=World(rank=rank),
        step=SimpleNamespace(loss_sum=torch.tensor(loss_sum)), epoch=epoch, steps_done=steps_done, history=ROWS[:rows],
        folder=Path("runs/it"), watched="test", finished=epoch == 3,
    )  # fmt: skip


def test_a_line_shows_epoch_loss_and_accuracy() -> None:
    file = io.StringIO()
    with Progress("images", every=0.0, file=file) as progress:
        for trainer in (at(0, 0), at(0, 8, 4.0), at(2, 0, rows=2), at(2, 5, 1.0, rows=2), at(3, 0, rows=3)):
            ShowProgress(progress)(trainer)
            ShowProgress(progress, named=True)(SimpleNamespace(**vars(trainer) | {"world": World(rank=1)}))  # type: ignore[arg-type]
    lines = [line.split("  ") for line in file.getvalue().splitlines()]
    assert [[line[0], *line[1:2]] for line in lines[1:]] == [
        ["epoch 2/3", " 67 %"],
        ["epoch 3/3", " 83 %"],
        ["epoch 3/3", "100 %"],
    ]
    assert lines[0][0] == "epoch 1/3" and lines[0][-1] == "loss 0.5000"
    assert lines[2][-2:] == ["loss 0.2000", "test accuracy 20.00 %"]
    assert lines[3][-2:] == ["loss 0.3333", "test accuracy 30.00 %"]


def test_a_line_shows_robust_accuracy() -> None:
    file, trainer = io.StringIO(), at(3, 0)
    trainer.watched, trainer.history = "validation", [Epoch(3, 0.1, 0.2, 70.0, validation=41.5)]
    with Progress("images", every=0.0, file=file) as progress:
        ShowProgress(progress)(trainer)
        trainer.recipe = trainer.recipe.replace(adversary=Adversary(), validation=9)
        ShowProgress(progress)(trainer)
    ends = [line.split("  ")[-1] for line in file.getvalue().splitlines()]
    assert ends == ["validation accuracy 70.00 %", "robust 41.50 %"]


def test_every_epoch_is_reported_once_but_none_from_before_a_resume() -> None:
    rows: list[Epoch] = []
    listener, other = each_epoch(rows.append), each_epoch(rows.append)
    for state in (at(1, 3, rows=1), at(1, 9, rows=1), at(2, 0, rows=2), at(2, 5, rows=2), at(3, 0, rows=3)):
        listener(state)
        other(SimpleNamespace(**vars(state) | {"world": World(rank=1)}))  # type: ignore[arg-type]
    assert rows == ROWS[1:]


def test_tensorboard_gets_one_row_per_epoch(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    board = TensorBoard(tmp_path)
    for epoch, steps_done in ((0, 5), (1, 0), (1, 5), (2, 0), (2, 5), (3, 0)):
        each_epoch(board.write)(at(epoch, steps_done, rows=epoch))
    board.close()
    (path,) = tmp_path.rglob("events*")
    events = [(event.step, value) for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    for name, expected in (("loss", [1, 1 / 2, 1 / 3]), ("lr", [0.5, 0.25, 0.125]), ("accuracy", [10, 20, 30])):
        written = [(step, value.tensor.float_val[0]) for step, value in events if value.tag == name]
        assert [step for step, _ in written] == [1, 2, 3]
        assert [value for _, value in written] == pytest.approx(expected)


def test_tensorboard_leaves_no_file_before_the_first_epoch(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    each_epoch(board.write)(at(0, 5))
    each_epoch(board.write)(at(1, 0, rows=1, rank=1))  # not the main process
    board.close()
    assert not list(tmp_path.rglob("*"))
