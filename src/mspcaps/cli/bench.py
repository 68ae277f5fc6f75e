"""The `bench` command."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.options import Maybe
from mspcaps.cli.progress import table
from mspcaps.errors import MspcapsError
from mspcaps.files import check_writable


def bench(
    what: Positional[Literal["train", "infer"]],
    model: str = "mspcaps_t",
    batch_size: Maybe[int] = None,
    scaling: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    packed: Maybe[int] = None,
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Maybe[str] = None,
    results: Path = Path("results"),
) -> None:
    """Measure speed on this machine: against an eager reference and a ResNet of the same size, all in one run.

    Args:
        what: train measures training steps, infer answers.
        model: Name of a model, as `mspcaps models` shows it.
        batch_size: Images per step, by default 128; of inference the largest batch that is tried.
        scaling: Training: also measure how the cost grows with image size, batch and classes.
        packed: Training on a GPU: also run so many side by side, as a sweep does.
        quick: A few steps only: shows that everything works, measures nothing.
        device: cpu or cuda; by default the GPU if there is one.
        results: Folder that gets the figures, as bench/*.json.
    """
    from mspcaps.benchmarks import bench_infer, bench_train, tables, write_result
    from mspcaps.training import choose_device

    if what == "infer" and (scaling or packed is not None):
        raise MspcapsError("--scaling and --packed belong to `mspcaps bench train`")
    chosen = choose_device(device)
    check_writable(results / "bench")  # now, not after minutes of measuring
    if what == "train":
        size = {} if batch_size is None else {"batch_size": batch_size}
        result = bench_train(model, chosen, **size, scaling=scaling, packed=packed, quick=quick, say=say)
    else:
        result = bench_infer(model, chosen, batch_size, quick, say)
    found, notes = tables.shown(result)
    for head, rows in found:
        table(head, rows, right=range(1, len(head)))
    print("\n".join(notes))
    print(f"figures: {write_result(results, result)}")


def say(line: str) -> None:
    print(f"{line} ...", flush=True)
