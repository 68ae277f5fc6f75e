"""The contract that every registered model keeps, and the exact number of its parameters."""

import copy

import numpy as np
import pytest
import torch

from mspcaps import create_model, list_models
from mspcaps.errors import MspcapsError
from mspcaps.models import model_options, register_model, registry
from mspcaps.models.mspcaps import mspcaps_t

SMALL = [name for name in list_models() if not name.startswith(("mspcaps_l", "lacaps_l"))]


COUNTS = [  # sections of shared/spec/baselines_a.md and baselines_b.md; mspcaps and resnet have tests of their own
    ("capsnet", 1, 28, {}, 6_804_224),  # a, 1.1 and 1.2
    ("capsnet", 1, 28, {"decoder": True}, 8_215_568),
    ("capsnet", 3, 28, {}, 6_845_696),
    ("capsnet", 1, 32, {}, 7_951_104),
    ("capsnet", 1, 32, {"decoder": True}, 9_608_448),
    ("capsnet", 3, 32, {}, 7_992_576),
    ("capsnet", 3, 32, {"decoder": True}, 11_749_120),
    ("capsnet_cifar", 3, 24, {}, 22_476_448),  # a, 1.3: a window, so the same for larger images
    ("capsnet_cifar", 3, 32, {}, 22_476_448),
    ("capsnet_cifar", 3, (26, 41), {}, 22_476_448),
    ("aa_capsnet", 1, 28, {}, 6_592_971),  # a, 2.2
    ("aa_capsnet", 3, 28, {}, 6_634_443),
    ("aa_capsnet", 1, 32, {}, 7_510_475),
    ("aa_capsnet", 3, 32, {}, 7_551_947),
    ("ar_capsnet", 3, 32, {}, 7_563_392),  # a, 3.2 and 6
    ("ar_capsnet", 3, 32, {"decoder": True}, 9_566_336),
    ("ar_capsnet", 1, 28, {"layers": 1}, 4_483_328),
    ("ar_capsnet", 1, 28, {"layers": 1, "decoder": True}, 5_312_528),
    ("ar_capsnet", 1, 32, {"layers": 1}, 5_712_128),
    ("da_capsnet", 3, 32, {}, 1_923_864),  # a, 4.3
    ("da_capsnet", 3, 32, {"decoder": True}, 5_680_408),
    ("da_capsnet", 3, 32, {"extra_conv": True}, 3_345_472),
    ("da_capsnet", 3, 32, {"extra_conv": True, "decoder": True}, 7_102_016),
    ("da_capsnet", 1, 28, {"kernel": 2}, 1_799_832),
    ("da_capsnet", 1, 28, {"kernel": 2, "decoder": True}, 3_211_176),
    ("rs_capsnet", 3, 32, {}, 1_251_388),  # a, 5.3
    ("rs_capsnet", 3, 32, {"decoder": True}, 5_007_932),
    ("rs_capsnet", 1, 32, {}, 1_250_236),
    ("rs_capsnet", 1, 32, {"decoder": True}, 2_907_580),
    ("rs_capsnet", 1, 28, {}, 1_173_436),
    ("rs_capsnet", 1, 28, {"decoder": True}, 2_584_780),
    ("deepcaps", 3, 64, {}, 13_359_424),  # b, 1
    ("deepcaps", 3, 64, {"decoder": True}, 13_426_995),
    ("deepcaps", 3, 32, {}, 8_444_224),
    ("deepcaps", 3, 32, {"decoder": True}, 8_510_851),
    ("deepcaps", 1, 28, {}, 8_441_920),
    ("deepcaps", 1, 28, {"decoder": True}, 8_500_337),
    ("deepcaps", 1, 32, {}, 8_441_920),
    ("deepcaps", 1, 32, {"decoder": True}, 8_508_257),
    ("idp_capsnet", 3, 32, {}, 561_297),  # b, 2
    ("idp_capsnet", 1, 32, {}, 556_689),
    ("idp_capsnet", 1, 28, {}, 510_609),
    ("efficient_capsnet", 1, 28, {}, 161_824),  # b, 3
    ("efficient_capsnet", 1, 28, {"decoder": True}, 161_824 + 1_411_344),
    ("efficient_capsnet", 1, 32, {}, 166_944),
    ("efficient_capsnet", 3, 32, {}, 168_544),
    ("efficient_capsnet", 3, 32, {"decoder": True}, 168_544 + 3_756_544),
    ("orthcaps_s", 1, 32, {}, 105_504),  # b, 5
    ("orthcaps_s", 1, 28, {}, 101_920),
    ("orthcaps_s", 3, 32, {}, 128_224),
    ("orthcaps_d", 1, 32, {}, 572_416),
    ("orthcaps_d", 3, 32, {}, 574_016),
    ("lacaps_t", 3, 32, {}, 336_690),  # our own
    ("lacaps_t", 3, 32, {"deep": True}, 316_570),
    ("lacaps_t_average", 3, 32, {}, 317_610),
    ("lacaps_t_linear", 3, 32, {}, 352_362),
    ("lacaps_l", 3, 32, {}, 9_309_122),
]
STATISTICS = {"efficient_capsnet": 576, "ar_capsnet": 256}  # of BatchNorm, which others count: 162,400 for MNIST


