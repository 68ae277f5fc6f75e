"""MSPCaps: the paper's parameter counts, a functional reference of the whole network, and every size of image."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from mspcaps import create_model, list_models
from mspcaps.capsules import length, margin_loss
from mspcaps.capsules.routing.cross_agreement import group_fine, group_size
from mspcaps.errors import MspcapsError
from mspcaps.models.mspcaps import middle_grids

PARAMETERS = {  # shared/spec/mspcaps.md, section 2: 3 x 32 x 32, 10 classes
    "mspcaps_t": 344_320,
    "mspcaps_t_unshared": 557_312,
    "mspcaps_t_p2": 899_392,
    "mspcaps_t_p3": 388_712,
    "mspcaps_t_scale32": 92_920,
    "mspcaps_t_scale16": 86_904,
    "mspcaps_t_scale8": 293_656,
    "mspcaps_t_scale32_16": 87_696,
    "mspcaps_t_dr": 483_528,
    "mspcaps_l": 10_932_944,
    "mspcaps_l_shared": 7_913_664,
    "mspcaps_l_p2": 39_446_480,
    "mspcaps_l_p3": 13_702_704,
    "mspcaps_l_dr": 14_691_312,
}
CONTROLS = dict.fromkeys(("mspcaps_t_self", "mspcaps_t_mean", "mspcaps_t_add"), 344_320)
CONTROLS["mspcaps_t_concat"] = 557_312  # as many numbers vote as with own weights
CONTROLS |= dict.fromkeys(("mspcaps_t_linear", "mspcaps_t_linear_margin"), 287_456 + 3584 * 10 + 10)
PRINTED = {  # what the paper's tables show; it truncates
    "mspcaps_t": "344.3K", "mspcaps_t_unshared": "557.3K", "mspcaps_t_p2": "899.3K", "mspcaps_t_p3": "388.7K",
    "mspcaps_t_scale32": "92.9K", "mspcaps_t_scale16": "86.9K", "mspcaps_t_scale8": "293.6K",
    "mspcaps_t_scale32_16": "87.6K", "mspcaps_t_dr": "483.5K", "mspcaps_l": "10.9M", "mspcaps_l_shared": "7.9M",
    "mspcaps_l_p2": "39.4M", "mspcaps_l_p3": "13.7M", "mspcaps_l_dr": "14.6M",
}  # fmt: skip
LEAST = {  # smallest side with one patch on the coarsest map in use
    "mspcaps_t": 13, "mspcaps_t_p2": 5, "mspcaps_t_p3": 9, "mspcaps_t_scale32": 4, "mspcaps_t_scale16": 7,
    "mspcaps_t_scale8": 13, "mspcaps_t_scale32_16": 7, "mspcaps_t_dr": 13, "mspcaps_l_p2": 5,
}  # fmt: skip


def shapes_only(name, **task):
    with torch.device("meta"):
        return create_model(name, **task)


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_every_registered_variant_has_its_row():
    assert list_models("mspcaps*") == sorted([*PARAMETERS, *CONTROLS]) and PARAMETERS.keys() == PRINTED.keys()


@pytest.mark.parametrize(("name", "params"), CONTROLS.items())
def test_controls_keep_the_backbone(name, params):
    """Same initial backbone as mspcaps_t, only the head differs; and every weight gets a gradient."""
    torch.manual_seed(0)
    paper = create_model("mspcaps_t").state_dict()
    torch.manual_seed(0)
    model = create_model(name)
    assert count(model) == params
    assert all(torch.equal(t, paper[key]) for key, t in model.state_dict().items() if key.startswith("backbone."))
    model.training_loss(torch.rand(4, 3, 32, 32), torch.arange(4), model.criterion).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_exactly_those_of_the_paper(name):
    params = count(shapes_only(name))
    assert params == PARAMETERS[name]
    unit = 10**6 if PRINTED[name].endswith("M") else 10**3
    assert f"{params * 10 // unit / 10:.1f}" == PRINTED[name][:-1]


@pytest.mark.slow
def test_options_of_t_count_what_they_add_or_leave_out():
    """Positions of 64, 16 and 4 capsules; a decoder from 10 x 32 numbers over 512 and 1024 to 3 x 32 x 32 pixels."""
    assert count(shapes_only("mspcaps_t", position=False)) == 344_320 - (64 * 8 + 16 * 8 + 4 * 16) == 343_616
    drawn = (320 + 1) * 512 + (512 + 1) * 1024 + (1024 + 1) * 3072
    assert count(shapes_only("mspcaps_t", decoder=True)) == 344_320 + drawn == 4_182_784


def test_a_decoder_changes_the_loss_and_nothing_else():
    """It draws its weights last, so all others are those of the same seed without one; and classes may change."""
    made = []
    for decoder in (False, True):
        torch.manual_seed(0)
        made.append(create_model("mspcaps_t", num_classes=3, img_size=16, decoder=decoder).eval())
    plain, model = made
    assert all(torch.equal(t, model.state_dict()[key]) for key, t in plain.state_dict().items())
    x, y = torch.rand(2, 3, 16, 16), torch.tensor([2, 0])
    assert torch.equal(model(x), plain(x))
    v = model.forward_capsules(x)
    shown = torch.stack([torch.cat([v[b, j] * float(j == y[b]) for j in range(3)]) for b in range(2)])
    error = (model.decoder(shown) - x.flatten(1)).square().sum() / 2
    expected = margin_loss(plain(x), y) + 0.0005 * error
    torch.testing.assert_close(model.training_loss(x, y, model.criterion), expected)
    model.reset_classifier(5)
    assert model.reconstruct(model.forward_capsules(x), y).shape == x.shape
    model.training_loss(x, y, model.criterion).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.decoder.parameters())


def test_one_channel_takes_fewer_parameters():
    assert count(create_model("mspcaps_t", in_chans=1)) == 343_744


def reference_t(weights, x):
    """MSPCaps-T in evaluation mode, layer by layer from its weights, the routing as in the paper's equations."""

    def conv_bn(x, key, stride=1):
        x = F.conv2d(x, weights[f"{key}.conv.weight"], stride=stride, padding=1)
        mean, var, gain, shift = (
            weights[f"{key}.bn.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * gain + shift

    def patchify(f, i):
        patches = F.unfold(f, 4, stride=4).view(len(f), f.shape[1], 16, -1).mean(2).transpose(1, 2)  # [b, n, c]
        key = f"patchify.{i}"
        u = patches @ weights[f"{key}.project.weight"].T + weights[f"{key}.project.bias"] + weights[f"{key}.position"]
        return F.layer_norm(u, u.shape[-1:], weights[f"{key}.norm.weight"], weights[f"{key}.norm.bias"])

    def route(u1, u2, i):
        w = weights[f"routing.{i}.w2"].permute(2, 0, 1, 3)  # the paper's [j, k, d, e]
        side = int(u2.shape[1] ** 0.5)
        under = [[2 * (k // side) + r, 2 * (k % side) + c] for k in range(side**2) for r in (0, 1) for c in (0, 1)]
        u1 = torch.stack([u1[:, row * 2 * side + column] for row, column in under], 1).view(len(u1), side**2, 4, -1)
        fine, coarse = torch.einsum("bkmd,jkde->bjkme", u1, w), torch.einsum("bkd,jkde->bjke", u2, w)
        agreement = torch.einsum("bjkme,bjke->bjkm", fine, coarse) / w.shape[-1] ** 0.5
        s = torch.einsum("bjk,bjke->bje", agreement.max(3).values.softmax(2), coarse)
        norm = s.norm(dim=-1, keepdim=True)
        return norm**2 / (1 + norm**2) * s / norm

    x, capsules = (x - weights["normalize.mean"]) / weights["normalize.std"], []
    for i in range(3):
        x = conv_bn(x, f"backbone.blocks.{i}.first", stride=1 if i == 0 else 2).relu()
        x = (conv_bn(x, f"backbone.blocks.{i}.rest.0") + x).relu()
        capsules.append(patchify(x, i))
    return route(route(capsules[0], capsules[1], 0), capsules[2], 1)


def test_the_whole_network_equals_a_functional_reference():
    torch.manual_seed(0)
    model = create_model("mspcaps_t", mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)).double()
    for _ in range(3):
        model(torch.rand(8, 3, 32, 32, dtype=torch.float64))
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        v = model.eval().forward_capsules(x)
        torch.testing.assert_close(v, reference_t(model.state_dict(), x), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in PARAMETERS if not name.startswith("mspcaps_l_p")])
def test_scores_are_the_lengths_of_the_class_capsules(name):
    torch.manual_seed(0)
    model, x = create_model(name, num_classes=6).eval(), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        capsules, scores = model.forward_capsules(x), model(x)
    assert capsules.shape[:2] == (2, 6) and capsules.dim() == 3
    assert scores.shape == (2, 6)
    torch.testing.assert_close(scores, length(capsules))
    assert (scores >= 0).all() and (scores < 1).all()


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(["mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_p2", "mspcaps_t_p3", "mspcaps_t_dr"]),
    batch=st.integers(1, 3),
    height=st.integers(0, 30),
    width=st.integers(0, 30),
    in_chans=st.integers(1, 5),
    num_classes=st.integers(2, 12),
)
def test_any_task_that_leaves_a_capsule_works(name, batch, height, width, in_chans, num_classes):
    least = LEAST.get(name, 13)
    size = (least + height, least + width)  # odd, non-square, down to the smallest
    model = create_model(name, num_classes=num_classes, in_chans=in_chans, img_size=size).eval()
    scores = model(torch.rand(batch, in_chans, *size))
    assert scores.shape == (batch, num_classes)
    assert ((scores >= 0) & (scores < 1)).all()
    margin_loss(scores, torch.zeros(batch, dtype=torch.long)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("size", "kept"), [(32, (32, 8, 2)), (16, (8, 2, 1)), (13, (4, 1, 1))])
def test_dynamic_routing_halves_the_capsules_of_each_scale_and_leaves_one(size, kept):
    """Patches of four on maps of 1, 1/2 and 1/4: at 13 pixels 3 x 3, 1 x 1 and 1 x 1 capsules."""
    model = create_model("mspcaps_t_dr", img_size=size).eval()
    with torch.no_grad():
        primary = model.forward_features(torch.rand(2, 3, size, size))
        assert tuple(routing(u).shape[1] for routing, u in zip(model.routing, primary, strict=False)) == kept


@torch.no_grad()
def test_the_ablation_with_dynamic_routing_joins_the_scales_finest_first():
    """Four times the three iterations of Sabour et al., written out: votes are of a capsule at its place."""

    def route(u, w):  # [b, i, d], [i, d, j, e] -> [b, j, e]
        votes = torch.einsum("bid,idje->bije", u, w)
        logits = torch.zeros(votes.shape[:3])
        for _ in range(3):
            s = torch.einsum("bij,bije->bje", logits.softmax(2), votes)
            norm = s.norm(dim=-1, keepdim=True)
            v = norm / (1 + norm**2) * s
            logits = logits + torch.einsum("bije,bje->bij", votes, v)
        return v

    torch.manual_seed(0)
    model, x = create_model("mspcaps_t_dr", img_size=16).eval(), torch.rand(2, 3, 16, 16)
    fine, middle, coarse = (route(u, model.routing[i].w) for i, u in enumerate(model.forward_features(x)))
    expected = route(torch.cat([fine, middle, coarse], 1), model.routing[3].w)
    torch.testing.assert_close(model.forward_capsules(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 40), (40, 2), (-4, 8), "one too few"])
def test_impossible_sizes_are_refused_with_the_nearest_that_works(name, size):
    least = LEAST[name]
    size = (least - 1, least) if size == "one too few" else size
    with pytest.raises(MspcapsError) as refusal:
        create_model(name, img_size=size)
    assert f"{size[0]} x {size[1]}" in str(refusal.value)
    nearest = tuple(
        int(side) for side in re.search(r"nearest size that works is (\d+) x (\d+)", str(refusal.value)).groups()
    )
    assert nearest == tuple(max(side, least) for side in size)
    model = shapes_only(name, img_size=nearest).eval()
    assert model(torch.empty(1, 3, *nearest, device="meta")).shape == (1, 10)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_flat_images_give_finite_scores_and_gradients(scale):
    torch.manual_seed(0)
    model = create_model("mspcaps_t")
    scores = model(torch.full((4, 3, 32, 32), scale))
    margin_loss(scores, torch.arange(4)).backward()
    assert scores.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_a_few_steps_of_training_learn_a_batch():
    torch.manual_seed(0)
    model, labels = create_model("mspcaps_t", num_classes=4), torch.arange(8) % 4
    x = 0.2 * torch.rand(8, 3, 32, 32)
    for image, label in zip(x, labels.tolist(), strict=True):  # one bright quarter per class
        row, column = divmod(label, 2)
        image[:, 16 * row : 16 * (row + 1), 16 * column : 16 * (column + 1)] += 0.6
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(margin_loss(model(x), labels))
        losses[-1].backward()
        optimizer.step()
    assert torch.equal(model(x).argmax(1), labels)
    assert losses[-1] < 0.1 * losses[0]


@torch.no_grad()
def test_the_linear_control_with_margin_loss_differs_in_nothing_else():
    plain, margin = (create_model(name).eval() for name in ("mspcaps_t_linear", "mspcaps_t_linear_margin"))
    margin.load_state_dict(plain.state_dict())
    x, labels = torch.rand(4, 3, 32, 32), torch.arange(4)
    scores = 1 / (1 + torch.exp(-plain(x)))
    torch.testing.assert_close(margin(x), scores)
    torch.testing.assert_close(margin.criterion(margin(x), labels), margin_loss(scores, labels))


@torch.no_grad()
def test_the_linear_head_sees_patch_after_patch_with_all_its_channels():
    """In the order of the capsules, which the kernels hand it too: weights trained one way answer the other."""
    torch.manual_seed(0)
    model, x = create_model("mspcaps_t_linear", img_size=(16, 32)).eval(), torch.rand(2, 3, 16, 32)
    features = []
    for maps in model.backbone(model.normalize(x)):
        rows, columns = maps.shape[2] // 4, maps.shape[3] // 4
        for row in range(rows):
            for column in range(columns):
                features.append(maps[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean((2, 3)))
    expected = torch.cat(features, 1) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n_mid", "coarse", "expected"),
    [
        (16, (2, 2), ((4, 4), (2, 2))),  # p = 4
        (64, (4, 4), ((8, 8), (4, 4))),  # p = 2
        (24, (2, 2), ((1, 24), (1, 4))),  # p = 3: 24 is not a square, so consecutive runs of 6
        (24, (2, 3), ((4, 6), (2, 3))),  # not a square either, but 2 x 2 for each of 2 x 3
        (6, (2, 3), ((2, 3), (2, 3))),
        (3, (1, 1), ((1, 3), (1, 1))),
    ],
)
def test_middle_grids_of_known_cases(n_mid, coarse, expected):
    assert middle_grids(n_mid, coarse) == expected


@settings(deadline=None, max_examples=60)
@given(coarse=st.tuples(st.integers(1, 4), st.integers(1, 4)), per_capsule=st.integers(1, 20))
def test_middle_grids_use_every_capsule_once(coarse, per_capsule):
    n = coarse[0] * coarse[1]
    fine, new_coarse = middle_grids(n * per_capsule, coarse)
    assert fine[0] * fine[1] == n * per_capsule and new_coarse[0] * new_coarse[1] == n
    assert group_size(fine, new_coarse) == per_capsule
    numbers = torch.arange(float(n * per_capsule)).view(1, -1, 1)
    assert sorted(group_fine(numbers, fine, new_coarse).flatten().tolist()) == numbers.flatten().tolist()
    windows = any(r * r == per_capsule for r in range(1, 20))
    assert (new_coarse == coarse) if windows else (fine[0] == 1)
