"""Transfer: what is taken over is the file's bit for bit, what depends on the task follows the task."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mspcaps import list_models, save_pretrained
from mspcaps.capsules import DynamicRouting
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, create_model, load_model, register_model, registry, save_weights
from mspcaps.models.transfer import depends_on_classes, differs_in_channels, interpolate, transfer

TASK = {"num_classes": 5, "in_chans": 3, "img_size": (32, 32)}
CLASSES = list("abcde")
SMALL = [name for name in list_models() if not name.startswith(("mspcaps_l", "lacaps_l", "resnet18"))]


def written(path, name="mspcaps_t", **task):
    """Weights that are nowhere those of a new model, BatchNorm's statistics included."""
    torch.manual_seed(1)
    model = create_model(name, **{**TASK, **task})
    model.load_state_dict({key: torch.rand_like(tensor) for key, tensor in model.state_dict().items()})
    save_weights(path, model, classes=CLASSES)
    return model.state_dict()


def begun(path, classes, name="mspcaps_t", **task):
    """-> the new model before and after, and what the transfer says."""
    torch.manual_seed(2)
    model = create_model(name, **{**TASK, **task, "num_classes": len(classes)})
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return before, model, transfer(model, path, classes, "the file")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_same_task_takes_everything(name, tmp_path):
    old = written(tmp_path / "w", name)
    before, model, done = begun(tmp_path / "w", CLASSES, name)
    new = model.state_dict()
    own = {"normalize.mean", "normalize.std"}
    assert set(done.copied) == old.keys() - own and not done.adapted and not done.fresh
    assert all(torch.equal(new[key], before[key] if key in own else old[key]) for key in old)
    assert str(done) == f"starts from the file: {len(old) - 2} of {len(old) - 2} tensors unchanged; new: none"


HEADS = {
    "mspcaps_t_add": {"routing.1.w"}, "mspcaps_t_concat": {"routing.1.w"},
    "ar_capsnet": {f"routing.{name}" for name in ("w", "bias", "attention", "affine.weight", "affine.bias")},
    "efficient_capsnet": {"routing.w", "routing.prior"},
    "capsnet": {"routing.w"}, "capsnet_cifar": {"routing.w", "routing.bias"},
    "deepcaps": {"routing.w", "routing.bias"}, "resnet20": {"head.weight", "head.bias"},
    "idp_capsnet": {"routing.w"},
    "orthcaps_s": {"routing.w"},
    "orthcaps_d": {"routing.w"},
    "aa_capsnet": {"head.weight", "head.bias"},
    "rs_capsnet": {"routing.w"},
    "da_capsnet": {"routing.w", "routing.gate.first.weight"},
         "lacaps_t": {"votes.w", "votes.bias"}, "lacaps_t_average": {"head.weight", "head.bias"},
         "lacaps_t_linear": {"head.weight", "head.bias"}, "mspcaps_t_linear": {"head.weight", "head.bias"},
         "mspcaps_t_linear_margin": {"head.weight", "head.bias"},
         "mspcaps_t_dr": {"routing.3.w"}, "mspcaps_t_unshared": {"routing.1.w1", "routing.1.w2"}}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_other_classes_get_a_new_head_and_nothing_else(name, tmp_path):
    old = written(tmp_path / "w", name)
    head = HEADS.get(name, {"routing.0.w2"} if "scale" in name else {"routing.1.w2"})
    assert depends_on_classes(create_model(name, **TASK)) == head
    for classes in ("xy", "edcba"):  # fewer, and as many of other names
        before, model, done = begun(tmp_path / "w", list(classes), name)
        new = model.state_dict()
        assert done.fresh == dict.fromkeys(sorted(head), "other classes") and not done.adapted
        assert all(torch.equal(new[key], before[key]) for key in head)
        assert all(torch.equal(new[key], old[key]) for key in done.copied) and len(done.copied) == len(old) - 2 - len(
            head
        )


def test_a_larger_image_interpolates_positions_and_gets_new_votes(tmp_path):
    old = written(tmp_path / "w", "mspcaps_t_unshared")
    before, model, done = begun(tmp_path / "w", CLASSES, "mspcaps_t_unshared", img_size=(48, 32))
    new = model.state_dict()
    assert set(done.adapted) == {f"patchify.{i}.position" for i in range(3)}
    assert done.fresh == {f"routing.{i}.{w}": "other grid" for i in (0, 1) for w in ("w1", "w2")}
    assert all(torch.equal(new[key], before[key]) for key in done.fresh)
    assert all(torch.equal(new[key], old[key]) for key in done.copied) and len(done.copied) == len(old) - 2 - 3 - 4
    plane = old["patchify.1.position"].T.reshape(1, 8, 4, 4)
    expected = F.interpolate(plane, (6, 4), mode="bicubic", antialias=True)[0]
    assert torch.equal(new["patchify.1.position"].T.reshape(8, 6, 4), expected)
    assert torch.isfinite(model.eval()(torch.rand(2, 3, 48, 32))).all()


