"""Several processes compute what one computes, in three families; a killed one costs only time."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from process_makers import in_processes
from safetensors.torch import load_file
from test_distributed import Scratch
from torch import Tensor

from mspcaps.bench.variants import EngineRun, Task
from mspcaps.models.model import make_task
from mspcaps.training import Recipe, Trainer
from mspcaps.training.distributed import fresh_store, group_of_one, synchronize_batchnorm
from mspcaps.training.loader import Loader

FAMILIES = ("mspcaps_t", "da_capsnet", "deepcaps")
RECIPE: dict[str, Any] = {"epochs": 1, "batch_size": 32, "img_size": 16, "optimizer": "sgd", "lr": 1e-2}
CPU = torch.device("cpu")

FAMILIES_SCRIPT = """
import sys, torch
from test_processes import train_families
torch.set_num_threads(1)
train_families(*sys.argv[1:])
"""


def train_families(out: str, data: str) -> None:
    """Train each for an epoch of three steps, after saving the gradients of the first batch to files."""
    for model in FAMILIES:
        recipe = Recipe(model=model, data=data, name="whole", **RECIPE)
        trainer = Trainer(recipe, CPU, out=Path(out), results=Path(out))
        trainer.loader.begin(0)
        loss, gradients = trainer.step.gradients()
        (loss,) = trainer.world.all_reduce_mean([loss.detach()])
        if trainer.world.is_main:
            torch.save((loss, [g.clone() for g in gradients]), f"{out}/{model}.pt")
        Trainer(recipe, CPU, out=Path(out), results=Path(out)).run()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "processes", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.soak)]
)
def test_processes_equal_one(processes: int, tiny_npz: Path, tmp_path: Path) -> None:
    """Gradients, loss, and weights and BatchNorm statistics after an epoch."""
    in_processes(processes, FAMILIES_SCRIPT, tmp_path / "many", str(tiny_npz))
    (tmp_path / "one").mkdir()
    train_families(str(tmp_path / "one"), str(tiny_npz))
    for model in FAMILIES:
        one, many = (torch.load(tmp_path / which / f"{model}.pt", weights_only=True) for which in ("one", "many"))
        torch.testing.assert_close(many, one, rtol=0, atol=1e-6)
        assert max(g.abs().max() for g in one[1]) > 1e-3
        folders = [tmp_path / which / "bars" / model / "whole-seed0" for which in ("one", "many")]
        alone, together = (load_file(folder / "last.safetensors") for folder in folders)
        torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
        entry = json.loads((tmp_path / "many" / "runs" / "bars" / model / "whole-seed0.json").read_text())
        assert entry["processes"] == processes and entry["recipe"]["sync_batchnorm"] is True


APART_SCRIPT = """
import sys, torch
from test_processes import train_apart
torch.set_num_threads(1)
train_apart(*sys.argv[1:])
"""


def train_apart(out: str, data: str) -> None:
    """A step with each process's own BatchNorm statistics, and a whole run."""
    recipe = Recipe(data=data, name="apart", sync_batchnorm=False, **RECIPE | {"epochs": 2, "ema": 0.5})
    trainer = Trainer(recipe, CPU, out=Path(out), results=Path(out))
    trainer.loader.begin(0)
    _, gradients = trainer.step.gradients()
    own = {name: b.clone() for name, b in trainer.model.named_buffers()}
    trainer.share_statistics()
    shared = {name: b.clone() for name, b in trainer.model.named_buffers()}
    torch.save((gradients, own, shared), f"{out}/{trainer.world.rank}.pt")
    result = Trainer(recipe, CPU, out=Path(out), results=Path(out)).run()
    assert result is not None
    torch.save([row.accuracy for row in result.history], f"{out}/accuracy{trainer.world.rank}.pt")


