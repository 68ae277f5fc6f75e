"""Accuracy on changed images of many trained networks in one process; `mspcaps eval --shifts` measures one of them.

    python -m reproduction.studies.shifts mspcaps_t.cifar10 runs/mnist40/*/pose-seed*/last.safetensors

writes results/robustness/shifts-*.json and the figures; `make regenerate` then writes the tables. A network that has an
entry is skipped.
"""

from pathlib import Path

from mspcaps.bench.result import environment
from mspcaps.evaluation import ShiftEvaluation, ShiftResult, evaluate_shifts, load_for, write_shifts
from mspcaps.evaluation.shift_results import read_shifts
from mspcaps.files import sha256_of
from mspcaps.models import load_model
from mspcaps.models.shipped import weights_path
from mspcaps.progress import Progress
from mspcaps.training import choose_device

UNKNOWN = ShiftEvaluation(0.0, {}, 0, 0)


def main(weights: list[str], results: Path = Path("results"), device: str | None = None) -> None:
    """Each on the test images of what it was trained on."""
    where, data = choose_device(device), {}
    machine = environment(where)
    for name in weights:
        model, digest = load_model(name), sha256_of(weights_path(name))
        key = (model.metadata["recipe"]["data"], *model.config["img_size"])
        if key not in data:
            data[key] = load_for(model).to(where)
        path = results / ShiftResult.of(model, data[key].name, UNKNOWN).path
        if path.is_file() and read_shifts(path).weights_sha256 == digest:
            print(f"{path} exists")
            continue
        with Progress("images") as progress:
            evaluation = evaluate_shifts(model, data[key], device=where, progress=progress.update)
        write_shifts(results, ShiftResult.of(model, data[key].name, evaluation, False, digest, machine))
        print(f"{path}: {evaluation}", flush=True)


if __name__ == "__main__":
    import tyro  # not on every machine with a GPU, where Python calls main

    tyro.cli(main, config=(tyro.conf.PositionalRequiredArgs,))
