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
    """Measure speed on this machine against an eager PyTorch reference and a ResNet of similar size, in one run.

    Args:
        what: train measures training steps, infer the forward pass.
        model: Model name, as listed by `mspcaps models`.
        batch_size: Images per step, 128 by default. For infer: the largest batch to try.
        scaling: train only: also measure how cost grows with image size, batch size and number of classes.
        packed: train on a GPU only: also measure this many runs side by side, as in a sweep.
        quick: Run a few steps only, to check that everything works; the figures mean nothing.
        device: cpu or cuda; default: the GPU if there is one.
        results: The figures are written to bench/*.json in this folder.
    """
    from mspcaps.bench import bench_infer, bench_train, tables, write_result
    from mspcaps.training import choose_device

    if what == "infer" and (scaling or packed is not None):
        raise MspcapsError("--scaling and --packed work with `mspcaps bench train` only")
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
