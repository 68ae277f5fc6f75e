"""`evaluate` against a plain loop over single images."""

import contextlib
import math

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mspcaps import create_model, load_dataset
from mspcaps.capsules import margin_loss
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.evaluation import confidence, evaluate
from mspcaps.evaluation.metrics import calibrate
from mspcaps.files import no_progress


@pytest.fixture(scope="module")
def data() -> ImageSet:
    whole = load_dataset("fashionmnist_sample", "test", 16)
    return whole.subset(torch.arange(0, 1000, 23))  # 44 images, all classes


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("mspcaps_t_p2", in_chans=1, img_size=16).train()


def test_against_a_loop(model, data):
    found = evaluate(model, data, batch_size=13)
    assert model.training, "its mode is left as it was"
    model.eval()
    right, loss, confusion, sure, hits = 0, 0.0, [[0] * 10 for _ in range(10)], [], []
    for image, label in zip(data.images, data.labels, strict=True):
        with torch.no_grad():
            scores = model(image[None].float() / 255)
        answer = max(range(10), key=lambda k: scores[0, k].item())
        right += answer == label
        loss += margin_loss(scores, label[None]).item()
        confusion[int(label)][answer] += 1
        sure.append(scores[0, answer].item())
        hits.append(answer == int(label))
    model.train()
    ece = 0.0
    for low in range(15):
        inside = [i for i, s in enumerate(sure) if low / 15 < s <= (low + 1) / 15]
        if inside:
            ece += abs(sum(hits[i] for i in inside) - sum(sure[i] for i in inside)) / len(sure)
    assert found.n == len(data) == 44
    assert found.accuracy == pytest.approx(100 * right / 44)
    assert found.loss == pytest.approx(loss / 44, rel=1e-5)
    assert found.ece == pytest.approx(100 * ece, abs=1e-3)
    assert found.confusion.tolist() == confusion
    assert found.confusion.dtype == torch.int64
    assert found.scores.shape == (44, 10)
    assert found.predictions.tolist() == found.scores.argmax(1).tolist()
    assert found.per_class[3] == pytest.approx(100 * confusion[3][3] / sum(confusion[3]))
    shares = [100 * confusion[k][k] / sum(confusion[k]) for k in range(10) if sum(confusion[k])]
    assert found.mean_per_class == pytest.approx(sum(shares) / len(shares))


def test_progress_reaches_the_end(model, data):
    seen = []
    evaluate(model, data, batch_size=20, progress=lambda what, done, total: seen.append((done, total)))
    assert seen == [(20, 44), (40, 44), (44, 44)]


@pytest.mark.slow
def test_floats_are_measured_as_bytes_are(model, data):
    expected = evaluate(model, data)
    found = evaluate(model, (data.images.float() / 255, data.labels))
    assert torch.equal(found.scores, expected.scores) and found.accuracy == expected.accuracy
    assert torch.equal(evaluate(model, (data.images, data.labels)).scores, expected.scores)
    for images in (data.images.float(), data.images.float() / 255 - 0.1, data.images.long(), data.images / 0.0):
        with pytest.raises(MspcapsError, match=r"float32|int64"):
            evaluate(model, (images, data.labels))
    with pytest.raises(MspcapsError, match="10"):
        evaluate(model, (data.images, data.labels + 5))


@pytest.mark.slow
def test_a_loader_and_arrays_are_measured_as_the_data_set_is(model, data):
    expected = evaluate(model, data)
    grey = data.images[:, 0].numpy()
    forms = [
        DataLoader(data, batch_size=7),
        DataLoader(TensorDataset(data.images.float() / 255, data.labels), batch_size=100),
        (data.images.numpy(), data.labels.numpy()),
        (grey, data.labels.tolist()),
        (grey[..., None] / np.float32(255), data.labels.int()),
    ]
    for form in forms:
        found = evaluate(model, form)
        assert torch.allclose(found.scores, expected.scores, atol=1e-5) and torch.equal(found.labels, expected.labels)
        assert [block.entropy for block in found.health] == pytest.approx([block.entropy for block in expected.health])
    shuffled = evaluate(model, DataLoader(data, batch_size=7, shuffle=True))
    assert shuffled.accuracy == expected.accuracy and torch.equal(shuffled.confusion, expected.confusion)


def test_loaders_and_arrays_that_are_refused(model, data):
    numbers = torch.arange(44)
    for form, word in (
        (DataLoader(TensorDataset(data.images.float(), data.labels)), "divide"),
        (DataLoader(TensorDataset(data.images)), "list"),
        (DataLoader(TensorDataset(data.images, data.images)), "list"),
        (DataLoader(data.subset(slice(0, 1)), batch_size=2, drop_last=True), "no images"),
        ((data.images.numpy().astype("float64"), numbers), "divide"),
        ((data.images.numpy(), numbers[:3]), "3"),
        ((data.images.numpy().astype("int32"), numbers), "int32"),
        ((data.images, data.labels.float()), "float32"),
        ({"images": data.images}, "dict"),
    ):
        with pytest.raises(MspcapsError, match=word):
            evaluate(model, form)


def test_a_class_without_images_has_no_accuracy(model, data):
    found = evaluate(model, data.subset(data.labels == 4))
    assert [math.isnan(value) for value in found.per_class] == [k != 4 for k in range(10)]
    assert found.mean_per_class == found.per_class[4]


