"""Pictures in, classes out; a broken file spoils no other. Data sets in the numbering of the model."""

import io

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
    with pytest.raises(MspcapsError, match="Image"):
        predict(model, [picture])


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
