"""Explanations against plain loops, sums that must come out, every model, and sentences for bad input."""

import itertools

import pytest
import torch
from torch import Tensor

import mspcaps
from mspcaps.capsules.routing.cross_agreement import group_size
from mspcaps.errors import MspcapsError
from mspcaps.explanation import Explanation, Node, Rect, Scale, explain
from mspcaps.explanation.geometry import default_scales, smooth
from mspcaps.explanation.heat import ORDERS, effects, orders_of
from mspcaps.explanation.tree import strongest_parts, vote_shares
from mspcaps.models import Model, Task

NAMES = [
    "mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_p2", "mspcaps_t_p3", "mspcaps_t_scale32", "mspcaps_t_scale16",
    "mspcaps_t_scale8", "mspcaps_t_scale32_16",
]  # fmt: skip
SIZES = [("mspcaps_t", (32, 48)), ("mspcaps_t", (29, 21)), ("mspcaps_t_scale32_16", (16, 24))]
# patches of 2 pixels are as many on an image of 16 as those of 4 on one of 32
CASES = [*((name, (16, 16) if name == "mspcaps_t_p2" else (32, 32)) for name in NAMES), *SIZES]


def trained(name: str, size: tuple[int, int] = (32, 32), classes: int = 5) -> torch.nn.Module:
    """Random weights, but statistics and positions that make the images matter."""
    torch.manual_seed(0)
    model = mspcaps.create_model(name, num_classes=classes, in_chans=3, img_size=size, mean=(0.4, 0.5, 0.6))
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(8, 3, *size))
    return model.eval()


def made(name: str = "mspcaps_t", size: tuple[int, int] = (32, 32), b: int = 2) -> tuple[torch.nn.Module, Explanation]:
    model = trained(name, size)
    return model, explain(model, torch.rand(b, 3, *size, generator=torch.Generator().manual_seed(1)))


def nodes(root: Node, kind: str) -> list[Node]:
    return [node for node in root.walk() if node.kind == kind]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), CASES)
def test_sums_come_out(name, size):
    model, found = made(name, size)
    torch.testing.assert_close(found.scores, model(found.images).detach())
    assert torch.equal(found.presence, found.scores)
    for state in found.routing:
        torch.testing.assert_close(state.couplings.sum(0), torch.ones_like(state.couplings[0]))
    _, contributions = vote_shares(found.routing[-1], 1, 2)
    torch.testing.assert_close(contributions.sum(), found.evidence[1, 2], rtol=1e-4, atol=1e-5)
    assert found.tree(1, 2).length == pytest.approx(float(found.evidence[1, 2]), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), CASES)
def test_effects_of_every_scale_add_up_to_what_the_image_has_over_a_blank_one(name, size):
    model, found = made(name, size)
    blank = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1).expand(1, 3, *size)
    nothing = length_before_squash(model(blank))[0]
    torch.testing.assert_close(found.blank_evidence, nothing, rtol=1e-3, atol=1e-4)
    for label in (0, 3):
        wanted = length_before_squash(model(found.images))[:, label] - nothing[label]
        for values in found.effects(label):
            torch.testing.assert_close(values.sum(1), wanted, rtol=1e-3, atol=1e-4)
        heat = found.heat_map(label)
        assert heat.shape == (2, *size)
        torch.testing.assert_close(heat.sum((1, 2)), wanted, rtol=1e-3, atol=1e-4)


def length_before_squash(scores: Tensor) -> Tensor:
    """squash makes |s|^2 / (1 + |s|^2) of |s|; this is the way back."""
    return (scores / (1 - scores)).sqrt().detach()