def share_alone(data: Path, out: Path, rank: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Gradients and statistics of one of two shares of the first batch, in a single process."""
    trainer = Trainer(Recipe(data=str(data), name="share", **RECIPE), CPU, out=out, results=out)
    whole = trainer.loader
    share = Loader(trainer_images(trainer), 32, whole.augment, whole.seed, rank, world=2)
    share.begin(0)
    trainer.step.loader = share
    _, gradients = trainer.step.gradients()
    return [g.clone() for g in gradients], {name: b.clone() for name, b in trainer.model.named_buffers()}


def trainer_images(trainer: Trainer) -> Any:
    from mspcaps.data import ImageSet

    return ImageSet(trainer.loader.images, trainer.loader.labels, trainer.classes, "bars")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_statistics_of_each_process_alone(tiny_npz: Path, tmp_path: Path) -> None:
    """As in PyTorch's DistributedDataParallel: the gradient is the mean over the shares, each normalised by itself,
    and what is evaluated and saved has the statistics of the main process."""
    in_processes(2, APART_SCRIPT, tmp_path / "two", str(tiny_npz))
    states = [torch.load(tmp_path / "two" / f"{rank}.pt", weights_only=True) for rank in range(2)]
    alone = [share_alone(tiny_npz, tmp_path / "one", rank) for rank in range(2)]
    mean = [(a + b) / 2 for a, b in zip(alone[0][0], alone[1][0], strict=True)]
    for rank, (gradients, own, shared) in enumerate(states):
        torch.testing.assert_close(gradients, mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(own, alone[rank][1], rtol=0, atol=1e-6)
        torch.testing.assert_close(shared, alone[0][1], rtol=0, atol=1e-6)
    var = [name for name in states[0][1] if name.endswith("running_var")]
    assert any((states[0][1][name] - states[1][1][name]).abs().max() > 1e-3 for name in var), "the shares differ"
    first, second = (torch.load(tmp_path / "two" / f"accuracy{rank}.pt", weights_only=True) for rank in range(2))
    assert first == second


KILLED_SCRIPT = """
import os, signal, sys, torch, mspcaps
from test_processes import RECIPE
from mspcaps.training import Recipe
torch.set_num_threads(1)
out, data, life = sys.argv[1], sys.argv[2], os.environ["TORCHELASTIC_RESTART_COUNT"]
def tell(trainer):
    if trainer.world.rank == int(sys.argv[3]) and life == "0" and (trainer.epoch, trainer.steps_done) == (1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
recipe = Recipe(data=data, name="killed", **RECIPE | {"epochs": 3})
result = mspcaps.train(recipe, device="cpu", out=out, results=out, save_every=0.0, listener=tell)
print(f"life {life} of {os.environ['RANK']}: {len(result.history)} epochs")
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.slow), pytest.param(0, marks=pytest.mark.soak)])
def test_a_killed_process_resumes_from_the_checkpoint(rank: int, tiny_npz: Path, tmp_path: Path) -> None:
    """kill -9 in the second of three epochs; torchrun restarts both, and the ledger entry is the same."""
    output = in_processes(2, KILLED_SCRIPT, tmp_path / "killed", str(tiny_npz), str(rank), restarts=1)
    ends = re.findall(r"life \d of \d: \d epochs", output)  # not line by line: two processes write at the same time
    assert sorted(ends) == [f"life 1 of {rank}: 3 epochs" for rank in range(2)]
    assert "continues after step" in output
    in_processes(2, KILLED_SCRIPT, tmp_path / "whole", str(tiny_npz), "-1")
    one, other = (read_entry(tmp_path / which) for which in ("whole", "killed"))
    for different in ("seconds",):
        del one[different], other[different]
    assert other == one and one["processes"] == 2 and one["epochs"] == 3
    assert not list((tmp_path / "killed").rglob("checkpoint*"))


def read_entry(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "runs").rglob("*.json")
    return json.loads(path.read_text())


def test_leftovers_of_killed_processes_in_the_store_are_ignored() -> None:
    """Three processes, as threads: they agree on a part of the store that is empty."""
    store, threads = dist.HashStore(), ThreadPoolExecutor(3)
    lives = []
    for life in range(2):
        joined = [threads.submit(fresh_store, store, rank, 3) for rank in (1, 0, 2)]
        stores = [future.result(timeout=20) for future in joined]
        assert not any(fresh.check(["address"]) for fresh in stores)
        stores[0].set("address", str(life))
        lives.append([fresh.get("address").decode() for fresh in stores])
    assert lives == [["0"] * 3, ["1"] * 3]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_messages_inside_compiled_code() -> None:
    """What the engine cudagraph records: gradients through synchronised BatchNorm, compiled and eager."""
    images, results = Task(batch_size=8, img_size=16, num_classes=3, images=24), []
    with group_of_one(CPU) as world:
        for engine in ("eager", "compile"):
            torch.manual_seed(0)
            model = Scratch(make_task("scratch", 3, 3, 16, None, None))
            synchronize_batchnorm(model, world)
            run = EngineRun(model, images.data(), images, engine, world=world)  # type: ignore[arg-type]
            loss, gradients = run.step.gradients()
            results.append((loss.detach(), gradients, dict(model.named_buffers())))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
