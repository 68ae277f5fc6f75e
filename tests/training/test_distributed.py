"""Two processes compute what one computes."""

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from process_makers import in_processes
from safetensors.torch import load_file
from torch import nn

from mspcaps.data import Augmentation
from mspcaps.models import Model, Task, register_model, registry
from mspcaps.models.layers import BatchNorm, Dropout
from mspcaps.training import Recipe, Trainer
from mspcaps.training.distributed import SyncBatchNorm, World, group_of_one, synchronize_batchnorm

RECIPE = {"epochs": 2, "batch_size": 32, "lr": 1e-3, "warmup_epochs": 5, "img_size": 16}

SCRIPT = """
import atexit, sys, threading, torch
from pathlib import Path
from test_distributed import RECIPE, first_step, scratch_step
from mspcaps.training import Recipe, Trainer
torch.set_num_threads(1)
atexit.register(lambda: print("left open" if torch.distributed.is_initialized() else "closed"))  # the last to run
out, data = sys.argv[1:]
first_step(data, out)
scratch_step(data, out)
cpu, recipe, stop = torch.device("cpu"), Recipe(data=data, name="stopped", **RECIPE), threading.Event()
def tell(trainer):  # one process is told a step before the other
    if trainer.world.rank == 1 and trainer.steps_done == 1 and trainer.epoch == 0:
        stop.set()
first = Trainer(recipe, cpu, out=Path(out, "a"), results=Path(out, "a"), listener=tell, stop=stop)
first.write_best = lambda: (print("a checkpoint"), Trainer.write_best(first))
assert first.run() is None and first.steps_done == 1
second = Trainer(recipe, cpu, out=Path(out, "a"), results=Path(out, "a")).run()
whole = Trainer(recipe, cpu, out=Path(out, "b"), results=Path(out, "b")).run()
print("an entry" if whole.run.weights_sha256 else "no entry")
assert all(abs(a.loss - b.loss) < 1e-6 for a, b in zip(second.history, whole.history)), (second.history, whole.history)
lonely = Trainer(recipe, cpu, out=Path(out, "c"), results=Path(out, "c"))
lonely.epoch = lonely.world.rank  # as if one process saw no checkpoint
lonely.resume = lambda: None
try:
    lonely.run()
except Exception as error:
    print(f"refused: {error}")
"""


def first_step(data: str, out: str) -> None:
    """Keep gradients and statistics of the first batch, then train to the end."""
    recipe = Recipe(data=data, name="whole", augment=Augmentation(2, True, 10.0), **RECIPE)  # type: ignore[arg-type]
    trainer = Trainer(recipe, torch.device("cpu"), out=Path(out), results=Path(out))
    trainer.loader.begin(0)
    _, gradients = trainer.step.gradients()
    if trainer.world.is_main:
        statistics = {name: b.clone() for name, b in trainer.model.named_buffers() if "running" in name}
        torch.save(([g.clone() for g in gradients], statistics), f"{out}/first.pt")
    trainer.run()