@torch.no_grad()
def test_effects_are_those_of_plain_loops():
    """Middle scale of one image: uncover square after square by hand and watch the class."""
    model, found = made("mspcaps_t", b=1)
    x, mean, wanted = found.images[0], torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.zeros(16)
    for order in orders_of(16, ORDERS):
        canvas = mean.expand(3, 32, 32).clone()
        before = length_before_squash(model(canvas[None]))[0, 2]
        for number in order.tolist():
            top, left = 8 * (number // 4), 8 * (number % 4)
            canvas[:, top : top + 8, left : left + 8] = x[:, top : top + 8, left : left + 8]
            now = length_before_squash(model(canvas[None]))[0, 2]
            wanted[number] += (now - before) / ORDERS
            before = now
    torch.testing.assert_close(found.effects(2)[1][0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_few_patches_have_their_exact_shapley_values():
    """Coarse scale of one image: all 24 orders of its four patches, by hand."""
    model, found = made("mspcaps_t", b=1)
    x, mean, wanted = found.images[0], torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.zeros(4)
    for order in itertools.permutations(range(4)):
        canvas = mean.expand(3, 32, 32).clone()
        before = length_before_squash(model(canvas[None]))[0, 2]
        for number in order:
            rows, columns = (slice(16 * place, 16 * place + 16) for place in divmod(number, 2))
            canvas[:, rows, columns] = x[:, rows, columns]
            now = length_before_squash(model(canvas[None]))[0, 2]
            wanted[number] += (now - before) / 24
            before = now
    torch.testing.assert_close(found.effects(2)[2][0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 4, 64])
def test_every_order_is_whole_and_has_its_opposite(n):
    found = list(orders_of(n, ORDERS))
    assert len(found) == ORDERS
    assert all(sorted(order.tolist()) == list(range(n)) for order in found)
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(found[::2], found[1::2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found, orders_of(n, ORDERS), strict=True)), "the same every time"


class WeightedSum(Model):
    """Scores are weighted sums of the pixels, five of them, and add up to nothing."""

    def __init__(self) -> None:
        super().__init__(Task(5, 3, (32, 32), mean=(0.4, 0.5, 0.6), std=(1.0, 1.0, 1.0)))
        weights = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        self.weights = weights - weights.mean(0)

    def forward_features(self, x: Tensor) -> Tensor:
        return x

    def forward_head(self, features: Tensor) -> Tensor:
        return torch.einsum("bchw,jchw->bj", features, self.weights)


def test_effects_of_a_sum_are_its_terms():
    """Worked out by hand: the effect of a patch on a weighted sum of pixels is its part of the sum."""
    model, x = WeightedSum(), torch.rand(3, 3, 32, 32)
    mean = torch.tensor(model.config["mean"]).view(3, 1, 1)
    terms = ((x - mean)[:, None] * model.weights).sum(2)  # [b, j, h, w]
    scales = default_scales((32, 32))
    for scale, values in zip(scales, effects(model, x, scales), strict=True):
        by_hand = torch.nn.functional.avg_pool2d(terms, scale.cell).flatten(2) * scale.cell**2  # [b, j, n]
        torch.testing.assert_close(values, by_hand.transpose(1, 2), rtol=1e-3, atol=1e-3)


def test_a_blank_image_has_an_empty_heat_map():
    model = trained("mspcaps_t")
    found = explain(model, torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    assert found.heat_map(0).abs().max() < 1e-5


@pytest.mark.parametrize(("name", "size"), CASES)
def test_rectangles_tile_the_image(name, size):
    _, found = made(name, size, b=1)
    for scale in found.scales:
        covered = torch.zeros(size, dtype=torch.int64)
        for index in range(scale.grid[0] * scale.grid[1]):
            rect = scale.rect(index)
            assert rect.top < rect.bottom and rect.left < rect.right
            covered[rect.top : rect.bottom, rect.left : rect.right] += 1
        rows, columns = (min(n * scale.cell, side) for n, side in zip(scale.grid, size, strict=True))
        assert (covered[:rows, :columns] == 1).all()
        assert covered.sum() == rows * columns  # patches of 3 drop the border
        if "p3" not in name and size == (32, 32):
            assert (rows, columns) == size
        one = torch.zeros(1, scale.grid[0] * scale.grid[1])
        one[0, -1] = 2.0
        assert (scale.owners()[rect.top : rect.bottom, rect.left : rect.right] == index).all()
        inside = scale.spread(one)[0, rect.top : rect.bottom, rect.left : rect.right]
        torch.testing.assert_close(inside.sum(), torch.tensor(2.0))
        assert (inside == inside[0, 0]).all()


def best_by_loop(model: torch.nn.Module, u1: Tensor, u2: Tensor, block: int, j: int, k: int) -> int:
    """The number of the fine capsule under k that agrees most with it, for one image: the paper's words in loops."""
    routing = model.routing[block]
    (rows, columns), (high, wide) = routing.fine, routing.coarse
    r, c = rows // high, columns // wide
    vote = u2[k] @ routing.w2[k, :, j]
    best, found = -float("inf"), -1
    for row in range(r):
        for column in range(c):
            number = (k // wide * r + row) * columns + k % wide * c + column
            weights = routing.w2[k] if routing.w1 is None else routing.w1[k * r * c + row * c + column]
            agreement = float((u1[number] @ weights[:, j]) @ vote) / routing.d_out**0.5
            if agreement > best:
                best, found = agreement, number
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mspcaps_t", "mspcaps_t_unshared", "mspcaps_t_p3", "mspcaps_t_scale32_16"])
@torch.no_grad()
def test_the_tree_follows_the_same_winners_as_plain_loops(name):
    model, found = made(name)
    u, label = model.forward_features(found.images), 2
    root = found.tree(1, label)
    deep = len(model.routing) == 2
    top = [model.routing[0](u[0], u[1]), u[2]] if deep else [u[0], u[-1]]
    for coarse in root.children:
        (below,) = coarse.children
        assert below.index == best_by_loop(model, top[0][1], top[1][1], len(model.routing) - 1, label, coarse.index)
        for mid in below.children:
            (fine,) = mid.children
            assert fine.index == best_by_loop(model, u[0][1], u[1][1], 0, below.index, mid.index)
    assert bool(nodes(root, "middle")) == deep


@pytest.mark.slow
def test_nodes_know_where_they_are():
    model, found = made("mspcaps_t", (32, 48))
    root = found.tree(0)
    assert root.index == int(model(found.images)[0].argmax())
    assert sum(node.contribution for node in root.children) == pytest.approx(root.length, rel=1e-4)
    assert sum(node.coupling for node in root.children) == pytest.approx(1, rel=1e-5)
    assert [node.contribution for node in root.children] == sorted(
        (n.contribution for n in root.children), reverse=True
    )
    for middle in nodes(root, "middle"):
        assert middle.rect is None
        assert sum(node.contribution for node in middle.children) == pytest.approx(middle.length, rel=1e-4)
    effects = found.effects(root.index)
    for node in nodes(root, "patch"):
        side = 4 * 2**node.scale
        row, column = node.place
        assert node.rect == (row * side, column * side, (row + 1) * side, (column + 1) * side)
        assert node.effect == pytest.approx(float(effects[node.scale][0, node.index]), rel=1e-3, abs=1e-5)
    assert {node.scale for node in nodes(root, "patch")} == {0, 1, 2}
    assert len(root.children) == 6
    assert group_size(model.routing[0].fine, model.routing[0].coarse) == found.routing[0].fine_agreements.shape[2]


@pytest.mark.slow
def test_permuting_the_classes_permutes_the_explanation():
    model, found = made()
    order = torch.tensor([3, 0, 4, 1, 2])
    assert len(found.all_effects) == 3  # worked out before the model changes
    with torch.no_grad():
        model.routing[1].w2.copy_(model.routing[1].w2[:, :, order])
    again = explain(model, found.images)
    torch.testing.assert_close(again.scores, found.scores[:, order])
    for new, old in enumerate(order.tolist()):
        torch.testing.assert_close(again.heat_map(new), found.heat_map(old), rtol=1e-3, atol=1e-6)
        ours, theirs = again.tree(0, new), found.tree(0, old)
        assert [node.index for node in ours.walk()][1:] == [node.index for node in theirs.walk()][1:]


def test_a_model_that_has_changed_is_not_asked_about_an_old_answer():
    model, found = made("mspcaps_t_scale8")
    with torch.no_grad():
        model.routing[0].w2.mul_(0.5)
    with pytest.raises(MspcapsError):
        found.heat_map(0)


def test_names_of_too_few_classes_are_refused():
    model = mspcaps.create_model("mspcaps_t")
    model.metadata = {"classes": ["a", "b"]}
    with pytest.raises(MspcapsError, match=r"2 .* 10"):
        explain(model, torch.rand(1, 3, 32, 32))


@pytest.mark.slow
def test_classes_by_name_and_images_by_themselves():
    model = trained("mspcaps_t")
    model.metadata = {"classes": ["a", "b", "c", "d", "e"]}
    x = torch.rand(3, 3, 32, 32)
    found = explain(model, x)
    torch.testing.assert_close(found.heat_map("c"), found.heat_map(2))
    winners = found.ranking[:, 0]
    for i in range(3):
        alone = explain(model, x[i : i + 1]).heat_map(int(winners[i]))[0]
        torch.testing.assert_close(found.heat_map(winners)[i], alone, rtol=1e-3, atol=1e-6)
    with pytest.raises(MspcapsError, match=r"'f'.*a, b, c, d, e"):
        found.heat_map("f")
    with pytest.raises(MspcapsError, match=r"0 to 4.*5"):
        found.tree(0, 5)


@pytest.mark.slow
def test_the_model_is_left_as_it_was():
    model = trained("mspcaps_t").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = explain(model, torch.rand(2, 3, 32, 32))
    found.heat_map(0)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "x", "offending"),
    [
        ("resnet20", torch.rand(1, 1, 32, 32), "3 x 32 x 32 .*1 x 32 x 32"),
        ("mspcaps_t", torch.rand(1, 1, 32, 32), "3 x 32 x 32 .*1 x 32 x 32"),
        ("mspcaps_t", torch.rand(3, 32, 32), r"\(3, 32, 32\)"),
        ("mspcaps_t", torch.zeros(0, 3, 32, 32), r"\(0, 3, 32, 32\)"),
        ("mspcaps_t", torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "uint8"),
        ("mspcaps_t", torch.full((1, 3, 32, 32), 7.0), r"\[0, 1\]"),
        ("mspcaps_t", torch.full((1, 3, 32, 32), float("nan")), r"\[0, 1\]"),
    ],
)
def test_what_cannot_be_explained_gets_a_sentence(name, x, offending):
    with pytest.raises(MspcapsError, match=offending):
        mspcaps.explain(mspcaps.create_model(name), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "mspcaps_t_dr", "mspcaps_t_self", "mspcaps_t_linear_margin"])
@torch.no_grad()
def test_a_model_without_a_tree_has_heat_maps_all_the_same(name):
    model, found = made(name)
    torch.testing.assert_close(found.scores, model(found.images))
    assert bool((found.presence >= 0).all()) and bool((found.presence <= 1).all())
    if model.scores == "logits":
        torch.testing.assert_close(found.presence.sum(1), torch.ones(2))
        torch.testing.assert_close(found.evidence, found.scores - found.scores.mean(1, keepdim=True))
    wanted = found.evidence[:, 3] - found.blank_evidence[3]
    for values in found.effects(3):
        torch.testing.assert_close(values.sum(1), wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.heat_map(3).sum((1, 2)), wanted, rtol=1e-3, atol=1e-4)
    assert [node.scale for node in found.parts()] == [2, 1, 1, 1, 0, 0, 0]
    assert len(found.routing) == {"mspcaps_t_dr": 4, "mspcaps_t_self": 2}.get(name, 0)
    assert not found.has_tree
    with pytest.raises(MspcapsError, match=name):
        found.tree(0)


def test_mean_agreement_has_a_tree():
    _, found = made("mspcaps_t_mean", b=1)
    assert {node.kind for node in found.tree(0).walk()} == {"class", "patch", "middle"}


@pytest.mark.parametrize("size", [(32, 32), (29, 21), (20, 50), (224, 224), (5, 9), (1, 1)])
def test_patches_of_a_model_that_has_none_of_its_own(size):
    scales = default_scales(size)
    assert all(max(scale.grid) <= most for scale, most in zip(scales, (8, 4, 2), strict=False))
    for scale in scales:
        covered = torch.zeros(size, dtype=torch.int64)
        for index in range(scale.grid[0] * scale.grid[1]):
            rect = scale.rect(index)
            covered[rect.top : rect.bottom, rect.left : rect.right] += 1
            assert rect.top < rect.bottom and rect.left < rect.right and scales[0].inside(rect)
        assert (covered == 1).all()


def test_which_fine_patches_lie_in_a_coarse_one():
    assert Scale(4, (8, 8), (32, 32)).inside(Rect(8, 16, 16, 24)) == [20, 21, 28, 29]
    assert Scale(2, (5, 5), (10, 10)).inside(Rect(9, 9, 10, 10)) == [24], "no patch begins there"


def test_a_cell_ends_where_the_image_does():
    """29 x 21 pixels, patches of 16: the second row and column have 13 and 5 of them."""
    assert Scale(16, (2, 2), (29, 21)).rect(3) == (16, 16, 29, 21)


def test_the_strongest_patches_speak_for_the_class():
    """One that speaks against it as loudly as any is not among them."""
    scales = [Scale(1, (2, 2), (2, 2)), Scale(1, (2, 2), (2, 2)), Scale(2, (1, 1), (2, 2))]
    heat = torch.tensor([1.0, -5.0, 3.0, 0.0])
    parts = strongest_parts([heat, heat, heat.sum(0, keepdim=True)], scales)
    assert [node.index for node in parts if node.scale == 1] == [2, 0, 3]


def test_what_a_map_adds_up_to_in_each_cell():
    scale = Scale(3, (2, 1), (7, 5))  # a row below and two columns beside the cells go with their neighbours
    heat = torch.arange(35.0).view(1, 7, 5)
    assert scale.gather(heat).tolist() == [[heat[0, :3].sum(), heat[0, 3:].sum()]]


def test_smoothing_moves_little_and_loses_nothing():
    heat = torch.zeros(1, 21, 24)
    heat[0, 8:12, 8:12] = 1.0
    drawn = smooth(heat, 4)
    assert float(drawn.sum()) == pytest.approx(16, rel=1e-5)
    places = torch.exp(-4.5 * (torch.arange(-4, 5) / 4) ** 2)  # the middle of a Gaussian, by hand
    places /= places.sum()
    along = sum(places[4 + 9 - c] for c in range(8, 12))
    assert float(drawn[0, 9, 9]) == pytest.approx(float(along**2), rel=1e-5)
    assert float(drawn.max()) <= 1 and float(drawn[0, 3].abs().max()) == 0
    torch.testing.assert_close(smooth(torch.full((2, 5, 6), 0.3), 4), torch.full((2, 5, 6), 0.3))


def test_the_tree_goes_on_with_the_capsule_that_sets_the_coupling():
    """Not everybody takes the maximum: docs/extend.md has a routing that takes the minimum."""
    model = trained("mspcaps_t")
    for block in model.routing:
        block.pool = lambda agreements: agreements.amin(2)
    found = explain(model, torch.rand(1, 3, 32, 32))
    least = found.routing[1].fine_agreements[:, 0, :, found.ranking[0, 0]].amin(1)  # [k]
    (middle,) = zip(*(node.children for node in found.tree(0).children), strict=True)
    assert sorted(node.agreement for node in middle) == pytest.approx(sorted(least.tolist()))


@torch.no_grad()
def test_a_model_in_training_is_explained_as_it_would_answer():
    """By the statistics that it has learnt, not by those of the images that are asked about."""
    model, x = trained("mspcaps_t_scale16", (16, 16)), torch.rand(2, 3, 16, 16)
    found = explain(model.train(), x)
    heat = found.heat_map(0)
    assert model.training
    torch.testing.assert_close(found.scores, model.eval()(x))
    torch.testing.assert_close(heat, explain(model, x).heat_map(0))
