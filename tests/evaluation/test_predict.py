"""Pictures in, classes out; a broken file spoils no other. Data sets in the numbering of the model."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from mspcaps import create_model, load_dataset, load_model
from mspcaps.data import ImageSet
from mspcaps.data.pictures import read_picture
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import load_for, predict
from mspcaps.evaluation.load import renumber
from mspcaps.models import save_weights


@pytest.fixture(scope="module")
def sample() -> ImageSet:
    return load_dataset("fashionmnist_sample", "test", 16)


@pytest.fixture(scope="module")
def model(tmp_path_factory, sample):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    fresh = create_model("mspcaps_t_p2", in_chans=1, img_size=16)
    save_weights(path, fresh, classes=sample.classes, recipe={"data": "fashionmnist_sample"})
    return load_model(path)


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image[0].numpy()).save(path)


def test_a_single_picture_waits_for_no_estimate_of_memory(model, sample, monkeypatch):
    asked = []
    monkeypatch.setattr("mspcaps.evaluation.accuracy.limit_batch", lambda model, size: asked.append(size) or 1)
    assert len(predict(model, sample.images[0])) == 1 and not asked
    assert len(predict(model, sample.images[:2])) == 2 and asked == [64]


def test_files_and_folders(model, sample, tmp_path):
    write(tmp_path / "one.png", sample.images[0])
    write(tmp_path / "more" / "b.png", sample.images[1])
    write(tmp_path / "more" / "a" / "c.png", sample.images[2])
    (tmp_path / "more" / "notes.txt").write_text("not a picture")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (tmp_path / "empty").mkdir()
    names = ["one.png", "broken.png", "missing.png", "more", "empty"]
    found = predict(model, [tmp_path / name for name in names], top=2, batch_size=2)
    assert [p.path.relative_to(tmp_path).as_posix() for p in found] == [
        *("one.png", "broken.png", "missing.png", "more/a/c.png", "more/b.png", "empty")
    ]
    assert [p.error is None for p in found] == [True, False, False, True, True, False]
    for prediction, number in ((found[0], 0), (found[3], 2), (found[4], 1)):
        with torch.no_grad():
            scores = model(sample.images[number : number + 1].float() / 255)[0]
        best = scores.sort(descending=True)
        assert [name for name, _ in prediction.top] == [sample.classes[k] for k in best.indices[:2]]
        assert [score for _, score in prediction.top] == pytest.approx(best.values[:2].tolist(), abs=1e-5)
    assert "broken.png" in found[1].error
    assert "No such file" in found[2].error


def test_a_single_path_and_the_refusals(model, sample, tmp_path):
    write(tmp_path / "one.png", sample.images[0])
    assert len(predict(model, tmp_path / "one.png", top=99)[0].top) == 10
    with pytest.raises(MspcapsError, match="at least 1"):
        predict(model, [], top=0)
    with pytest.raises(MspcapsError, match="2"):
        predict(create_model("mspcaps_t", in_chans=2), tmp_path)


def test_a_picture_in_memory_is_read_as_its_file_is(model, tmp_path):
    noise = torch.randint(256, (40, 30, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    picture = Image.fromarray(noise.numpy())  # with transparency, in another size
    picture.save(tmp_path / "x.png")
    for channels in (1, 3):
        pixels = read_picture(picture, (16, 12), channels)
        assert (pixels == read_picture(tmp_path / "x.png", (16, 12), channels)).all() and pixels.shape[0] == channels
    assert picture.size == (30, 40) and picture.mode == "RGBA"
    photograph = io.BytesIO()
    picture.convert("RGB").resize((900, 1200)).save(photograph, "JPEG")
    opened = Image.open(photograph)
    read_picture(opened, (16, 16), 3)
    assert opened.size == (900, 1200), "it is the caller's"
    cut = Image.open(io.BytesIO(photograph.getvalue()[:2000]))
    with pytest.raises(MspcapsError):
        read_picture(cut, (16, 16), 3)
    assert predict(model, [picture])[0].top == predict(model, [tmp_path / "x.png"])[0].top
    assert predict(model, [cut, picture])[0].error is not None


def test_data_in_the_form_of_the_model(model, sample, tmp_path):
    data = load_for(model)
    assert data.size == (16, 16)
    assert data.name == "fashionmnist_sample"
    # two of the ten classes, colour pictures: labels follow the names, channels the model
    for name in ("coat", "bag"):
        for i in range(3):
            path = tmp_path / "own" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (i, 200, 0)).save(path)
    own = load_for(model, tmp_path / "own", "all")
    assert own.images.shape == (6, 1, 16, 16)
    assert sorted(own.classes[label] for label in own.labels) == ["bag"] * 3 + ["coat"] * 3
    with pytest.raises(MspcapsError, match="'hat'"):
        renumber(ImageSet(sample.images[:1], torch.zeros(1, dtype=torch.int64), ("hat",), "hats"), ["bag", "coat"])


def test_weights_without_a_recipe_need_a_data_set():
    with pytest.raises(MspcapsError):
        load_for(create_model("mspcaps_t"))


@pytest.fixture(scope="module")
def colour():
    torch.manual_seed(0)
    return create_model("mspcaps_t_p2", num_classes=4, img_size=(16, 20)).eval()


@pytest.mark.slow
def test_arrays_and_tensors_get_the_answers_of_files(colour, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 24, 30, 3), dtype=np.uint8)
    for i, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    expected = [one.top for one in predict(colour, tmp_path, batch_size=2)]
    first = torch.from_numpy(noise).movedim(-1, 1)
    forms = [
        noise, [*noise], first, [*first], noise.transpose(0, 3, 1, 2), [Image.fromarray(image) for image in noise],
        [tmp_path / "0.png", noise[1], first[2:4], Image.fromarray(noise[4])], iter(noise),
    ]  # fmt: skip
    for form in forms:
        found = predict(colour, form, batch_size=2)
        assert [one.top for one in found] == expected and all(one.error is None for one in found)
    assert [one.path for one in predict(colour, forms[6])] == [tmp_path / "0.png", None, None, None, None]
    for form in (noise / 255, (noise / 255).astype(np.float16), first / 255, (first / 255).bfloat16()):
        close = predict(colour, form)
        for ours, theirs in zip(close, expected, strict=True):
            assert dict(ours.top) == pytest.approx(dict(theirs), abs=2e-3)
    assert predict(colour, noise[0])[0].top == predict(colour, first[0])[0].top
    assert predict(colour, np.zeros((0, 16, 20, 3), np.uint8)) == []


def test_grey_and_colour_as_the_model_takes_them(model, colour, sample):
    """Grey is weighed as Pillow does, also of floats; transparent is white."""
    rng = np.random.default_rng(1)
    rgb, rgba = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8), rng.integers(0, 256, (16, 16, 4), dtype=np.uint8)
    for pixels in (rgb, rgba):
        expected = dict(predict(model, Image.fromarray(pixels))[0].top)
        assert dict(predict(model, pixels)[0].top) == expected
        assert dict(predict(model, pixels / 255)[0].top) == pytest.approx(expected, abs=5e-3)
    with torch.no_grad():
        own = model(sample.images[:9].float() / 255)
    for form in (
        sample.images[:9],
        sample.images[:9, 0],
        sample.images[:9, 0].numpy(),
        sample.images[:9].float() / 255,
    ):
        found = predict(model, form, top=1)
        assert [one.top[0][0] for one in found] == [sample.classes[k] for k in own.argmax(1)]
    assert len(predict(colour, sample.images[0, 0])) == len(predict(colour, sample.images[0])) == 1
    two = create_model("mspcaps_t_p2", in_chans=2, img_size=16).eval()
    assert len(predict(two, torch.rand(3, 2, 16, 16))) == 3


@pytest.mark.parametrize(
    ("images", "word"),
    [
        (np.full((16, 16), 200.0), "255"),
        (torch.full((1, 1, 16, 16), 255.0), "255"),
        (np.full((16, 16), -0.1), "-0.1"),
        (np.full((16, 16), np.nan), "nan"),
        (np.zeros((16, 16), np.uint16), "uint16"),
        (torch.zeros(16, 16, dtype=torch.int64), "int64"),
        (np.zeros((3, 16, 16), np.uint8), "(3, 16, 16)"),
        (np.zeros((2, 2, 2, 2, 2), np.uint8), "(2, 2, 2, 2, 2)"),
        (np.array(["a"]), "U1"),
        ([[1, 2]], "list"),
        ([None], "NoneType"),
        (7, "int"),
    ],
)
def test_images_that_are_refused(model, images, word):
    with pytest.raises(MspcapsError) as told:
        predict(model, images)
    assert word in str(told.value)


def test_broken_pictures_are_left_out_counted_and_named(model, sample, tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}.png", sample.images[i])
    for i in range(5):
        (tmp_path / f"x{i}.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.warns(UserWarning, match=r"5 of 8 .*x0\.png.*x1\.png.*x2\.png.* 2 more"):
        found = predict(model, tmp_path, skip_broken=True)
    assert [one.path.name for one in found] == ["0.png", "1.png", "2.png"]
    with pytest.raises(MspcapsError, match="5 of 5"):
        predict(model, sorted(tmp_path.glob("x*")), skip_broken=True)
