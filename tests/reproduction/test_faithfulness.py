"""Deletion and insertion curves against hand-computed ones, and figures that only come from files."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mspcaps
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.explanation.tree import vote_shares
from mspcaps.files import write_json
from reproduction.pages import render
from reproduction.studies.faithfulness import (
    Setting,
    area,
    cell_means,
    curve,
    maps_of,
    measure,
    orders_of,
    ranks,
    summary,
)
from reproduction.studies.named_patches import drops, named_mask, named_patches, random_inside, random_mask
from reproduction.study_tables import (
    METHODS,
    PATCHES,
    candidates_table,
    figures,
    judge,
    methods_table,
    named_table,
    read_explanations,
)

WEIGHTS = torch.tensor([[1.0, 2.0], [0.0, 4.0]]).repeat_interleave(2, 0).repeat_interleave(2, 1) / 4


def linear(x: Tensor) -> Tensor:
    """Class 1 is a weighted sum of the pixels: the four 2 x 2 cells weigh 1, 2, 0 and 4. Class 0 is nothing."""
    return torch.stack([torch.zeros(len(x)), (x[:, 0] * WEIGHTS).sum((1, 2))], 1)


@pytest.mark.parametrize(
    ("heat", "deletion", "insertion"),
    [
        (WEIGHTS, [7, 3, 1, 0, 0], [0, 4, 6, 7, 7]),  # the truth
        (-WEIGHTS, [7, 7, 6, 4, 0], [0, 0, 1, 3, 7]),  # its opposite
    ],
)
def test_curves_of_a_linear_model_are_those_computed_by_hand(heat, deletion, insertion):
    x, labels, setting = torch.ones(1, 1, 4, 4), torch.tensor([1]), Setting(cell=2, per_step=1)
    rank = ranks(cell_means(heat[None], 2))
    covered = torch.zeros_like(x)
    for insert, expected in ((False, deletion), (True, insertion)):
        points = curve(linear, x, labels, rank, covered, setting, insert)
        torch.testing.assert_close(points[0], torch.tensor(expected, dtype=torch.float32))
        by_hand = sum((a + b) / 2 for a, b in pairwise(expected)) / 4
        assert area(points, 4, 1).item() == pytest.approx(by_hand)


def test_the_last_step_may_be_shorter():
    x, labels = torch.ones(1, 1, 4, 4), torch.tensor([1])
    rank = ranks(cell_means(WEIGHTS[None], 2))
    points = curve(linear, x, labels, rank, torch.zeros_like(x), Setting(cell=2, per_step=3), False)
    assert points.tolist() == [[7.0, 0.0, 0.0]]
    assert area(points, 4, 3).item() == pytest.approx(7 / 2 * 3 / 4)


def test_ranks_break_ties_by_chance_not_by_place():
    assert ranks(torch.tensor([[0.1, 0.9, 0.5]])).tolist() == [[2, 0, 1]]
    first = ranks(torch.zeros(1, 64))[0]
    assert sorted(first.tolist()) == list(range(64))
    assert first.tolist() != list(range(64))
    assert torch.equal(first, ranks(torch.zeros(1, 64))[0])


def test_what_does_not_fit_gets_a_sentence():
    with pytest.raises(MspcapsError, match="cells of 5 pixels do not tile images of 32 x 32"):
        cell_means(torch.zeros(1, 32, 32), 5)
    with pytest.raises(MspcapsError, match="mean or blur, not 'black'"):
        Setting(fill="black").covered(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))


def test_a_blurred_pixel_spreads_like_a_gaussian():
    """A box of 13 pixels has the variance (13 x 13 - 1) / 12 = 14, three in a row have 42, and a kurtosis near 3."""
    x, place = torch.zeros(1, 1, 49, 49), torch.arange(49.0) - 24
    x[0, 0, 24, 24] = 1
    spread = Setting(fill="blur").covered(x, torch.zeros_like(x))[0, 0]
    for side in (spread.sum(0), spread.sum(1)):
        assert side.sum().item() == pytest.approx(1, rel=1e-4)
        assert (side * place**2).sum().item() == pytest.approx(42, rel=1e-4)
        assert (side * place**4).sum().item() / 42**2 == pytest.approx(3, abs=0.5)


def tiny() -> tuple[torch.nn.Module, ImageSet]:
    torch.manual_seed(0)
    model = mspcaps.create_model("mspcaps_t_scale16", num_classes=3, in_chans=1, img_size=16).eval()
    images = torch.randint(256, (5, 1, 16, 16), dtype=torch.uint8)
    return model, ImageSet(images, torch.tensor([0, 1, 2, 0, 1]), ("a", "b", "c"), "toy")


@pytest.mark.slow
def test_measuring_is_repeatable_and_whole():
    model, data = tiny()
    settings = [Setting(8, "mean", 1), Setting(4, "blur", 8)]
    calls: list[tuple[int, int]] = []
    result = measure(model, data, settings, batch_size=3, progress=lambda done, of: calls.append((done, of)))
    assert result == measure(model.train(), data, settings, batch_size=3)
    assert all(module.training for module in model.modules()), "its mode is left as it was"
    assert calls[-1][0] == calls[-1][1] == len(calls)
    assert set(result["named"]) == {"all", "coarse"}, "a single scale has no more"
    for setting in result["settings"]:
        assert set(setting["methods"]) == set(METHODS)
        starts = {m["deletion"]["curve"][0] for m in setting["methods"].values()}
        ends = {m["insertion"]["curve"][-1] for m in setting["methods"].values()}
        assert starts == ends and len(starts) == 1, (
            "every deletion begins, and every insertion ends, at the whole image"
        )
        assert setting["methods"]["random"]["deletion"]["less_random"] == [0, 0]
    with pytest.raises(MspcapsError, match="at least two images"):
        measure(model, data.subset(slice(0, 1)), settings)


def test_better_than_random_is_lower_in_deletion_and_higher_in_insertion():
    """Two images whose curves are flat, so that an area is a height: random orders have 0.5, on average of three."""
    heights = {"part_whole": [0.2, 0.2], "gradient": [0.8, 0.8], "input_gradient": [0.2, 0.6]}
    store = {}
    for way in ("deletion", "insertion"):
        for name in METHODS:
            store[name, way] = [torch.tensor(heights.get(name, [0.5, 0.5]))[:, None].expand(2, 5)]
        store["random", way] = [torch.full((2, 5), height) for height in (0.4, 0.5, 0.6)]
    methods = summary(Setting(4, "mean", 1), store, (8, 8))["methods"]
    shares = {name: [methods[name][way]["better_than_random"] for way in ("deletion", "insertion")] for name in heights}
    assert shares == {"part_whole": [100, 0], "gradient": [0, 100], "input_gradient": [50, 50]}
    mixed = methods["input_gradient"]["deletion"]
    assert mixed["auc"] == [0.4, 0.2], "0.2 and 0.6: a deviation of 0.4 / √2, which √2 divides"
    assert mixed["less_random"] == [-0.1, 0.2] and mixed["less_gradient"] == [-0.4, 0.2]


def test_the_map_of_another_image_is_one():
    model, data = tiny()
    explanation = mspcaps.explain(model, data.images.float() / 255)
    maps = maps_of(model, explanation, explanation.ranking[:, 0])
    for name in ("part_whole", "gradient"):
        own, other = maps[name], maps[f"{name}_other"]
        whose = [[j for j in range(5) if torch.equal(other[i], own[j])] for i in range(5)]
        assert sorted(whose) == [[0], [1], [2], [3], [4]], "each is used once"
        assert all(owner != [i] for i, owner in enumerate(whose)), "and never for itself"


@pytest.mark.slow
@torch.no_grad()
def test_named_patches_are_covered_and_as_many_random_ones():
    torch.manual_seed(0)
    model = mspcaps.create_model("mspcaps_t", num_classes=3).eval()
    explanation = mspcaps.explain(model, torch.rand(2, 3, 32, 32))
    labels = explanation.ranking[:, 0]
    falls = drops(explanation, labels, seed=0)
    assert set(falls) == {"all", "coarse", "mid", "fine", "mid_adds", "fine_agrees"}
    groups = named_patches(explanation.parts(1), explanation.tree(1), 3)
    assert [len(groups[name]) for name in falls] == [7, 1, 3, 3, 3, 3]
    (centre,) = max(explanation.tree(1).children, key=lambda node: node.contribution).children
    adds = sorted(vote_shares(explanation.routing[0], 1, centre.index)[1].tolist(), reverse=True)
    assert [node.contribution for node in groups["mid_adds"]] == pytest.approx(adds[:3])
    covered = explanation.images[1].clone()
    for node in groups["mid"]:
        covered[:, node.rect.top : node.rect.bottom, node.rect.left : node.rect.right] = model.normalize.mean
    by_hand = model(explanation.images[1:])[0, labels[1]] - model(covered[None])[0, labels[1]]
    assert falls["mid"][1, 0].item() == pytest.approx(by_hand.item(), abs=1e-5)
    assert all(torch.equal(value, drops(explanation, labels, seed=0)[name]) for name, value in falls.items())
    for name, pixels in (("coarse", 256), ("mid", 192), ("fine", 48)):
        for mask in (
            named_mask(groups[name], explanation.scales),
            random_mask(groups[name], explanation.scales, torch.Generator().manual_seed(3)),
        ):
            assert int(mask.sum()) == pixels


@torch.no_grad()
def test_a_fall_by_chance_is_the_mean_of_its_draws():
    """Group after group from one generator; fine patches are drawn in the same middle patches."""
    torch.manual_seed(0)
    model = mspcaps.create_model("mspcaps_t_p2", num_classes=3, img_size=16, mean=(0.4, 0.5, 0.6)).eval()
    explanation = mspcaps.explain(model, torch.rand(2, 3, 16, 16))
    labels, generator = explanation.ranking[:, 0], torch.Generator().manual_seed(4)
    named = [named_patches(explanation.parts(i), explanation.tree(i), 3) for i in range(2)]
    for group, values in drops(explanation, labels, seed=4).items():
        falls = []
        for _ in range(8):
            masks = [
                random_inside(one["mid"], explanation.scales, generator)
                if group.startswith("fine")
                else random_mask(one[group], explanation.scales, generator)
                for one in named
            ]
            left = model(torch.where(torch.stack(masks)[:, None], model.normalize.mean, explanation.images))
            falls.append((explanation.scores - left)[range(2), labels])
        torch.testing.assert_close(values[:, 1], sum(falls) / 8, rtol=1e-3, atol=1e-6)


def test_random_fine_patches_lie_in_the_same_middle_patches():
    """Otherwise they would be compared with patches of the background."""
    torch.manual_seed(0)
    explanation = mspcaps.explain(mspcaps.create_model("mspcaps_t", num_classes=3).eval(), torch.rand(1, 3, 32, 32))
    groups = named_patches(explanation.parts(), explanation.tree(), 3)
    around, seen = named_mask(groups["mid"], explanation.scales), torch.zeros(32, 32, dtype=torch.bool)
    for seed in range(30):
        mask = random_inside(groups["mid"], explanation.scales, torch.Generator().manual_seed(seed))
        assert int(mask.sum()) == 3 * 16 and not (mask & ~around).any()
        seen |= mask
    assert torch.equal(seen, around)
    (centre,) = max(explanation.tree().children, key=lambda node: node.contribution).children
    agreeing = {node.index: node.children[0].index for node in centre.children}
    assert [node.index for node in groups["fine_agrees"]] == [agreeing[node.index] for node in groups["mid"]]


def faithfulness_block(results: Path) -> str:
    values = {
        "entries": read_explanations(results), "named_table": named_table, "methods_table": methods_table,
        "candidates_table": candidates_table, "judge": judge, "figures": figures,
    }  # fmt: skip
    return render("faithfulness.md.j2", values)


def test_candidates_are_shown_beside_the_measurement(tmp_path):
    row = {way: {"auc": [0.25, 0.01], "less_gradient": [-0.125, 0.01]} for way in ("deletion", "insertion")}
    entry = {
        "model": "m", "dataset": "toy", "split": "test", "n": 7, "images": "the first 7",
        "weights_sha256": "abcdef0123", "device": "a CPU",
        "settings": [{"cell": 4, "fill": "mean", "per_step": 1, "candidates": {"one": {"title": "a way", **row}}}],
    }  # fmt: skip
    write_json(tmp_path / "explanation" / "candidates-m-toy.json", entry)
    block = faithfulness_block(tmp_path)
    assert "| a way | 0.250 (−0.125 ± 0.010) | 0.250 (−0.125 ± 0.010) |" in block


def test_the_page_has_its_figures_from_files_only(tmp_path):
    model, data = tiny()
    entry = {
        "model": "m", "dataset": "toy", "split": "test", "n": 5, "images": "all", "random_seeds": [0, 1, 2],
        "commit": "0123456789", "weights_sha256": "abcdef0123", "device": "a CPU",
        "random_draws": 8, **measure(model, data, [Setting(8, "mean", 1)]),
    }  # fmt: skip
    write_json(tmp_path / "explanation" / "m-toy.json", entry)
    new = faithfulness_block(tmp_path)
    auc = entry["settings"][0]["methods"]["part_whole"]["deletion"]["auc"][0]
    assert f"| part-whole heat map | {auc:.3f}" in new and "n = 5" in new
    fall = entry["named"]["coarse"]["named"][0]
    assert f"| {PATCHES['coarse']} | {fall:.3f}" in new
    (tmp_path / "explanation" / "bad.json").write_text(json.dumps({"settings": []}))
    with pytest.raises(MspcapsError, match=r"bad\.json"):
        faithfulness_block(tmp_path)


@pytest.mark.parametrize(
    ("way", "difference", "verdict"),
    [
        ("deletion", -0.03, "better than"),  # lower is better, and 0.03 is more than two errors of 0.01
        ("deletion", 0.03, "worse than"),
        ("insertion", 0.03, "better than"),
        ("insertion", 0.019, "not clearly different from"),
    ],
)
def test_no_verdict_within_two_standard_errors(way, difference, verdict):
    assert judge(way, (difference, 0.01)) == verdict


def test_the_maps_are_what_their_names_say():
    """Three channels, whose slopes have different signs: their order with the absolute value matters."""
    torch.manual_seed(0)
    model = mspcaps.create_model("mspcaps_t_scale16", num_classes=3, img_size=16, mean=(0.4, 0.5, 0.6)).eval()
    explanation = mspcaps.explain(model, torch.rand(2, 3, 16, 16))
    labels = explanation.ranking[:, 0]
    maps = maps_of(model, explanation, labels)
    for i in range(2):
        x = explanation.images[i : i + 1].clone().requires_grad_()
        model(x)[0, labels[i]].backward()
        slope, mean = x.grad[0], torch.tensor([0.4, 0.5, 0.6])
        torch.testing.assert_close(maps["gradient"][i], sum(slope[c].abs() for c in range(3)))
        products = sum((explanation.images[i, c] - mean[c]) * slope[c] for c in range(3))
        torch.testing.assert_close(maps["input_gradient"][i], products.abs())
        second = int(explanation.ranking[i, 1])
        torch.testing.assert_close(maps["part_whole_second"][i], explanation.heat_map(second)[i])


def test_every_batch_has_random_orders_of_its_own():
    maps = {"part_whole": torch.rand(4, 16, 16)}
    orders = [rank for offset in (0, 1) for name, rank in orders_of(maps, Setting(4), offset) if name == "random"]
    assert len(orders) == 6 and all(rank.sort(1).values.tolist() == [list(range(16))] * 4 for rank in orders)
    assert len({tuple(row.tolist()) for rank in orders for row in rank}) == 24