def test_positions_keep_their_places():
    """A plane that rises along the rows still does, at the same rate from edge to edge, away from the border."""
    rows = torch.arange(8.0).repeat_interleave(4)[:, None]  # on a grid of 8 x 4
    assert torch.equal(interpolate(rows, (8, 4), (8, 4)), rows)
    wider = interpolate(rows, (8, 4), (16, 6)).view(16, 6)
    centres = (torch.arange(16.0) + 0.5) / 2 - 0.5  # of the new rows, in the old ones
    assert (wider[4:12] - centres[4:12, None]).abs().max() < 1e-5


def test_the_same_count_on_another_grid_is_another_place(tmp_path):
    """8 x 4 and 4 x 8 capsules are equally many: equal shapes must not deceive."""
    written(tmp_path / "w", img_size=(64, 32))
    _, _, done = begun(tmp_path / "w", CLASSES, img_size=(32, 64))
    assert set(done.adapted) == {f"patchify.{i}.position" for i in range(3)}
    assert set(done.fresh) == {"routing.0.w2", "routing.1.w2"}
    written(tmp_path / "dr", "mspcaps_t_dr", img_size=(64, 32))
    _, _, done = begun(tmp_path / "dr", CLASSES, "mspcaps_t_dr", img_size=(32, 64))
    assert set(done.fresh) == {f"routing.{i}.w" for i in range(4)}


def test_a_size_with_the_same_grids_takes_everything(tmp_path):
    written(tmp_path / "w")
    _, _, done = begun(tmp_path / "w", CLASSES, img_size=(35, 34))
    assert not done.adapted and not done.fresh


@pytest.mark.parametrize(("old_chans", "new_chans"), [(3, 1), (1, 3), (3, 4)])
def test_other_channels_answer_a_grey_picture_alike(old_chans, new_chans, tmp_path):
    """With the same normalisation in every channel, a picture that is the same in all of them is answered as before."""
    grey = {"mean": (0.4,), "std": (0.3,)}

    def task(chans):
        return {"in_chans": chans, **{key: value * chans for key, value in grey.items()}}

    torch.manual_seed(0)
    old = create_model("mspcaps_t", **{**TASK, **task(old_chans)})
    save_weights(tmp_path / "w", old, classes=CLASSES)
    _, model, done = begun(tmp_path / "w", CLASSES, **task(new_chans))
    assert (
        done.adapted == {"backbone.blocks.0.first.conv.weight": f"{old_chans} to {new_chans} channels"}
        and not done.fresh
    )
    x = torch.rand(4, 1, 32, 32)
    answers = [m.eval()(x.expand(-1, chans, -1, -1)) for m, chans in ((old, old_chans), (model, new_chans))]
    assert torch.allclose(*answers, atol=1e-5) and answers[0].std() > 1e-4