@pytest.mark.slow
@pytest.mark.parametrize(("name", "in_chans", "size", "options", "params"), COUNTS)
def test_parameters_are_those_of_the_specification(name, in_chans, size, options, params):
    with torch.device("meta"):
        model = create_model(name, in_chans=in_chans, img_size=size, **options)
    assert sum(p.numel() for p in model.parameters()) == params
    statistics = sum(t.numel() for key, t in model.named_buffers() if "running" in key)
    assert statistics == STATISTICS.get(name, statistics)


def warmed(name, **task):
    """A model whose BatchNorm statistics are no longer the initial ones."""
    torch.manual_seed(0)
    model = create_model(name, **task)
    chans, (height, width) = model.config["in_chans"], model.config["img_size"]
    for _ in range(3):
        model.train()(torch.rand(8, chans, height, width))
    return model.eval()


def test_names_are_sorted_and_match_shell_patterns():
    assert list_models() == sorted(list_models())
    capsules = list_models("*caps*")
    assert len(capsules) >= 14 and not any("resnet" in name for name in capsules)
    assert list_models("resnet*") == ["resnet18", "resnet20"]
    assert list_models("nothing like this") == []


def exact(name, model, x):
    """OrthCaps prunes by a hard threshold: in single precision a rounding may decide on which side a capsule falls."""
    return (model.double(), x.double()) if name.startswith("orthcaps") else (model, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_evaluation_is_repeatable_and_does_not_depend_on_the_batch(name):
    model, x = exact(name, warmed(name), torch.rand(5, 3, 32, 32))
    with torch.no_grad():
        together = model(x)
        assert torch.equal(model(x), together)
        alone = torch.cat([model(image[None]) for image in x])
        backwards = model(x.flip(0)).flip(0)
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backwards, together, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_channels_last_equals_contiguous(name):
    model, x = exact(name, warmed(name), torch.rand(3, 3, 32, 32))
    with torch.no_grad():
        expected = model(x)
        actual = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mspcaps_t", "resnet20"])
def test_the_normalisation_lives_inside(name):
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    inside, x = warmed(name, mean=mean, std=std), torch.rand(2, 3, 32, 32)
    outside = create_model(name, mean=(0, 0, 0), std=(1, 1, 1)).eval()
    outside.load_state_dict({**inside.state_dict(), **outside.normalize.state_dict(prefix="normalize.")})
    normalized = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(inside(x), outside(normalized), rtol=1e-4, atol=1e-5)
        assert (inside(x) - outside(x)).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["mspcaps_t", "resnet20"])
def test_a_plain_dictionary_of_weights_loads_into_a_new_model(name):
    source, target, x = warmed(name), create_model(name).eval(), torch.rand(2, 3, 32, 32)
    target.load_state_dict(dict(source.state_dict()))
    with torch.no_grad():
        assert torch.equal(source(x), target(x))


def test_the_config_tells_the_normalisation_that_was_loaded():
    source = create_model("resnet20", in_chans=2, mean=[0.1, 0.25], std=[0.0005, 0.5])
    target = create_model("resnet20", in_chans=2)
    torch.nn.DataParallel(target).module.load_state_dict(source.state_dict())
    assert target.config["mean"] == pytest.approx((0.1, 0.25)) and target.config["std"] == pytest.approx((0.001, 0.5))
    twin = create_model(**target.config)
    assert torch.equal(twin.normalize.mean, source.normalize.mean)
    before = source.config
    source.load_state_dict(copy.deepcopy(source).half().state_dict())
    assert source.config == before, "rounding is no change"


