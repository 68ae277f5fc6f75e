"""Recipes: every file is valid, bad ones are refused with a sentence."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mspcaps.data import CATALOG, Augmentation, facts
from mspcaps.errors import MspcapsError
from mspcaps.models import list_models
from mspcaps.training.recipe import Recipe, differences, list_recipes, load_recipe, override, recipe_folder
from mspcaps.training.setup import choose_device
from mspcaps.training.sweep import load_sweep


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("paper/")])
def test_paper_recipes_are_the_papers(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.model in list_models() and recipe.data in CATALOG
    assert name == f"paper/{recipe.data}/{recipe.model}"
    assert recipe.augment == facts(recipe.data).augment
    assert recipe == Recipe(model=recipe.model, data=recipe.data, img_size=32, augment=recipe.augment)


def test_every_row_of_the_papers_tables_has_a_recipe() -> None:
    names = [name for name in list_recipes() if name.startswith("paper/")]
    controls = {Path(name).name for name in list_recipes() if name.startswith("controls/")}
    variants = set(list_models("mspcaps_*")) - controls
    assert len(names) == 20 and {f"paper/cifar10/{variant}" for variant in variants} <= set(names)


def test_override_names_the_change() -> None:
    recipe = load_recipe("paper/cifar10/mspcaps_t")
    assert override(recipe, seed=3).run_name == "paper-seed3"
    assert override(recipe, epochs=3).run_name == "paper+epochs=3-seed0"
    assert override(recipe, epochs=300).name == "paper"
    assert override(recipe, balance=True, init="mspcaps_t.svhn").name == "paper+balance=True+init=mspcaps_t.svhn"
    one, other = (override(recipe, init=f"runs/{run}/last.safetensors").name for run in "ab")
    assert re.fullmatch(r"paper\+init=last-[0-9a-f]{6}", one) and one != other, "fit for a path, and one run each"
    with pytest.raises(MspcapsError, match="did you mean 'epochs'"):
        override(recipe, epoch=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "has no 'epoch': did you mean 'epochs'"),
        ('epochs = "3"', "epochs must be int, not '3'"),
        ("balance = 1", "balance must be bool, not 1"),
        ("init = true", "init must be str, not True"),
        ("epochs = true", "epochs must be int, not True"),
        ("epochs = 0", "epochs is 0, but must be at least 1"),
        ("lr = nan", "lr is nan"),
        ("epochs = = 3", "not a valid TOML file"),
        ("augment = 3", "augment must be a table"),
        ("[augment]\ncropp = 4", "has no 'cropp': did you mean 'crop'"),
    ],
)
def test_bad_recipes_get_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(MspcapsError, match=message):
        load_recipe(path)


def test_the_papers_sweeps_hold_every_row_once() -> None:
    runs = [r for name in ("tables", "ablations") for r in load_sweep(recipe_folder() / "sweeps" / f"{name}.toml")]
    assert {f"paper/{r.data}/{r.model}" for r in runs} == {n for n in list_recipes() if n.startswith("paper/")}
    assert len({(r.data, r.model, r.seed) for r in runs}) == len(runs) == 50


def test_the_controls_follow_the_papers_recipe() -> None:
    runs = load_sweep(recipe_folder() / "sweeps" / "controls.toml")
    assert {r.model for r in runs} == {
        "mspcaps_t_self", "mspcaps_t_mean", "mspcaps_t_linear", "mspcaps_t_linear_margin",
    } and len(runs) == 12  # fmt: skip
    paper = load_recipe("paper/cifar10/mspcaps_t")
    assert all(replace(r, model=paper.model, seed=0) == paper for r in runs)


def test_trials_change_only_the_initial_scale_and_are_held_out() -> None:
    runs = load_sweep(recipe_folder() / "sweeps" / "trials.toml")
    assert len({(r.data, r.run_name) for r in runs}) == len(runs) == 36
    assert {(r.data, r.held_out, r.epochs) for r in runs} == {("cifar10", 5000, 100), ("mnist", 10000, 60)}
    scales = {tuple(r.initial_scale.items()) for r in runs}
    assert len(scales) == 7 and () in scales


def test_sweep_files(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('[[runs]]\nrecipe = "paper/mnist/mspcaps_t"\nseed = 4\naugment = { crop = 2 }\n')
    (once,) = load_sweep(path)
    assert (once.seed, once.augment) == (4, Augmentation(crop=2))
    path.write_text('[[runs]]\nrecipe = "paper/mnist/mspcaps_t"\nseeds = [0, 2]\nepochs = 5\n')
    assert [r.run_name for r in load_sweep(path)] == ["paper+epochs=5-seed0", "paper+epochs=5-seed2"]


SOUND = '[[runs]]\nrecipe = "paper/mnist/mspcaps_t"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"sweep\.toml must hold a list of \[\[runs\]\] and nothing else"),
        ("epochs = 3", r"must hold a list of \[\[runs\]\]"),
        (f"{SOUND}epochs = = 3", r"sweep\.toml is not a valid TOML file: .*line 3"),
        (f"{SOUND}[[runs]]\nseeds = [1]", r"^run 2 of .*sweep\.toml: it names no recipe: add one, such as recipe = "),
        ("runs = [1]", "run 1 of .* names no recipe"),
        ('[[runs]]\nrecipe = "paper/mnist/mspcaps_tt"', "run 1 of .* did you mean 'paper/mnist/mspcaps_t'"),
        (f"{SOUND}epohcs = 1", "run 1 of .* has no 'epohcs': did you mean 'epochs'"),
        (f'{SOUND}model = "mspcaps_tt"', "run 1 of .* no model 'mspcaps_tt': did you mean 'mspcaps_t'"),
        (f"{SOUND}seeds = 3", "run 1 of .* a list of whole numbers such as \\[0, 1, 2\\], not 3"),
        (f"{SOUND}seeds = []", "a list of whole numbers"),
        (f"{SOUND}seeds = [true]", "a list of whole numbers"),
        (f"{SOUND}seeds = [0, -1]", "run 1 of .*: seed is -1"),
        (f'{SOUND}seed = "x"', "run 1 of .*: seed must be int, not 'x'"),
        (f"{SOUND}seed = 1\nseeds = [3]", "both seed and seeds"),
        (f'{SOUND}{SOUND}epochs = "3"', "run 2 of .*: epochs must be int, not '3'"),
        (f"{SOUND}epochs = 0", "run 1 of .*: epochs is 0"),
        (f"{SOUND}augment = {{ crop = -1 }}", "augment.crop is -1"),
    ],
)
def test_sweep_files_that_are_wrong_are_refused_by_the_run(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(MspcapsError, match=message):
        load_sweep(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": 0}, "img_size is 0, but must lie between 1 and 2048"),
        ({"img_size": 100_000_000}, "img_size is 100000000, but must lie between 1 and 2048"),
        ({"seed": 2**63}, "must be less than 2\\^63"),
        *(
            ({"name": f"my{mark}run"}, "run' is not a valid folder name on every system: leave out")
            for mark in '/\\:*?"<>|\0'
        ),
        ({"name": "n" * 240}, "'nnnnnnnnnnnn...nnnnnnnnnnnnn' is too long for a folder: shorten it"),
        ({"lr": torch.zeros(1000)}, r"lr must be float, not tensor\(\[.{,40}$"),
    ],
)
def test_values_that_no_run_can_have(changes: dict, message: str) -> None:
    with pytest.raises(MspcapsError, match=message):
        Recipe(**changes)
    with pytest.raises(MspcapsError, match=r"augment\.rotate is nan"):
        Augmentation(rotate=float("nan"))
    with pytest.raises(MspcapsError, match=r"augment\.rotate is 181, but must be at most 180"):
        Augmentation(rotate=181)


def test_a_recipe_without_a_name_is_not_called_like_the_papers(tmp_path: Path) -> None:
    """A file's recipe is called like the file, one made in Python for own images custom."""
    (tmp_path / "my.toml").write_text('data = "cifar10"\nepochs = 30\n')
    assert load_recipe(tmp_path / "my.toml").run_name == "my-seed0"
    (tmp_path / "my.toml").write_text('name = "mine"\n')
    assert load_recipe(tmp_path / "my.toml").name == "mine"
    assert (Recipe(data="pictures").name, Recipe().name) == ("custom", "paper")
    assert all("\\" not in name for name in list_recipes())


