"""Two processes compute what one computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def launch(processes: int, data: Path, out: Path) -> tuple[torch.Tensor, dict]:
    import json

    out.mkdir()
    script = out / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*torchrun, str(script), str(data), str(out)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("closed") == processes and "left open" not in done.stdout
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
