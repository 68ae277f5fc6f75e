"""Two processes compute what one computes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = """
import atexit, sys, torch
from pathlib import Path
from mspcaps.data import Augmentation
from mspcaps.training import Recipe, Trainer
torch.set_num_threads(1)
atexit.register(lambda: print("left open" if torch.distributed.is_initialized() else "closed"))  # the last to run
data, out = sys.argv[1:]
recipe = Recipe(data=data, epochs=2, batch_size=32, lr=1e-3, image_size=16, augment=Augmentation(2, True, 10.0))
trainer = Trainer(recipe, torch.device("cpu"), out=Path(out), results=Path(out))
trainer.plan.begin(0)
loss, gradients = trainer.step.gradients()
if trainer.world.leads:
    torch.save([g.clone() for g in gradients], out + "/gradients.pt")
trainer.run()
"""

STOPPED = """
import sys, threading, torch
from pathlib import Path
from mspcaps.training import Recipe, Trainer
torch.set_num_threads(1)
data, out = sys.argv[1:]
recipe = Recipe(data=data, epochs=2, batch_size=32, lr=1e-3, image_size=16)
stop = threading.Event()
def tell(trainer):  # one process hears of it a step before the other
    if trainer.world.rank == 1 and trainer.steps_done == 1 and trainer.epoch == 0:
        stop.set()
first = Trainer(recipe, torch.device("cpu"), out=Path(out, "a"), results=Path(out, "a"), listener=tell, stop=stop)
assert first.run() is None and first.steps_done == 1
second = Trainer(recipe, torch.device("cpu"), out=Path(out, "a"), results=Path(out, "a")).run()
whole = Trainer(recipe, torch.device("cpu"), out=Path(out, "b"), results=Path(out, "b")).run()
assert all(abs(a.loss - b.loss) < 1e-6 for a, b in zip(second.history, whole.history)), (second.history, whole.history)
lonely = Trainer(recipe, torch.device("cpu"), out=Path(out, "c"), results=Path(out, "c"))
lonely.epoch = lonely.world.rank  # as if one process had seen no checkpoint
lonely.resume = lambda: None
try:
    lonely.run()
except Exception as error:
    print(f"refused: {error}")
"""


def torchrun(processes: int, text: str, data: Path, out: Path) -> str:
    out.mkdir()
    script = out / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([*command, str(script), str(data), str(out)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launch(processes: int, data: Path, out: Path) -> tuple[torch.Tensor, dict]:
    said = torchrun(processes, SCRIPT, data, out)
    assert said.count("closed") == processes and "left open" not in said
    (entry,) = out.rglob("*seed0.json")
    return torch.load(out / "gradients.pt", weights_only=True)[0], json.loads(entry.read_text())


@pytest.mark.timeout(240)
def test_two_gloo_processes_equal_one(tiny_npz: Path, tmp_path: Path) -> None:
    one, entry_one = launch(1, tiny_npz, tmp_path / "one")
    two, entry_two = launch(2, tiny_npz, tmp_path / "two")
    assert (one - two).abs().max() < 1e-6
    assert one.abs().max() > 1e-3
    assert entry_two["processes"] == 2
    assert abs(entry_one["curve"]["loss"][0] - entry_two["curve"]["loss"][0]) < 1e-4
    (a,), (b,) = ((tmp_path / which).rglob("last.safetensors") for which in ("one", "two"))
    statistics = {name: (tensor, load_file(b)[name]) for name, tensor in load_file(a).items() if "running" in name}
    assert all(torch.allclose(*pair, rtol=0.05, atol=0.02) for pair in statistics.values())
    assert any((left - 1).abs().max() > 0.1 for name, (left, _) in statistics.items() if name.endswith("var"))


@pytest.mark.timeout(240)
def test_processes_stop_together_and_go_on_together(tiny_npz: Path, tmp_path: Path) -> None:
    """A signal reaches them at different steps; the mean loss of the epoch that was interrupted is right afterwards."""
    said = torchrun(2, STOPPED, tiny_npz, tmp_path / "two")
    assert said.count("refused: the processes go on from different checkpoints: all must see one ") == 2