def test_names_stay_short_and_say_whose_data_it_is() -> None:
    changes = {"epochs": 7, "batch_size": 64, "lr": 0.0123456789, "weight_decay": 0.0987654321, "min_lr": 1e-7}
    longer = changes | {"warmup_epochs": 3, "warmup_start": 0.3, "init": "folder/of/weights/last.safetensors"}
    names = {override(Recipe(), **longer, held_out=n).run_name for n in (1000, 2000)}
    assert len(names) == 2 and max(map(len, names)) < 120
    assert Recipe(data="pictures/cifar10").dataset == "own-cifar10"
    assert [Recipe(data=f"a/pics.v{i}").dataset for i in (1, 2)] == ["pics.v1", "pics.v2"]
    assert Recipe(data="a/pics.npz").dataset == "pics"


@pytest.mark.parametrize("name", ["mps", "meta", "gpu"])
def test_devices_that_are_not_known(name: str) -> None:
    with pytest.raises(MspcapsError, match=f"there is no device '{name}': use cpu or cuda"):
        choose_device(name)


def test_a_field_younger_than_a_file_had_its_default() -> None:
    recipe = Recipe(augment=Augmentation(crop=4))
    written = recipe.to_dict()
    del written["balance"], written["augment"]["rotate"]
    assert differences(recipe, written) == []
    assert differences(replace(recipe, augment=Augmentation(crop=4, rotate=5.0)), written) == ["augment"]
    assert differences(recipe, written | {"augment": None}) == ["augment"]
