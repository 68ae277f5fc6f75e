"""Recipes: every file is valid, bad ones are refused with a sentence."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mspcaps.data import CATALOG, Augmentation, facts
from mspcaps.errors import MspcapsError
from mspcaps.models import list_models
from mspcaps.training.device import choose_device, choose_engine, working_precision
from mspcaps.training.ledger import device_name
from mspcaps.training.recipe import Adversary, Recipe, list_recipes, load_recipe, recipe_folder, stored_recipe
from mspcaps.training.sweep import load_sweep


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("paper/")])
def test_paper_recipes_are_the_papers(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.model in list_models() and recipe.data in CATALOG
    assert name == f"paper/{recipe.data}/{recipe.model}"
    assert recipe.augment == facts(recipe.data).augment
    assert (
        recipe
        == Recipe(name="paper", model=recipe.model, data=recipe.data, img_size=32, augment=recipe.augment).resolve()
    )


def test_every_row_of_the_papers_tables_has_a_recipe() -> None:
    names = [name for name in list_recipes() if name.startswith("paper/") and "/mspcaps_" in name]
    controls = {Path(name).name for name in list_recipes() if name.startswith("controls/")}
    variants = set(list_models("mspcaps_*")) - controls
    assert len(names) == 20 and {f"paper/cifar10/{variant}" for variant in variants} <= set(names)


def test_one_protocol_for_all_families() -> None:
    for name in (name for name in list_recipes() if name.startswith("paper/cifar10/")):
        assert replace(load_recipe(name), model="mspcaps_t") == load_recipe("paper/cifar10/mspcaps_t"), name


def test_replace_names_the_change() -> None:
    recipe = load_recipe("paper/cifar10/mspcaps_t")
    assert recipe.replace(seed=3).run_name == "paper-seed3"
    assert recipe.replace(epochs=3).run_name == "paper+epochs=3-seed0"
    assert recipe.replace(epochs=300).name == "paper"
    assert recipe.replace(epochs=90).replace(lr=1e-3, epochs=60).name == "paper+epochs=60+lr=0.001", "each field once"
    assert recipe.replace(balance=True, init="mspcaps_t.svhn").name == "paper+balance=True+init=mspcaps_t.svhn"
    assert recipe.replace(data="svhn", model="mspcaps_l").name == "paper+data=svhn+model=mspcaps_l"
    assert recipe.replace(name="mine", epochs=3).name == "mine"
    one, other = (recipe.replace(init=f"runs/{run}/last.safetensors").name for run in "ab")
    assert re.fullmatch(r"paper\+init=last-[0-9a-f]{6}", one) and one != other, "valid in a path, and distinct"
    with pytest.raises(MspcapsError, match="did you mean 'epochs'"):
        recipe.replace(epoch=3)


def test_options_of_the_family_are_part_of_the_name() -> None:
    recipe = load_recipe("paper/cifar10/mspcaps_t").replace(options={"iterations": 5})
    assert recipe.name == "paper+iterations=5" and recipe.to_dict()["options"] == {"iterations": 5}
    assert recipe.replace(options={"iterations": 3, "decoder": True}).name == "paper+decoder=True+iterations=3"
    assert recipe.replace(options={}).name == "paper+iterations=default"
    assert Recipe(options={"iterations": 5}, lr=1.0).name == "custom+iterations=5+lr=1.0"


def test_a_whole_number_is_the_number_with_a_point() -> None:
    """TOML writes lr = 1, the command line reads 1.0: the run is the same."""
    whole = Recipe(lr=1, augment=Augmentation(rotate=15))
    assert whole == Recipe(lr=1.0, augment=Augmentation(rotate=15.0))
    assert whole.name == "custom+augment=crop0,flipFalse,rotate15.0+lr=1.0"
    table: Any = {"eps": 4}
    assert Recipe(adversary=table, validation=9) == Recipe(adversary=Adversary(eps=4.0), validation=9)


def test_a_recipe_made_by_hand_is_never_called_paper() -> None:
    assert Recipe(data="cifar10", lr=1.0, epochs=3).run_name == "custom+epochs=3+lr=1.0-seed0"
    assert Recipe().name == Recipe(data="svhn", model="mspcaps_l", seed=3).name == "custom"
    assert Recipe(epochs=30).replace(epochs=300, lr=0.1, data="svhn").name == "custom+lr=0.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "'epoch'.*'epochs'"),
        ('epochs = "3"', "epochs must be int, not '3'"),
        ("balance = 1", "balance must be bool, not 1"),
        ("init = true", "init must be str, not True"),
        ("epochs = true", "epochs must be int, not True"),
        ("epochs = 0", "epochs is 0, but must be at least 1"),
        ("lr = nan", "lr is nan"),
        ("epochs = = 3", "not a valid TOML file"),
        ("augment = 3", "augment must be a table"),
        ("options = 3", "options must be a table"),
        ("lr_steps = 3", "lr_steps must be a list of whole numbers, not 3"),
        ('optimizer = "sdg"', "there is no optimizer 'sdg': did you mean 'sgd'"),
        ('schedule = "linear"', "there is no schedule 'linear': choose cosine, exponential, steps or constant"),
        ('precision = "fp8"', "there is no precision 'fp8'"),
        ("nesterov = true", "nesterov"),
        ('schedule = "steps"', "lr_steps is \\[\\].* steps"),
        ("lr_steps = [3]", "lr_steps is \\[3\\].* cosine"),
        ('schedule = "steps"\nlr_steps = [9, 3]', "lr_steps is \\[9, 3\\].* 1 and 299"),
        ('schedule = "steps"\nlr_steps = [300]', "lr_steps is \\[300\\]"),
        ("clip_grad = -1.0", "clip_grad is -1.0"),
        ("momentum = 1.5", "momentum is 1.5, but must be .* 1"),
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
    assert {f"paper/{r.data}/{r.model}" for r in runs} == {
        n for n in list_recipes() if n.startswith("paper/") and "/mspcaps_" in n
    }
    assert len({(r.data, r.model, r.seed) for r in runs}) == len(runs) == 50


def test_the_controls_follow_the_papers_recipe() -> None:
    runs = load_sweep(recipe_folder() / "sweeps" / "controls.toml")
    heads = {"mspcaps_t_self", "mspcaps_t_mean", "mspcaps_t_linear", "mspcaps_t_linear_margin"}
    assert {r.model for r in runs} == heads and len(runs) == 12
    paper = load_recipe("paper/cifar10/mspcaps_t")
    controls = [load_recipe(name) for name in list_recipes() if name.startswith("controls/cifar10/")]
    fusions = {"mspcaps_t_add", "mspcaps_t_concat"}
    assert {r.model for r in controls} == {*heads, *fusions, "resnet20", "resnet18", "mspcaps_t"}
    alike = [*runs, *(r for r in controls if r.model != "mspcaps_t")]
    assert all(replace(r, model=paper.model, seed=0) == paper for r in alike)


def test_the_baselines_follow_the_papers_recipe() -> None:
    """Except for the epochs of the slow ones, which are part of their names."""
    runs = load_sweep(recipe_folder() / "sweeps" / "baselines.toml")
    names = {name for name in list_recipes() if name.startswith("paper/") and "/mspcaps_" not in name}
    resnets = {f"controls/cifar10/{name}" for name in ("resnet18", "resnet20")}
    assert {f"paper/{r.data}/{r.model}" for r in runs if "resnet" not in r.model} == names
    assert len({(r.data, r.model, r.seed) for r in runs}) == len(runs)
    for name in names | resnets:
        recipe = load_recipe(name)
        mspcaps = load_recipe(f"paper/{recipe.data}/mspcaps_t")
        mine = [r for r in runs if (r.data, r.model) == (recipe.data, recipe.model)]
        assert mine and replace(recipe, model="mspcaps_t") == mspcaps
        for r in mine:
            assert r == recipe.replace(seed=r.seed, epochs=r.epochs) and (r.epochs == 300) == (r.name == "paper")


def test_claims_without_a_table_have_ledger_paths_of_their_own() -> None:
    """Options are part of the name, so that no run is taken for one of the paper's."""
    paper, runs = load_recipe("paper/cifar10/mspcaps_t"), load_sweep(recipe_folder() / "sweeps" / "claims.toml")
    assert len({(r.model, r.run_name) for r in runs}) == len(runs) == 12
    for option in ({"position": False}, {"decoder": True}):
        mine = [r for r in runs if r.options == option]
        assert mine == [paper.replace(options=option, seed=seed) for seed in range(3)]
    fused = [r for r in runs if not r.options]
    assert {r.model for r in fused} == {"mspcaps_t_add", "mspcaps_t_concat"} and {r.name for r in fused} == {"paper"}


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
        ("", r"sweep\.toml .*\[\[runs\]\]"),
        ("epochs = 3", r"sweep\.toml .*\[\[runs\]\]"),
        (f"{SOUND}epochs = = 3", r"sweep\.toml is not a valid TOML file: .*line 3"),
        (f"{SOUND}[[runs]]\nseeds = [1]", r"^run 2 of .*sweep\.toml: it names no recipe: add one, such as recipe = "),
        ("runs = [1]", "run 1 of .* names no recipe"),
        ('[[runs]]\nrecipe = "paper/mnist/mspcaps_tt"', "run 1 of .* did you mean 'paper/mnist/mspcaps_t'"),
        (f"{SOUND}epohcs = 1", "run 1 of .* has no 'epohcs': did you mean 'epochs'"),
        (f'{SOUND}model = "mspcaps_tt"', "run 1 of .* no model 'mspcaps_tt': did you mean 'mspcaps_t'"),
        (f"{SOUND}seeds = 3", "run 1 of .*: seeds .*, not 3"),
        (f"{SOUND}seeds = []", "seeds .*, not \\[\\]"),
        (f"{SOUND}seeds = [true]", "seeds .*, not \\[True\\]"),
        (f"{SOUND}seeds = [0, -1]", "run 1 of .*: seed is -1"),
        (f'{SOUND}seed = "x"', "run 1 of .*: seed must be int, not 'x'"),
        (f"{SOUND}seed = 1\nseeds = [3]", "both seed and seeds"),
        (f'{SOUND}{SOUND}epochs = "3"', "run 2 of .*: epochs must be int, not '3'"),
        (f"{SOUND}epochs = 0", "run 1 of .*: epochs is 0"),
        (f"{SOUND}augment = {{ crop = -1 }}", "augment.crop is -1"),
    ],
)
def test_bad_sweep_files_are_refused_by_run(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(MspcapsError, match=message):
        load_sweep(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": 0}, "img_size is 0, .* 1 and 2048"),
        ({"img_size": 100_000_000}, "img_size is 100000000, .* 1 and 2048"),
        ({"seed": 2**63}, "9223372036854775808, .* 2\\^63"),
        *(({"name": f"my{mark}run"}, "run' is not a valid folder name") for mark in '/\\:*?"<>|\0'),
        ({"name": "n" * 240}, "'nnnnnnnnnnnn...nnnnnnnnnnnnn' is too long"),
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


def test_a_recipe_without_a_name_is_not_called_paper(tmp_path: Path) -> None:
    """A recipe from a file has the file's name, one made in Python is called custom."""
    (tmp_path / "my.toml").write_text('data = "cifar10"\nepochs = 30\n')
    assert load_recipe(tmp_path / "my.toml").run_name == "my-seed0"
    (tmp_path / "my.toml").write_text('name = "mine"\n')
    assert load_recipe(tmp_path / "my.toml").name == "mine"
    assert Recipe(data="pictures").name == "custom"
    assert all("\\" not in name for name in list_recipes())


def test_names_stay_short_and_tell_custom_data_from_published() -> None:
    changes = {"epochs": 7, "batch_size": 64, "lr": 0.0123456789, "weight_decay": 0.0987654321, "min_lr": 1e-7}
    longer = changes | {"warmup_epochs": 3, "warmup_start": 0.3, "init": "folder/of/weights/last.safetensors"}
    names = {Recipe().replace(**longer, held_out=n).run_name for n in (1000, 2000)}
    assert len(names) == 2 and max(map(len, names)) < 120
    assert Recipe(data="pictures/cifar10").dataset == "own-cifar10"
    assert [Recipe(data=f"a/pics.v{i}").dataset for i in (1, 2)] == ["pics.v1", "pics.v2"]
    assert Recipe(data="a/pics.npz").dataset == "pics"


def test_a_name_that_was_cut_is_the_same_for_every_seed() -> None:
    many = {"epochs": 90, "lr": 0.00123, "weight_decay": 0.0123, "batch_size": 96, "warmup_epochs": 7, "min_lr": 1e-7}
    cut = load_recipe("paper/cifar10/mspcaps_t").replace(**many, augment=Augmentation(crop=3), label_smoothing=0.05)
    assert "weight_decay" not in cut.name and cut.replace(seed=3).name == cut.name


def test_a_link_to_a_folder_keeps_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos-2024").mkdir()
    (tmp_path / "pictures").symlink_to("photos-2024")
    monkeypatch.chdir(tmp_path)
    assert Recipe(data="pictures").dataset == "pictures"
    assert Recipe(data=".").dataset == tmp_path.name


@pytest.mark.parametrize("name", ["meta", "gpu"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(MspcapsError, match=f"there is no device '{name}': use cpu, cuda or mps"):
        choose_device(name)


def test_apple_gpus_are_used_if_pytorch_supports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for built, why in ((True, "finds no Apple GPU"), (False, "build without")):
        monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
        monkeypatch.setattr("torch.backends.mps.is_built", lambda built=built: built)
        with pytest.raises(MspcapsError, match=f"'mps', since this PyTorch .*{why}"):
            choose_device("mps")
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    device = choose_device("mps")
    assert device.type == "mps" and choose_engine(None, device, 1, 10**9) == "eager"
    assert working_precision(device) is None and device_name(device).endswith("GPU")


def test_old_files_get_the_defaults_of_newer_fields_and_keep_retired_ones() -> None:
    recipe = Recipe(augment=Augmentation(crop=4), lr_steps=(3, 9), schedule="steps")
    written = json.loads(json.dumps(recipe.to_dict()))
    assert recipe.differences(written) == []
    del written["balance"], written["augment"]["rotate"], written["options"]
    assert recipe.differences(written | {"initial_scale": {}}) == []
    assert recipe.differences(written | {"initial_scale": {"votes": 2.0}}) == ["initial_scale"]
    assert stored_recipe(written | {"initial_scale": {"votes": 2.0}})["initial_scale"] == {"votes": 2.0}
    assert replace(recipe, augment=Augmentation(crop=4, rotate=5.0)).differences(written) == ["augment"]
    assert recipe.differences(written | {"augment": None}) == ["augment"]


def test_resolve_fills_in_what_the_data_set_says() -> None:
    assert Recipe(data="svhn").resolve().augment == facts("svhn").augment
    assert Recipe(data="svhn").resolve().img_size == 32 and Recipe(data="svhn", img_size=48).resolve().img_size == 48
    own = Recipe(data="pictures", warmup_epochs=5)
    assert own.resolve() == own, "nothing follows from images that are not read"
    assert Recipe(data="svhn").resolve().name == "custom", "resolving does not change the name"


def test_younger_fields_of_the_augmentation_are_named_only_when_they_are_on() -> None:
    recipe = load_recipe("paper/cifar10/mspcaps_t")
    changed = recipe.replace(augment={"crop": 2, "flip": True})
    assert changed.name == "paper+augment=crop2,flipTrue,rotate0.0", "as runs were called before there were others"
    more = recipe.replace(augment={"crop": 2, "flip": True, "alternate_flip": True, "cutout": 8, "mixup": 0.2})
    assert more.name == "paper+augment=crop2,flipTrue,rotate0.0,alternate_flipTrue,cutout8,mixup0.2"
    assert not changed.differences(changed.to_dict() | {"augment": {"crop": 2, "flip": True, "rotate": 0.0}})
