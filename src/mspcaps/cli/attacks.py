"""`mspcaps attack`: what attacks leave of a model's accuracy."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from mspcaps.cli.common import Maybe, show_progress, table
from mspcaps.errors import MspcapsError
from mspcaps.files import check_writable
from mspcaps.progress import say


def attack(
    weights: Positional[str],
    data: Maybe[str] = None,
    eps: tuple[str, ...] = ("1/255", "2/255", "4/255", "8/255"),
    attacks: Maybe[tuple[str, ...]] = None,
    restarts: int = 1,
    images: Maybe[int] = None,
    split: Literal["train", "val", "test", "all"] = "test",
    seed: int = 0,
    surrogate: Maybe[str] = None,
    batch_size: Maybe[int] = None,
    check: Annotated[bool, tyro.conf.arg(help="Whether to check afterwards that the figures can be trusted.")] = True,
    device: Maybe[str] = None,
    results: Path = Path("results"),
) -> None:
    """Attack trained weights and measure what is left of their accuracy; warn if the figures cannot be trusted.

    An attack is written NAME, NAME-STEPS or NAME-STEPS:OBJECTIVE, such as pgd-50:cw. The names are fgsm, bim, pgd,
    apgd, square and votes (for models with routing); the objectives are margin, cross_entropy, log_odds (for capsules),
    cw, dlr and, for apgd, targeted_dlr. Images that the model gets wrong anyway count as lost.

    Args:
        weights: A .safetensors file, or a name listed by `mspcaps models --pretrained`.
        data: Data set name, or path of a folder or .npz file; default: the data the weights were trained on.
        eps: Budgets: by how much a pixel in [0, 1] may change, as 8/255 or 0.03.
        attacks: What to attack with; default: fgsm pgd apgd, for capsules also apgd:log_odds votes:log_odds.
        restarts: How often attacks with a random start try again on the images that survive.
        images: Attack this many images only, chosen at random but always the same; default: all.
        split: Which split to use.
        seed: Of the random starts.
        surrogate: Other weights: whether images made to fool them fool the model, too, where attacks on it fail.
        batch_size: Images per batch; default: 50 on a CPU, 2500 on a GPU.
        device: cpu, cuda or mps; default: the GPU if there is one.
        results: The result is written to robustness/attack-*.json in this folder, with a figure beside it.
    """
    from mspcaps.bench.result import environment
    from mspcaps.evaluation import attack as run
    from mspcaps.evaluation import robustness
    from mspcaps.training import choose_device

    if weights.lower().endswith(".onnx"):
        raise MspcapsError(f"{weights} has no gradients: attack the weights that it was exported from")
    budgets = [robustness.parse_eps(text) for text in eps]
    chosen = choose_device(device)
    around = environment(chosen)
    check_writable(results / robustness.FOLDER)  # before minutes of attacking
    with show_progress("images") as progress:
        found = run(
            weights, data, budgets, attacks, restarts=restarts, images=images, split=split, seed=seed,
            batch_size=batch_size, device=chosen, surrogate=surrogate, check=check, progress=progress.update,
        )  # fmt: skip
    heads, rows = found.table()
    table(heads, rows, right=range(1, len(heads)))
    say(f"{found.weights} on {found.n:,} images of {found.dataset}: {found.clean_accuracy:.2f} % without an attack")
    for caution in found.cautions:
        say(f"warning: {caution}")
    path = robustness.result_path(results, found, images)
    robustness.write_robustness(path, found, around)
    say(f"figures: {path}\nfigure:  {path.with_suffix('.svg')}")
