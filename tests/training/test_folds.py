"""Cross-validation and grids: the images of a fold, and the runs of a sweep."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_trainer import CPU, recipe_for

from mspcaps.cli import main
from mspcaps.data import FolderImages, ImageSet, load_dataset
from mspcaps.data.imageset import fold_numbers
from mspcaps.errors import MspcapsError
from mspcaps.report.runs import read_groups
from mspcaps.report.write import group_row
from mspcaps.training import Recipe, ledger
from mspcaps.training.images import load_images, measure_custom_images, split_fold
from mspcaps.training.recipe import list_recipes, load_recipe
from mspcaps.training.sweep import list_sweeps, load_sweep, run_sweep


@pytest.mark.slow
@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.integers(2, 6))
def test_folds_are_even_in_size_and_in_every_class(labels: list[int], folds: int) -> None:
    numbers = fold_numbers(torch.tensor(labels), folds).tolist()
    assert numbers == fold_numbers(torch.tensor(labels), folds).tolist() and {*numbers} <= {*range(1, folds + 1)}
    for chosen in ({*labels}, *({label} for label in labels)):
        counts = Counter(number for number, label in zip(numbers, labels, strict=True) if label in chosen)
        sizes = [counts[fold] for fold in range(1, folds + 1)]
        assert max(sizes) - min(sizes) <= 1


def test_every_training_image_is_measured_on_once(tiny_npz: Path) -> None:
    whole = load_dataset(tiny_npz, "train")
    pixels = sorted(tuple(image.flatten().tolist()) for image in whole.images)
    measured: list[tuple[int, ...]] = []
    for fold in (1, 2, 3, 4, 5):
        recipe = recipe_for(tiny_npz, folds=5, fold=fold)
        train, validation, test = load_images(recipe, CPU)
        assert isinstance(train, ImageSet) and isinstance(test, ImageSet) and validation is None
        assert measure_custom_images(recipe) == (len(train), (16, 16)) and len(train) == 96 - len(test)
        parts = [tuple(image.flatten().tolist()) for images in (train.images, test.images) for image in images]
        assert sorted(parts) == pixels
        measured += parts[len(train) :]
    assert sorted(measured) == pixels


def test_pictures_on_disk_are_split_in_the_same_way() -> None:
    labels = (0, 1) * 10
    paths = tuple(f"{i}.png" for i in range(20))
    streamed = FolderImages(paths, labels, ("a", "b"), "set", (1, 1), 1)
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    recipe = Recipe(data="set", folds=4, fold=3)
    for part, same in zip(
        split_fold(recipe, streamed),
        split_fold(recipe, ImageSet(images, torch.tensor(labels), ("a", "b"), "set")),
        strict=True,
    ):
        assert isinstance(part, FolderImages) and isinstance(same, ImageSet)
        assert part.paths == tuple(f"{i}.png" for i in same.images.flatten().tolist())
        assert list(part.labels) == same.labels.tolist()


def test_what_cannot_be_folded_is_refused(tiny_npz: Path, tmp_path: Path) -> None:
    for folds, fold in ((1, 1), (5, 0), (0, 2), (5, 6)):
        with pytest.raises(MspcapsError, match=f"fold is {fold} and folds is {folds}"):
            Recipe(folds=folds, fold=fold)
    with pytest.raises(MspcapsError, match="held_out is 9 and folds is 2"):
        Recipe(folds=2, fold=1, held_out=9)
    np.savez(tmp_path / "few.npz", images=np.zeros((24, 16, 16), np.uint8), labels=np.array([0] * 20 + [1] * 4))
    with pytest.raises(MspcapsError, match="folds is 5, but few has only 4 training images of 1"):
        load_images(recipe_for(tmp_path / "few.npz", folds=5, fold=1), CPU)


@pytest.mark.slow
def test_a_sweep_of_folds_and_a_grid(tiny_npz: Path, tmp_path: Path) -> None:
    """Two learning rates, two folds each: four runs, and two rows of the report with mean and deviation."""
    (tmp_path / "mine.toml").write_text(
        f'data = "{tiny_npz}"\nmodel = "mspcaps_t_scale16"\nepochs = 1\nbatch_size = 16\nimg_size = 16\n'
    )
    (tmp_path / "sweep.toml").write_text(
        '[[runs]]\nrecipe = "mine.toml"\nfolds = 2\ngrid = {lr = [1e-3, 5e-4], batch_size = [16]}\n'
    )
    recipes = load_sweep(tmp_path / "sweep.toml")
    names = [recipe.run_name for recipe in recipes]
    assert names == [f"mine+folds=2{lr}-fold{fold}-seed0" for lr in ("+lr=0.001", "") for fold in (1, 2)]
    outcomes = run_sweep(recipes, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    assert [outcome.state for outcome in outcomes] == ["done"] * 4
    runs = ledger.list_runs(tmp_path)
    assert {run.measured_on for run in runs} == {f"fold {fold} of 2 of the training images" for fold in (1, 2)}
    groups = read_groups(tmp_path)
    assert [(group.first.name, group.last.n) for group in groups] == [("mine+folds=2", 2), ("mine+folds=2+lr=0.001", 2)]
    for group in groups:
        values = [run.accuracy.last for run in runs if run.name == group.first.name]
        assert group.last.mean == pytest.approx(sum(values) / 2)
        assert group_row(group)["measured_on"] == "2 folds of the training images", "not the first fold alone"
    again = run_sweep(recipes, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    assert [outcome.state for outcome in again] == ["known"] * 4


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("grid = 3", "grid must be a table of lists"),
        ("grid = {lr = 0.1}", "grid must be a table of lists"),
        ("grid = {lr = []}", "grid must be a table of lists"),
        ("grid = {rate = [0.1]}", "'rate'"),
        ("lr = 0.1\ngrid = {lr = [0.2]}", "lr is both in the grid and beside it"),
        ("grid = {seed = [1, 2]}", "seed cannot be in a grid"),
        ('grid = {model = ["mspcaps_t", "mspcaps_z"]}', "mspcaps_z"),
        ("folds = 1", "folds must be a whole number of at least 2, not 1"),
        ('folds = "5"', "folds must be"),
    ],
)
def test_bad_grids_and_folds_are_refused(line: str, match: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'[[runs]]\nrecipe = "paper/cifar10/mspcaps_t"\n{line}\n')
    with pytest.raises(MspcapsError, match=f"run 1 of .*{match}"):
        load_sweep(tmp_path / "s.toml")


def test_one_fold_is_one_run(tmp_path: Path) -> None:
    run = 'recipe = "paper/cifar10/mspcaps_t"\nfolds = 5\nfold = 2\nseeds = [3, 4]'
    (tmp_path / "s.toml").write_text(f"[[runs]]\n{run}\n")
    assert [recipe.run_name for recipe in load_sweep(tmp_path / "s.toml")] == [
        f"paper+folds=5-fold2-seed{seed}" for seed in (3, 4)
    ]


def test_a_recipe_beside_the_sweep_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, epochs in (("here", 7), ("there", 8)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.toml").write_text(f"epochs = {epochs}\n")
    monkeypatch.chdir(tmp_path / "here")
    for place, epochs in (("there", 8), (".", 7)):
        path = tmp_path / place / "sweep.toml"
        path.write_text('[[runs]]\nrecipe = "mine.toml"\n')
        assert [recipe.epochs for recipe in load_sweep(path)] == [epochs], "else in the working directory"
    assert load_recipe("mine.toml").epochs == 7


def test_shipped_sweeps_have_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "baselines" in list_sweeps()
    for name in list_sweeps():
        assert load_sweep(name) and name not in list_recipes()
    assert main(["sweep", "baselnes", "--out", str(tmp_path), "--results", str(tmp_path)]) != 0
    assert "did you mean 'baselines'" in capsys.readouterr().err