def test_confidence():
    lengths = torch.tensor([[0.9, 0.3], [0.0, 0.0], [0.2, 0.6]])
    assert confidence(lengths, "lengths").tolist() == pytest.approx([0.9, 0.0, 0.6])
    logits = torch.tensor([[0.0, math.log(3.0)], [-5.0, -5.0]])
    assert confidence(logits, "logits").tolist() == pytest.approx([0.75, 0.5])


def test_calibration_error():
    sure, right = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.5]), torch.tensor([True, True, False, True, False])
    assert calibrate(sure, right).error == pytest.approx((4 * 0.15 + 0.5) / 5)
    assert calibrate(torch.ones(3), torch.ones(3, dtype=torch.bool)).error == 0


def test_a_confidence_on_the_edge_of_two_bins_belongs_to_the_lower_one():
    """Of four bins 0.5 is in the second with 0.3, whose gaps cancel in part; 0 is in the first, 1 in the last."""
    right = torch.tensor([False, True])
    assert calibrate(torch.tensor([0.5, 0.3]), right, bins=4).error == pytest.approx((0.7 - 0.5) / 2)
    assert calibrate(torch.tensor([0.5, 0.6]), right, bins=4).error == pytest.approx((0.5 + 0.4) / 2)
    assert calibrate(torch.tensor([0.0, 0.1]), right, bins=4).error == pytest.approx(0.9 / 2)
    assert calibrate(torch.tensor([1.0, 0.9]), right, bins=4).error == pytest.approx((1 - 0.1) / 2)


def test_what_does_not_fit_is_refused(model, data):
    with pytest.raises(MspcapsError, match="1 x 16 x 16"):
        evaluate(model, data.resized((32, 32)))
    with pytest.raises(MspcapsError, match=r"10.*11"):
        evaluate(model, ImageSet(data.images, data.labels, (*data.classes, "hat"), "more"))
    with pytest.raises(MspcapsError, match="batch_size is 0"):
        evaluate(model, data, batch_size=0)


def test_another_numbering_of_the_classes_is_refused(data):
    model = create_model("mspcaps_t_scale16", in_chans=1, img_size=16)
    model.metadata = {"classes": [data.classes[1], data.classes[0], *data.classes[2:]]}
    with pytest.raises(MspcapsError, match=f"{data.classes[1]}.*{data.classes[0]}"):
        evaluate(model, data)
    model.metadata = {"classes": list(data.classes)}
    assert evaluate(model, data).n == len(data)


def test_the_loss_is_the_models_own(data):
    torch.manual_seed(0)
    model = create_model("resnet20", in_chans=1, img_size=16)
    found = evaluate(model, data)
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(found.scores, found.labels).item())


def test_a_frozen_norm_stays_frozen_even_if_evaluation_is_stopped(data):
    model = create_model("mspcaps_t_scale16", in_chans=1, img_size=16).train()
    model.backbone.blocks[0].first.bn.eval()
    modes = [module.training for module in model.modules()]

    def stop(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    for progress in (no_progress, stop):
        with contextlib.suppress(KeyboardInterrupt):
            evaluate(model, data, progress=progress)
        assert [module.training for module in model.modules()] == modes


def test_a_model_may_say_whether_its_scores_are_lengths(data):
    torch.manual_seed(0)
    found = evaluate(create_model("mspcaps_t_linear_margin", in_chans=1, img_size=16), data)
    assert found.confidence == pytest.approx(100 * confidence(found.scores, "lengths").mean().item())
    model = create_model("mspcaps_t_scale16", in_chans=1, img_size=16)
    model.scores = "logits"  # of a routing whose class capsules go through one more layer
    found = evaluate(model, data)
    assert found.confidence == pytest.approx(100 * confidence(found.scores, "logits").mean().item())


def test_a_model_without_a_loss_has_none(data):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10))
    assert math.isnan(evaluate(model, data).loss)


def test_figures_are_those_of_the_weights_precision_also_where_training_rounds(data):
    """Somebody evaluates within their training loop, whose autocast is on."""
    torch.manual_seed(0)
    model = create_model("mspcaps_t_scale16", in_chans=1, img_size=16)
    alone = evaluate(model, data).scores
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(evaluate(model, data).scores, alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mspcaps_t_p2", "resnet20"])
def test_mirror_images_are_averaged_in_only_if_asked_for_and_the_result_says_so(name, data):
    torch.manual_seed(1)
    network = create_model(name, in_chans=1, img_size=16).eval()
    plain, both = evaluate(network, data, batch_size=13), evaluate(network, data, batch_size=13, flip=True)
    mirrored = data.images.numpy()[:, :, :, ::-1].copy()
    other = evaluate(network, (torch.from_numpy(mirrored), data.labels))
    torch.testing.assert_close(both.scores, (plain.scores + other.scores) / 2)
    assert both.accuracy == pytest.approx(100 * (both.scores.argmax(1) == data.labels).double().mean().item())
    assert both.loss == pytest.approx(network.criterion(both.scores, data.labels).item())
    assert (plain.flip, both.flip) == (False, True) and not torch.equal(plain.scores, both.scores)
    assert "mirror" in repr(both) and "mirror" in both._repr_html_()
    assert "mirror" not in repr(plain) and "mirror" not in plain._repr_html_()
