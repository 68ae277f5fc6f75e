"""An ensemble against a plain loop over its members, and what it refuses."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from mspcaps import create_model, load_dataset
from mspcaps.capsules import margin_loss
from mspcaps.data import ImageSet, open_folder
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import evaluate, evaluate_ensemble
from mspcaps.models import Model


@pytest.fixture(scope="module")
def data() -> ImageSet:
    return load_dataset("fashionmnist_sample", "test", 16).subset(torch.arange(0, 1000, 23))


def member(seed: int, name: str = "mspcaps_t_scale16", **task: int) -> Model:
    torch.manual_seed(seed)
    return create_model(name, **{"in_chans": 1, "img_size": 16} | task)


def test_its_scores_are_the_mean_of_those_of_its_members(data: ImageSet) -> None:
    models, seen = [member(seed) for seed in range(3)], []
    whole, each = evaluate_ensemble(models, data, progress=lambda *call: seen.append(call))
    x = data.images.float() / 255
    with torch.no_grad():
        scores = sum(model.eval()(x) for model in models) / 3
    torch.testing.assert_close(whole.scores, scores)
    right = (scores.argmax(1) == data.labels).double().mean().item()
    assert whole.accuracy == pytest.approx(100 * right) and whole.n == 44 and whole.health == ()
    assert whole.loss == pytest.approx(margin_loss(scores, data.labels).item(), rel=1e-5)
    for model, one in zip(models, each, strict=True):
        assert torch.equal(one.scores, evaluate(model, data).scores)
    assert [call[1:] for call in seen] == [(44, 44)] * 3 and len({call[0] for call in seen}) == 3


def test_every_member_answers_to_mirror_images_if_asked_to(data: ImageSet) -> None:
    models = [member(seed) for seed in range(2)]
    whole, each = evaluate_ensemble(models, data, flip=True)
    assert whole.flip and all(one.flip for one in each)
    torch.testing.assert_close(whole.scores, sum(evaluate(model, data, flip=True).scores for model in models) / 2)


@pytest.mark.slow
def test_members_may_take_images_of_other_sizes_if_the_data_are_named() -> None:
    models = [member(0), member(1, img_size=20)]
    whole, each = evaluate_ensemble(models, "fashionmnist_sample")
    torch.testing.assert_close(whole.scores, (each[0].scores + each[1].scores) / 2)
    for model, one in zip(models, each, strict=True):
        assert torch.equal(one.scores, evaluate(model, "fashionmnist_sample").scores)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "not 1"),
        ([{"num_classes": 3}], "model 2.*3, not 10"),
        ([{}, {"name": "resnet20"}], "model 3.*logits, not lengths"),
    ],
)
def test_what_has_no_common_mean_is_refused(others: list[dict], message: str, data: ImageSet) -> None:
    with pytest.raises(MspcapsError, match=message):
        evaluate_ensemble([member(0), *(member(1, **other) for other in others)], data)


def test_members_must_name_the_same_classes(data: ImageSet) -> None:
    one, other = member(0), member(1)
    one.metadata = {"classes": list(data.classes)}
    other.metadata = {"classes": [*data.classes[1:], data.classes[0]]}
    with pytest.raises(MspcapsError, match=r"model 2.*classes"):
        evaluate_ensemble([one, other], data)


def test_broken_pictures_are_left_out_of_an_opened_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("L", (16, 16), 60 * number).save(tmp_path / name / f"{number}.png")
    (tmp_path / "b" / "3.png").write_bytes(b"no picture")
    told: list[str] = []
    models = [member(seed, num_classes=2) for seed in range(2)]
    folder = open_folder(tmp_path, "all", (16, 16))
    whole, _ = evaluate_ensemble(models, folder, skip_broken=True, tell=told.append)
    assert whole.n == 7 and whole.confusion.sum(1).tolist() == [4, 3] and len(told) == 1