def test_shipped_weights_in_half_precision(tmp_path):
    from mspcaps.models import weights_path

    path = weights_path("mspcaps_t.cifar10")
    old = load_model(path).state_dict()
    _, model, done = begun(path, CLASSES, in_chans=1)
    assert all(torch.equal(model.state_dict()[key], old[key]) for key in done.copied)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert str(done) == (
        "starts from the file: 45 of 47 tensors unchanged, backbone.blocks.0.first.conv.weight (3 to 1 channels); "
        "new: routing.1.w2 (other classes)"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_weight_that_is_not_a_number_is_refused(value, tmp_path):
    model = create_model("mspcaps_t_scale16", img_size=16)
    model.normalize.mean[1] = value
    save_weights(path := tmp_path / "w.safetensors", model)
    with pytest.raises(MspcapsError) as refusal:
        load_model(path)
    assert str(refusal.value) == f"{path} holds weights that are not finite"


@pytest.mark.parametrize("form", [True, False], ids=["zip", "before torch 1.6"])
def test_a_pytorch_file_is_told_from_a_broken_one_and_the_remedy_works(form, tmp_path):
    model = create_model("mspcaps_t_scale16", img_size=16)
    torch.save(model.state_dict(), path := tmp_path / "sd.pt", _use_new_zipfile_serialization=form)
    with pytest.raises(MspcapsError, match=r"sd\.pt is a PyTorch file") as refusal:
        load_model(path)
    assert "\n" not in str(refusal.value)
    again = create_model("mspcaps_t_scale16", img_size=16)
    again.load_state_dict(torch.load(path, weights_only=True))
    found = load_model(save_pretrained(again, tmp_path / "folder") / "model.safetensors")
    assert all(torch.equal(tensor, found.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_refusals_in_one_sentence(tmp_path):
    written(tmp_path / "w", "mspcaps_t_scale16")
    with pytest.raises(MspcapsError, match="the file holds weights of mspcaps_t_scale16, which mspcaps_t cannot start"):
        begun(tmp_path / "w", CLASSES)
    with pytest.raises(MspcapsError, match="there is no weights file"):
        begun(tmp_path / "nothing", CLASSES)
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(MspcapsError, match="not a complete safetensors file"):
        begun(tmp_path / "junk", CLASSES)
    model = create_model("mspcaps_t", **TASK)
    tensors = {**model.state_dict(), "routing.1.w2": torch.zeros(1)}
    save_weights(tmp_path / "odd", model, tensors)
    with pytest.raises(MspcapsError, match=r"odd does not fit the model: routing.1.w2 is \(1,\)"):
        begun(tmp_path / "odd", CLASSES)


class Depthwise(Model):
    """Of another family: a kernel as large as the image, and dynamic routing whose capsules have places."""

    def __init__(self, task):
        super().__init__(task)
        height, width = task.img_size
        self.first = nn.Conv2d(task.in_chans, 4, 1)
        self.whole = nn.Conv2d(4, 4, task.img_size, groups=4)
        self.routing = DynamicRouting(height * width, 4, task.num_classes, 2)

    def forward_features(self, x):
        return self.first(self.normalize(x)).flatten(2).transpose(1, 2)

    def forward_head(self, features):
        return self.routing(features).norm(dim=-1)


def test_a_model_of_another_kind(tmp_path, monkeypatch):
    """A depthwise kernel as large as the map has one channel, as a grey image has, and votes have their places too."""
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))

    @register_model
    def depthwise(task):
        return Depthwise(task)

    written(tmp_path / "w", "depthwise", in_chans=1, img_size=(4, 6))
    _, _, done = begun(tmp_path / "w", CLASSES, "depthwise", in_chans=1, img_size=(6, 6))
    assert done.fresh == {"whole.weight": "other shape", "routing.w": "other grid"} and not done.adapted
    _, _, done = begun(tmp_path / "w", CLASSES, "depthwise", in_chans=1, img_size=(6, 4))
    assert "routing.w" in done.fresh, "as many votes, but of other places"
    _, _, done = begun(tmp_path / "w", CLASSES, "depthwise", in_chans=3, img_size=(4, 6))
    assert done.adapted == {"first.weight": "1 to 3 channels"} and not done.fresh


def test_options_travel_with_the_weights(tmp_path):
    old = written(tmp_path / "w", patch=2)
    _, model, done = begun(tmp_path / "w", CLASSES, patch=2)
    assert set(done.copied) == old.keys() - {"normalize.mean", "normalize.std"} and model.config["patch"] == 2
    _, _, done = begun(tmp_path / "w", list("vwxyz"), patch=2)
    assert set(done.fresh) == {"routing.1.w2"}
    _, model, done = begun(tmp_path / "w", CLASSES)  # patches of four: other grids
    assert set(done.adapted) == {f"patchify.{i}.position" for i in range(3)}
    assert set(done.fresh) == {"routing.0.w2", "routing.1.w2"}
    _, model, done = begun(tmp_path / "w", CLASSES, patch=2, shared=False)  # what the file does not have
    assert done.fresh == {"routing.0.w1": "other options", "routing.1.w1": "other options"} and not done.adapted
    assert torch.equal(model.routing[0].w2, old["routing.0.w2"])
    _, model, done = begun(tmp_path / "w", CLASSES, patch=2, position=False, decoder=True)
    drawn = {f"decoder.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}
    assert done.fresh == dict.fromkeys(sorted(drawn), "other options") and not done.adapted
    assert depends_on_classes(create_model("mspcaps_t", decoder=True, **TASK)) == {"routing.1.w2", "decoder.0.weight"}


def test_the_same_shape_on_another_window_or_channel_means_something_else():
    """15 x 16 pixels give windows of 1 x 2 fine capsules, 16 x 15 of 2 x 1: as many weights, of other places."""
    wide, high = (create_model("mspcaps_t_unshared", img_size=size).tensor_places() for size in ((15, 16), (16, 15)))
    assert wide["routing.0.w1"] != high["routing.0.w1"] and wide["routing.0.w2"] == high["routing.0.w2"]
    assert differs_in_channels((8, 4, 3, 3), (8, 3, 3, 3), 4, 3)
    assert not differs_in_channels((8, 1, 3, 3), (8, 3, 3, 3), 4, 3), "a depthwise convolution, not one on the image"