def test_the_model_remembers_what_it_was_made_for():
    model = create_model(
        "resnet20", num_classes=5, in_chans=2, img_size=(20, 24), mean=np.array([0.1, 0.2]), std=np.array([0.3, 0.4])
    )
    sizes = {"num_classes": 5, "in_chans": 2, "img_size": (20, 24)}
    assert model.config == {"name": "resnet20", **sizes, "mean": (0.1, 0.2), "std": (0.3, 0.4)}
    assert type(model.config["mean"][0]) is float
    twin = create_model(**model.config)
    assert model(torch.rand(2, 2, 20, 24)).shape == twin(torch.rand(2, 2, 20, 24)).shape == (2, 5)


@pytest.mark.parametrize(
    ("wrong", "right"), [("mspcaps-t", "mspcaps_t"), ("mspcap_l", "mspcaps_l"), ("resnet-18", "resnet18")]
)
def test_an_unknown_name_suggests_the_nearest(wrong, right):
    with pytest.raises(MspcapsError, match=f"'{wrong}'.*'{right}'"):
        create_model(wrong)


@pytest.mark.parametrize("name", ["quite something else", "", 5, None])
def test_what_is_no_name_at_all_is_refused(name):
    with pytest.raises(MspcapsError, match=repr(name)):
        create_model(name)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"num_classes": 1}, "num_classes is 1.* 2"),
        ({"in_chans": 0}, "in_chans is 0.* 1"),
        ({"num_classes": 2.5}, "2.5"),
        ({"num_classes": 1 << 24}, "16777216"),
        ({"img_size": (32, 32, 32)}, "32, 32, 32"),
        ({"mean": (0.5,)}, "1 and 3 for 3"),
        ({"in_chans": 1, "std": (1, 1, 1)}, "1 and 3 for 1"),
        ({"std": (1, -1, 1)}, "-1.0"),
        ({"mean": (0, float("nan"), 0)}, "nan"),
        ({"mean": "abc"}, "abc"),
        ({"patch": 0}, "patch.* 0"),
        ({"patch": "3"}, "patch.*'3'"),
        ({"patch": True}, "patch.*True"),
        ({"shared": 1}, "shared.* 1"),
        ({"pach": 3}, "'pach'.*'patch'"),
        ({"iterations": 2}, "'iterations'"),
        ({"patch": 40}, "32 x 32"),
    ],
)
def test_impossible_tasks_are_refused(task, message):
    with pytest.raises(MspcapsError, match=message):
        create_model("mspcaps_t", **task)


@pytest.fixture
def own_names(monkeypatch):
    """What a test registers is gone again afterwards."""
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))


def test_the_name_of_the_function_is_the_name_of_the_model(own_names):
    @register_model
    def mine(task, *, width: int = 8, rate: float = 0.5, kind: str = "a"):
        model = mspcaps_t(task)
        model.seen = (width, rate, kind)
        return model

    assert "mine" in list_models() and model_options("mine") == {"width": 8, "rate": 0.5, "kind": "a"}
    model = create_model("mine", width=4, kind="a", rate=1)
    assert model.seen == (4, 1, "a") and model.config["name"] == "mine"
    assert {key: model.config[key] for key in ("width", "rate")} == {"width": 4, "rate": 1}
    assert "kind" not in model.config, "defaults need not be said"


def test_a_name_that_is_taken_is_refused_but_a_definition_can_run_again(own_names):
    def define():
        @register_model
        def mine(task):
            return None

    define()
    define()

    def mspcaps_t(task):
        return None

    with pytest.raises(MspcapsError, match=r"mspcaps_t, in mspcaps\.models\.mspcaps"):
        register_model(mspcaps_t)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda **task: None, lambda task, patch=4: None, lambda task, *, patch: None,
     lambda task, *, patch=None: None, lambda task, **options: None],
)  # fmt: skip
def test_functions_of_another_form_are_refused(function, own_names):
    function.__name__ = "mine"
    with pytest.raises(MspcapsError, match="mine"):
        register_model(function)
    assert "mine" not in list_models()


def test_a_function_that_returns_no_model(own_names):
    @register_model
    def forgetful(task):
        torch.nn.Flatten()

    with pytest.raises(MspcapsError, match=r"forgetful.*NoneType"):
        create_model("forgetful")
