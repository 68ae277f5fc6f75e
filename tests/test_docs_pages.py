"""The pages that need no site to be wrong: their code runs, their tables name what is there."""

import contextlib
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mspcaps
from mspcaps.evaluation.attacks import METHODS, OBJECTIVES
from mspcaps.evaluation.attacks.diagnostics import LARGE
from mspcaps.evaluation.health import LEAST_ENTROPY, MOST_TOP
from mspcaps.models import model_options, registry, summarize
from mspcaps.training import Recipe, load_recipe, train, trainer
from mspcaps.training.ledger import find_run
from mspcaps.training.recipe import Adversary
from mspcaps.training.sweep import load_sweep

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_first_steps_are_the_readmes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert blocks("python", page("index.md")) == blocks("python", readme), "tests/test_readme.py runs it"
    named = set(re.findall(r"^make (\w+)", "".join(blocks("sh", page("index.md"))), flags=re.MULTILINE))
    assert named <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_every_source_file_that_a_page_names_is_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
    named = set(re.findall(r"`([a-z_0-9/]+/[a-z_0-9]+\.py)`", text)) - {"my/models.py"}  # the reader's own
    places = (ROOT, ROOT / "src/mspcaps", ROOT / "src/mspcaps/capsules")
    missing = {name for name in named if not any((place / name).is_file() for place in places)}
    assert len(named) > 10 and not missing


def test_the_example_of_lacaps_works() -> None:
    names: dict = {}
    for code in blocks("python", page("lacaps.md")):
        exec(code, names)
    assert names["small"].shape == names["wide"].shape == (2, 4)


@pytest.mark.slow
def test_the_example_of_a_routing_and_a_model_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))  # it is gone again afterwards
    names: dict = {}
    torch.manual_seed(0)
    for code in blocks("python", page("extend.md")):
        exec(code, names)
    assert names["scores"].shape == (2, 4) and "mspcaps_t_least" in mspcaps.list_models()
    assert names["model"].config["patch"] == 2
    routing, states = names["model"].routing[0], []
    u1, u2 = torch.randn(2, 320, 8), torch.randn(2, 80, 8)
    routing(u1, u2, states)
    agreement, coarse = states[0].fine_agreements, states[0].votes[1]
    for b, j in ((0, 0), (1, 3)):  # a plain loop over what the page says in words
        least = [min(agreement[k, b, m, j].item() for m in range(agreement.shape[2])) for k in range(80)]
        weights = [np.exp(a - max(least)) for a in least]
        v = sum(w * coarse[k, b, j] for k, w in enumerate(weights)) / sum(weights)
        expected = v * v.norm() / (1 + v.norm() ** 2)
        assert torch.allclose(routing(u1, u2)[b, j], expected, atol=1e-5)
    tiny = names["tiny"].eval()
    assert tiny.config["dim"] == 12 and tiny.num_classes == 3
    x = torch.rand(2, 3, 32, 32)
    votes = torch.einsum("bid,idje->bije", tiny.forward_features(x), tiny.routing.w).mean(1)
    norm = votes.norm(dim=-1)
    assert torch.allclose(tiny(x), norm**2 / (1 + norm**2), atol=1e-5)
    tiny.train().training_loss(x, torch.tensor([0, 2]), tiny.criterion).backward()
    assert all(p.grad is not None for p in tiny.parameters())
    (tmp_path / "tiny.toml").write_text(*blocks("toml", page("extend.md")))
    assert load_recipe(tmp_path / "tiny.toml").options == {"dim": 12}


def test_recipes_and_sweeps_as_written(tmp_path: Path) -> None:
    recipe, robust, sweep, grid = blocks("toml", page("recipes.md"))
    (tmp_path / "my.toml").write_text(recipe)
    mine = load_recipe(tmp_path / "my.toml")
    assert (mine.epochs, mine.run_name) == (30, "my-seed0")
    assert find_run(ROOT / "results", mine) is None, "it runs here, too"
    (tmp_path / "robust.toml").write_text(robust)
    assert load_recipe(tmp_path / "robust.toml").adversary == Adversary(kind="trades")
    (tmp_path / "sweep.toml").write_text(sweep)
    assert [run.run_name for run in load_sweep(tmp_path / "sweep.toml")] == [
        "paper-seed0", "paper-seed1", "paper-seed2", "paper+balance=True+epochs=30-seed0"
    ]  # fmt: skip
    (tmp_path / "grid.toml").write_text(grid)
    points = load_sweep(tmp_path / "grid.toml")
    assert len({run.run_name for run in points}) == len(points) == 20
    assert {run.fold for run in points} == {1, 2, 3, 4, 5}


