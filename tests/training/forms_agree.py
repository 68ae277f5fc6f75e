"""A run to the end in the eager form, to set beside the same run of the ledger in the captured form; needs a GPU.

`python tests/training/forms_agree.py SEED [plain]` writes results/again/; with `plain` everything is computed
in fp32. `mspcaps report` puts the two beside each other in docs/speed.md.
"""

import sys
import tempfile
from pathlib import Path

import torch

from mspcaps.training import Trainer, load_recipe, override, setup, trainer


def main(seed: int, kind: str) -> None:
    if kind == "plain":
        setup.working_precision = trainer.working_precision = lambda device: None
    recipe = override(load_recipe("paper/cifar10/mspcaps_t"), seed=seed, epochs=100, held_out=5000)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(recipe, torch.device("cuda"), form="eager", out=Path(folder), results=Path("results/again")).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), "plain" if sys.argv[2:] == ["plain"] else "eager")
