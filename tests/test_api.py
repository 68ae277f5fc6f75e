"""The Python interface as people use it: what they will try works, or gets one sentence."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import mspcaps
from mspcaps.cli.training import choose_recipe
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, load_model, save_weights
from mspcaps.training import Epoch, Recipe, Result

SAMPLE = mspcaps.load_dataset("fashionmnist_sample", "test", img_size=32).subset(slice(0, 64))


def shipped() -> torch.nn.Module:
    return mspcaps.create_model("mspcaps_t", pretrained="fashionmnist")


@pytest.mark.parametrize("name", ["mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_dr", "mspcaps_t_self", "resnet20"])
def test_half_precision_answers_nearly_as_fp32(name: str) -> None:
    torch.manual_seed(0)
    model, x = mspcaps.create_model(name).eval(), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(model.bfloat16()(x.bfloat16()).float(), model.float()(x), atol=0.05)


def test_half_precision_costs_little() -> None:
    fp32, half = (mspcaps.evaluate(model, SAMPLE) for model in (shipped(), shipped().bfloat16()))
    assert abs(fp32.accuracy - half.accuracy) < 5 and (fp32.scores - half.scores).abs().max() < 0.1


@pytest.mark.parametrize(
    ("x", "value"),
    [
        (torch.rand(2, 1, 32, 32), "2 x 1 x 32 x 32"),
        (torch.rand(3, 32, 32), "3 x 32 x 32"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "uint8"),
        (np.zeros((2, 3, 32, 32), np.float32), "ndarray"),
    ],
)
@pytest.mark.parametrize("name", mspcaps.list_models())
def test_images_that_the_model_was_not_made_for(name: str, x: torch.Tensor, value: str) -> None:
    with torch.device("meta"):  # nothing is computed
        model = mspcaps.create_model(name)
    for mode in (True, False):
        with pytest.raises(MspcapsError, match=value):
            model.train(mode)(x)


@pytest.mark.parametrize("name", mspcaps.list_models("mspcaps*"))
def test_images_of_a_size_that_the_model_was_not_made_for(name: str) -> None:
    with torch.device("meta"):
        model = mspcaps.create_model(name)
    with pytest.raises(MspcapsError, match="2 x 3 x 64 x 16"):
        model(torch.rand(2, 3, 64, 16))


def test_what_was_compiled_or_wrapped_is_the_model(tmp_path: Path) -> None:
    for wrapped in (torch.compile(shipped()), torch.nn.DataParallel(shipped())):
        mspcaps.save_pretrained(wrapped, tmp_path)
        assert torch.equal(
            mspcaps.from_pretrained(tmp_path)(SAMPLE.images[:2] / 255), shipped()(SAMPLE.images[:2] / 255)
        )
        assert mspcaps.explain(wrapped, SAMPLE.images[:1] / 255).classes == SAMPLE.classes


def test_weights_begin_another_task() -> None:
    old, new = shipped(), mspcaps.create_model("mspcaps_t", pretrained="fashionmnist", num_classes=3, in_chans=3)
    assert new.config["num_classes"] == 3 and new.config["mean"] == (0.5, 0.5, 0.5)
    assert torch.equal(new.backbone.blocks[1].first.conv.weight, old.backbone.blocks[1].first.conv.weight)
    assert new(torch.rand(1, 3, 32, 32)).shape == (1, 3)
    larger = mspcaps.create_model("mspcaps_t", pretrained="fashionmnist", img_size=64)
    assert larger.metadata["classes"] == list(SAMPLE.classes)
    assert (old.training, new.training, larger.training) == (False, True, True)
    assert mspcaps.create_model("mspcaps_t", pretrained=False).config["in_chans"] == 3


@pytest.mark.parametrize(
    ("task", "value"),
    [
        ({"num_classes": "10"}, "'10'"),
        ({"img_size": "32"}, "'32'"),
        ({"img_size": 32.5}, "32.5"),
        ({"mean": 0.5}, "mean"),
        ({"std": [1.0, float("nan"), 1.0]}, "std"),
        ({"num_class": 5}, "num_class.*num_classes"),
    ],
)
def test_sizes_of_the_wrong_kind(task: dict, value: str) -> None:
    for pretrained in (False, "cifar10"):
        with pytest.raises(MspcapsError, match=value):
            mspcaps.create_model("mspcaps_t", pretrained=pretrained, **task)


def test_numbers_of_numpy_are_numbers() -> None:
    trained, sizes = shipped(), {"img_size": np.int64(32), "num_classes": np.int64(10)}
    mean, std = (np.array(trained.config[key]) for key in ("mean", "std"))
    same = mspcaps.create_model("mspcaps_t", pretrained="fashionmnist", mean=mean, std=std, **sizes)
    assert same.config == trained.config and same.metadata == trained.metadata
    other = mspcaps.create_model("mspcaps_t", pretrained="fashionmnist", mean=mean + 0.1)
    assert other.config["mean"] == pytest.approx(mean + 0.1) and not other.metadata.get("recipe")
    assert mspcaps.load_dataset("fashionmnist_sample", "test", np.int64(16)).size == (16, 16)
    for size in (32.5, "32", (32, 0), (1, 2, 3)):
        with pytest.raises(MspcapsError, match=re.escape(repr(size))):
            mspcaps.load_dataset("fashionmnist_sample", "test", size)


def test_fields_of_a_recipe_are_changed_by_replace() -> None:
    with pytest.raises(MspcapsError, match="no 'epoch': did you mean 'epochs'"):
        mspcaps.load_recipe("quickstart").replace(epoch=1)
    with pytest.raises(TypeError, match="epochs"):
        mspcaps.train("quickstart", epochs=1)


def test_the_name_or_file_of_weights_stands_for_the_model(tmp_path: Path) -> None:
    name = "mspcaps_t.fashionmnist"
    assert mspcaps.evaluate(name, SAMPLE).accuracy == mspcaps.evaluate(shipped(), SAMPLE).accuracy
    assert mspcaps.explain(name, SAMPLE.images[:1] / 255).classes == SAMPLE.classes
    Image.fromarray(SAMPLE.images[0, 0].numpy()).save(tmp_path / "x.png")
    file = mspcaps.save_pretrained(shipped(), tmp_path / "model") / "model.safetensors"
    assert mspcaps.predict(file, tmp_path / "x.png") == mspcaps.predict(shipped(), tmp_path / "x.png")
    for ask in (mspcaps.predict, mspcaps.evaluate, mspcaps.explain):
        with pytest.raises(MspcapsError, match=r"mspcaps_t\.fashionmnist"):
            ask("mspcaps_t.fashionmnis", SAMPLE)
        with pytest.raises(MspcapsError, match="None"):
            ask(None, SAMPLE)


def test_a_module_that_does_not_know_its_sizes() -> None:
    for ask in (lambda model: mspcaps.evaluate(model, "fashionmnist_sample"), lambda model: mspcaps.predict(model, [])):
        with pytest.raises(MspcapsError, match="Flatten"):
            ask(torch.nn.Flatten())


def test_what_a_model_is_about(tmp_path: Path) -> None:
    model = mspcaps.create_model("mspcaps_t", in_chans=1)
    model.metadata = {"classes": ["a", "b"]}
    for use in (
        lambda: mspcaps.predict(model, []),
        lambda: mspcaps.evaluate(model, SAMPLE),
        lambda: mspcaps.save_pretrained(model, tmp_path),
    ):
        with pytest.raises(MspcapsError, match=r"2.*10"):
            use()
    model.metadata = {"model": "mine"}
    with pytest.raises(MspcapsError, match="'model'"):
        mspcaps.save_pretrained(model, tmp_path)
    model.metadata = {"weights": SAMPLE.labels}
    with pytest.raises(MspcapsError, match="Tensor"):
        mspcaps.save_pretrained(model, tmp_path)
    model.metadata = {"path": "here", "tensors": 3}
    assert mspcaps.from_pretrained(mspcaps.save_pretrained(model, tmp_path)).metadata == model.metadata


@pytest.mark.slow
def test_a_new_model_has_no_metadata_yet() -> None:
    with torch.device("meta"):
        models = [mspcaps.create_model(name) for name in mspcaps.list_models()]
    assert all(isinstance(model, Model) and model.metadata == {} for model in models)


def test_images_go_into_a_loader() -> None:
    assert [len(images) for images, _ in DataLoader(SAMPLE.subset(slice(0, 6)), batch_size=4)] == [4, 2]


def test_a_set_of_images_shows_itself_in_one_line_and_wants_tensors() -> None:
    assert repr(SAMPLE) == "ImageSet(fashionmnist_sample: 64 images of 1 x 32 x 32, 10 classes)"
    for images, labels in ((SAMPLE.images.numpy(), SAMPLE.labels), (SAMPLE.images, SAMPLE.labels.numpy())):
        with pytest.raises(MspcapsError, match=r"mine.*ndarray"):
            ImageSet(images, labels, SAMPLE.classes, "mine")


def test_what_comes_back_shows_itself_without_its_tensors(tmp_path: Path) -> None:
    model = shipped()
    found, evaluation = mspcaps.explain(model, SAMPLE.images[:4] / 255), mspcaps.evaluate(model, SAMPLE)
    assert repr(found).startswith("Explanation(4 images of 1 x 32 x 32, 10 classes") and "tensor" not in repr(found)
    assert f"{evaluation.accuracy:.2f} % of 64 images right" in repr(evaluation) and "tensor" not in repr(evaluation)
    entry = Epoch(epoch=3, lr=0.1, loss=0.2, accuracy=90.0)
    assert repr(Result(Recipe(), model, [entry], None, tmp_path)) == f"Result({tmp_path}: {entry})"
    cross_agreement = "CrossAgreementRouting(fine=(4, 4), d1=16, coarse=(2, 2), d2=16, n_out=10, d_out=32, shared=True)"
    assert cross_agreement in repr(model)
    assert "DynamicRouting(n_in=42, d_in=8, n_out=10, d_out=16, iterations=3)" in repr(
        mspcaps.create_model("mspcaps_t_dr")
    )


@pytest.mark.slow
def test_evaluate_takes_names_and_refuses_the_rest() -> None:
    model = shipped()
    assert mspcaps.evaluate(model, "fashionmnist_sample").n == 1000
    for data in (SAMPLE.images, (SAMPLE.images, SAMPLE.labels[1:])):
        with pytest.raises(MspcapsError, match=r"Tensor|\(63,\)"):
            mspcaps.evaluate(model, data)
    with pytest.raises(MspcapsError, match="gpu"):
        mspcaps.evaluate(model, SAMPLE, device="gpu")
    for images in (SAMPLE.images[:3], [SAMPLE.images[0]] * 3):
        assert len(mspcaps.predict(model, images)) == 3
    with pytest.raises(MspcapsError, match=r"\(2, 2\)|2 x 2|float64|ndarray"):
        mspcaps.predict(model, np.full((2, 2, 2, 2, 2), 300.0))
    images, labels = next(iter(DataLoader(SAMPLE, batch_size=4)))
    assert torch.equal(images, SAMPLE.images[:4]) and torch.equal(labels, SAMPLE.labels[:4])


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"epochs": 1.5}, "epochs.*1.5"),
        ({"epochs": "3"}, "epochs.*'3'"),
        ({"lr": "1e-3"}, "lr.*1e-3"),
        ({"img_size": (32, 48)}, "img_size"),
        ({"augment": {"crops": 2}}, "crops.*crop"),
        ({"warmup_start": 5.0}, "warmup_start.*5"),
    ],
)
def test_a_recipe_of_the_wrong_kind(fields: dict, value: str) -> None:
    with pytest.raises(MspcapsError, match=value):
        Recipe(**fields)


def test_a_recipe_takes_paths_and_tables(tmp_path: Path) -> None:
    recipe = Recipe(data=tmp_path / "x.npz", augment={"crop": 2})  # type: ignore[arg-type]
    assert recipe.data == str(tmp_path / "x.npz") and recipe.augment is not None and recipe.augment.crop == 2


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ({"classes": ["a"]}, "1.*2"),
        ({"classes": [1, 2]}, "classes|names"),
        ({"recipe": "x"}, "recipe|table"),
    ],
)
def test_headers_put_together_by_hand(header: dict, value: str, tmp_path: Path) -> None:
    model = mspcaps.create_model("mspcaps_t", num_classes=2)
    save_weights(tmp_path / "w.safetensors", model, **header)
    with pytest.raises(MspcapsError, match=value):
        load_model(tmp_path / "w.safetensors")


def test_a_model_that_nobody_registered_here(tmp_path: Path) -> None:
    model = mspcaps.create_model("mspcaps_t")
    model.config["name"] = "mspcaps_t_mine"
    save_weights(tmp_path / "w.safetensors", model)
    with pytest.raises(MspcapsError, match="mspcaps_t_mine"):
        load_model(tmp_path / "w.safetensors")


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    about = {"classes": ["ü", "b"], "recipe": {"a": 1}, "more": "x"}
    model = mspcaps.create_model("mspcaps_t", num_classes=2)
    contents = set()
    for i in range(8):
        save_weights(tmp_path / f"{i}.safetensors", model, **about)
        contents.add((tmp_path / f"{i}.safetensors").read_bytes())
    assert len(contents) == 1
    loaded = load_model(tmp_path / "0.safetensors")
    assert loaded.metadata == about
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mspcaps.create_model(["mspcaps_t"]), "mspcaps_t"),  # type: ignore[arg-type]
        (lambda: mspcaps.create_model("mspcaps_t", num_classes=10**20), "100000000000000000000"),
        (lambda: mspcaps.create_model("mspcaps_t", std=(1, 1, -1)), "-1"),
        (lambda: mspcaps.create_model("mspcaps_t", std=[0, 0, 0]), r"std is \(0.0, 0.0, 0.0\)"),
        (lambda: mspcaps.create_model("mspcaps_t", 12), "12"),  # type: ignore[arg-type]
        (lambda: mspcaps.load_dataset("fashionmnist_sample", img_size=10**20), "100000000000000000000"),
        (lambda: mspcaps.load_model("."), "folder"),
        (lambda: mspcaps.from_pretrained("mspcaps_t.cifar10"), "load_model"),
        (lambda: mspcaps.create_model("mspcaps_t_mean", pretrained="cifar10"), r"mspcaps_t_mean"),
        (lambda: mspcaps.explain(shipped(), SAMPLE.images[:2] / 255).tree(2), "2"),
        (lambda: mspcaps.save_pretrained(None, "nowhere"), "None"),  # type: ignore[arg-type]
        (lambda: mspcaps.train("quickstart", device="cpu", engine="fast"), "fast.*eager"),
    ],
)
def test_values_that_cannot_be(call: Callable[[], object], message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MspcapsError, match=message):
        call()


def test_scores_that_are_no_numbers_are_no_answer() -> None:
    model = mspcaps.create_model("mspcaps_t_scale16", num_classes=2, in_chans=1, img_size=16).eval()
    images = ImageSet(torch.zeros(2, 1, 16, 16, dtype=torch.uint8), torch.tensor([0, 1]), ("0", "1"), "black")
    assert mspcaps.evaluate(model, images).n == 2
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(-1)
    with pytest.raises(MspcapsError, match="finite"):
        mspcaps.evaluate(model, images)


@pytest.mark.parametrize(("images", "batch_size"), [(5, 2), (40, 8)])
def test_python_trains_pictures_by_the_recipe_of_the_command_line(images: int, batch_size: int, tmp_path: Path) -> None:
    for name in "ab":
        for number in range(images):
            path = tmp_path / "pictures" / "train" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(path)
    recipe = mspcaps.recipe_for(tmp_path / "pictures", epochs=7)
    assert recipe.batch_size == batch_size and recipe.epochs == 7 and recipe.lr == mspcaps.load_recipe("pictures").lr
    assert recipe == choose_recipe(None, {"data": str(tmp_path / "pictures"), "epochs": 7})
    assert mspcaps.recipe_for(tmp_path / "pictures", batch_size=3).batch_size == 3