def test_every_key_of_the_ledger_is_told(tmp_path: Path) -> None:
    images, labels = np.random.default_rng(0).integers(0, 255, (8, 16, 16)).astype(np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "d.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    recipe = Recipe(model="mspcaps_t_scale16", data=str(tmp_path / "d.npz"), epochs=1, batch_size=4, img_size=16)
    run = train(recipe, device="cpu", out=tmp_path, results=tmp_path).run
    table = page("recipes.md").partition("| key | meaning |")[2].partition("\n\n")[0]
    told = [
        key for row in table.splitlines() if row.startswith("| `") for key in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(told) == sorted(set(vars(run)) - {"renamed_from"})


def test_parameters_at_each_image_size_are_counted() -> None:
    told = re.findall(r"([\d,]+)\sat (\d+) px", page("python.md"))
    assert [int(size) for _, size in told] == [32, 64, 224]
    for params, size in told:
        assert params == f"{summarize('mspcaps_t', img_size=int(size)).params:,}"


def test_the_options_of_a_family_are_told() -> None:
    assert f'print(model_options("mspcaps_t"))  # {model_options("mspcaps_t")}\n' in page("python.md")


def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the images to train on and to test on; they are sorted by nothing."""
    whole = trainer.load_images

    def tenth(*args: Any) -> tuple[Any, ...]:
        return tuple(images and images.subset(slice(len(images) // 10)) for images in whole(*args))

    monkeypatch.setattr(trainer, "load_images", tenth)


class Board(types.ModuleType):
    """wandb, as far as the page uses it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.rows: list[tuple[int, dict[str, float]]] = []

    def init(self, project: str, config: dict[str, Any]) -> Any:
        self.config = config
        return contextlib.nullcontext(types.SimpleNamespace(log=lambda row, step: self.rows.append((step, row))))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_page_about_python_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fewer(monkeypatch)
    torch.manual_seed(0)
    names: dict = {}
    text = page("python.md")
    monkeypatch.setitem(sys.modules, "wandb", board := Board())
    for code in blocks("python", text):
        exec(code, names)
    shapes = [names[name].shape for name in ("scores", "capsules")] + [t.shape for t in names["primary"]]
    shapes.append(names["maps"]["map.0"].shape)
    assert list(names["maps"])[-1] == "routed.1"
    assert [str(list(shape)) for shape in shapes] == re.findall(r"\[8, [\d, ]+\]", text)
    assert names["block"].couplings.shape == (4, 8, 10) and torch.allclose(
        names["block"].couplings.sum(0), torch.ones(8, 10)
    )
    trained = [name for name, parameter in names["head"].named_parameters() if parameter.requires_grad]
    assert trained == ["routing.1.w2"] and names["head"].routing[1].w2.shape[2] == 3
    assert names["own"].name == "my pictures" and names["loss"].item() > 0
    assert names["other"].config["num_classes"] == 5 and names["result"].recipe.name == "quickstart+epochs=1"
    assert names["again"].metadata["classes"] == list(names["data"].classes)
    assert board.config["epochs"] == 1 and [step for step, _ in board.rows] == [1]
    assert sorted(board.rows[0][1]) == ["accuracy", "loss", "lr"]
    assert {len(gradients) for gradients in names["each_gradient"].values()} == {8}


@pytest.mark.slow
def test_the_code_about_robustness_runs(capsys: pytest.CaptureFixture[str]) -> None:
    data = mspcaps.load_dataset("fashionmnist_sample", "test", img_size=32)
    names: dict[str, Any] = {"mspcaps": mspcaps, "torch": torch, "data": data}
    for code in blocks("python", page("robustness.md")):
        exec(code, names)
    assert names["result"].n == 20 and (names["adversarial"] - names["x"]).abs().max() <= 8 / 255 + 1e-6


def test_the_code_about_explanations_runs() -> None:
    model = mspcaps.create_model("mspcaps_t", pretrained="cifar10")
    names: dict[str, Any] = {"mspcaps": mspcaps, "model": model, "x": torch.rand(2, 3, 32, 32)}
    (code,) = blocks("python", page("explain.md"))
    exec(code, names)
    lines = [line.partition("  # ")[0] for line in code.splitlines()[1:]]
    presence, heat, parts, couplings, tree = (eval(line, names) for line in lines)
    assert (presence.shape, heat.shape, couplings.shape) == ((2, 10), (2, 32, 32), (4, 2, 10))
    assert parts and len(tree.children) == 4, "a coarse patch each"


def test_the_rule_of_routing_health_is_that_of_the_code() -> None:
    section = page("explain.md").partition("## Routing health")[2].partition("\n## ")[0]
    rule = section.partition("collapsed if")[2].partition(". ")[0]
    assert [float(number) for number in re.findall(r"[\d.]*\d", rule)] == [LEAST_ENTROPY, MOST_TOP]


def test_the_attacks_and_objectives_that_the_page_names() -> None:
    text = page("robustness.md")
    for table, known in (
        ("| name | what it does | sees gradients |", {name: method.white_box for name, method in METHODS.items()}),
        ("| name | of scores z and the true class y |", dict.fromkeys([*OBJECTIVES, "targeted_dlr"])),
    ):
        rows = text.partition(table)[2].partition("\n\n")[0].strip().splitlines()[1:]
        assert [re.findall(r"`(\w+)`", row)[0] for row in rows] == list(known)
        assert all(
            seen is None or row.endswith("yes |") == seen for row, seen in zip(rows, known.values(), strict=True)
        )
    assert f"{METHODS['apgd'].steps} steps" in text and f"{METHODS['square'].steps:,} queries" in text
    assert f"`bim` takes {METHODS['bim'].steps} steps, `pgd` and `votes` take {METHODS['pgd'].steps}" in text
    assert METHODS["votes"].steps == METHODS["pgd"].steps
    assert f"a large eps ({LARGE:g})" in text


def test_extras_are_called_alike_everywhere() -> None:
    """In messages, README and docs, and as pyproject.toml calls them: what a message tells can be typed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    told = re.findall(r"pip install '([^']+)\[([^\]']+)\]'", "\n".join(file.read_text("utf-8") for file in files))
    assert {package for package, _ in told} == {"mspcaps"}
    assert {extra for _, extra in told} - {"{extra}"} <= extras.keys() and len(told) > 8