class Scratch(Model):
    """PyTorch's own BatchNorm, and Dropout."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.conv, self.norm, self.drop = nn.Conv2d(task.in_chans, 8, 3, bias=False), nn.BatchNorm2d(8), Dropout(0.5)
        self.head = nn.Linear(8, task.num_classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.conv(x)).relu()).mean((2, 3))

    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(features)


def scratch_step(data: str, out: str) -> None:
    """Keep gradients and statistics of one batch of another model."""

    def scratch(task: Task) -> Model:
        return Scratch(task)

    register_model(scratch)
    trainer = Trainer(Recipe(data=data, model="scratch", **RECIPE), torch.device("cpu"), out=Path(out))  # type: ignore[arg-type]
    trainer.loader.begin(1, step=2)
    _, (gradients,) = trainer.step.gradients()
    if trainer.world.is_main:
        torch.save((gradients.clone(), dict(trainer.model.named_buffers())), f"{out}/scratch.pt")


def found_in(out: Path) -> tuple[torch.Tensor, dict, dict, dict]:
    """-> gradients of the first batch, BatchNorm statistics after it, the ledger entry and weights of the whole run."""
    (gradients,), statistics = torch.load(out / "first.pt", weights_only=True)
    (entry,), (last,) = out.glob("runs/bars/*/whole-seed0.json"), out.glob("bars/*/whole-seed0/last.safetensors")
    return gradients, statistics, json.loads(entry.read_text()), load_file(last)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_gloo_processes_equal_one_and_stop_and_go_on_together(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal reaches them at different steps; the mean loss of the interrupted epoch is still right."""
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    output = in_processes(2, SCRIPT, tmp_path / "two", str(tiny_npz))
    assert output.count("closed") == 2 and "left open" not in output
    assert output.count("refused: the processes resume from different checkpoints") == 2
    assert [output.count(words) for words in ("a checkpoint", "an entry", "no entry")] == [1, 1, 1], "one writes"
    assert output.count("; 2 epochs in batches of 32 on ") == 5, "and reports each run"
    (tmp_path / "one").mkdir()
    first_step(str(tiny_npz), str(tmp_path / "one"))
    scratch_step(str(tiny_npz), str(tmp_path / "one"))
    alone, together = (torch.load(tmp_path / which / "scratch.pt", weights_only=True) for which in ("one", "two"))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert alone[0].abs().max() > 1e-3 and alone[1]["norm.num_batches_tracked"] == 1
    one, statistics_one, entry_one, last_one = found_in(tmp_path / "one")
    both, statistics_two, entry_two, last_two = found_in(tmp_path / "two")
    assert (one - both).abs().max() < 1e-6
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(statistics_two, statistics_one, rtol=0, atol=1e-6)
    assert any((value - 1).abs().max() > 0.01 for name, value in statistics_one.items() if name.endswith("var"))
    assert (entry_one["processes"], entry_two["processes"]) == (1, 2)
    assert abs(entry_one["curve"]["loss"][0] - entry_two["curve"]["loss"][0]) < 1e-4
    last = {name: (tensor, last_two[name]) for name, tensor in last_one.items() if "running" in name}
    assert all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in last.values())
    assert any((left - 1).abs().max() > 0.1 for name, (left, _) in last.items() if name.endswith("var"))


@pytest.mark.filterwarnings("ignore:.*all_reduce is deprecated:FutureWarning")
def test_a_cumulative_average_continues_from_a_checkpoint() -> None:
    """The number of batches is a tensor of the state: neither resuming nor a CUDA graph, which repeats the Python
    numbers of its recording, restarts the average."""
    torch.manual_seed(0)
    theirs = torch.nn.BatchNorm2d(3, momentum=None)
    for _ in range(3):
        theirs(torch.randn(4, 3, 2, 2))
    model = torch.nn.Sequential(copy.deepcopy(theirs))
    with group_of_one(torch.device("cpu")) as world:
        synchronize_batchnorm(model, world)
        for x in torch.randn(2, 4, 3, 2, 2) + 5:
            model(x), theirs(x)
    torch.testing.assert_close(model[0].state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*all_reduce is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", [torch.nn.BatchNorm2d, BatchNorm])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_synchronised_batchnorm_is_batchnorm(kind: type[torch.nn.BatchNorm2d], momentum: float | None) -> None:
    """In a world of one, on a batch so small that the correction of the variance, 8 / 7, matters. It replaces PyTorch's
    layer as well as ours, and shares its parameters and statistics."""
    torch.manual_seed(0)
    theirs, model = torch.nn.BatchNorm2d(3), torch.nn.Sequential(kind(3))
    torch.nn.init.normal_(theirs.weight)
    torch.nn.init.normal_(theirs.bias)
    model[0].load_state_dict(theirs.state_dict(), strict=False)  # ours counts no batches
    theirs.momentum = model[0].momentum = momentum
    before = dict(model.state_dict(keep_vars=True))
    synchronize_batchnorm(model, World())
    (ours,) = model
    assert type(ours) is SyncBatchNorm and model.state_dict().keys() == before.keys()
    assert all(tensor is before[name] for name, tensor in model.state_dict(keep_vars=True).items())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for _ in range(2):
            x, upstream = 2 * torch.randn(2, 3, 2, 2) + 1, torch.randn(2, 3, 2, 2)
            results = []
            for layer in (ours, theirs):
                leaf = x.clone().requires_grad_()
                y = layer(leaf)
                results.append((y, *torch.autograd.grad(y, [leaf, layer.weight, layer.bias], upstream)))
            torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    finally:
        dist.destroy_process_group()
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.eval()(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)
