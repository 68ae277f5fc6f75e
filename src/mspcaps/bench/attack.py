"""`mspcaps bench attack`: seconds of a 10-step attack on test images of CIFAR-10, ours and foolbox's."""

import importlib.metadata
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.bench.result import CPU, Log, choose_batch, new_result
from mspcaps.bench.timing import Effort, repeat, significant, time_interleaved
from mspcaps.data import load_dataset
from mspcaps.errors import MspcapsError, silent
from mspcaps.evaluation.accuracy import full_precision
from mspcaps.evaluation.attacks import bim
from mspcaps.models import list_pretrained, load_model

DATA, EPS, STEPS = "cifar10", 8 / 255, 10
ON_CPU, QUICK = 500, 20  # images
CONVENTIONS = {
    "attack": "BIM: 10 steps of eps / 10 from the image itself, eps 8/255, along the sign of the cross-entropy's "
    "gradient; the same for both, with the same batches",
    "precision": "PyTorch's default: fp32, and on a GPU TF32 in convolutions",
    "forms": "ours and foolbox: the model as load_model gives it; compiled (GPU): torch.compile of it, its parameters "
    "frozen, since a compiled backward pass would compute their gradients for nothing",
    "seconds": "for all images, those included that the model gets wrong anyway; median, runs interleaved",
    "fooled": "images that the model gets wrong after the attack, in fp32",
}
Attack = Callable[[Tensor, Tensor], Tensor]  # images, labels -> adversarial images
Batches = Sequence[tuple[Tensor, Tensor]]


def bench_attack(
    model: str = "mspcaps_t", device: torch.device = CPU, batch_size: int | None = None, quick: bool = False,
    log: Log = silent,
) -> dict[str, Any]:  # fmt: skip
    """Attack the shipped weights of the model for CIFAR-10."""
    size = choose_batch(batch_size, 2500 if device.type == "cuda" else 50)
    weights = f"{model}.{DATA}"
    if weights not in list_pretrained():
        raise MspcapsError(f"an attack needs trained weights, but none are shipped for {model} on {DATA}")
    result = new_result("attack", model, device, quick, CONVENTIONS)
    trained = load_model(weights).to(device)
    count = QUICK if quick else None if device.type == "cuda" else ON_CPU
    data = load_dataset(DATA, "test")
    x, y = data.images[:count].to(device).float() / 255, data.labels[:count].to(device)
    result |= {"images": len(x), "batch_size": size, "steps": STEPS, "unavailable": {}}
    attacks: dict[str, Attack] = {"ours": lambda x, y: bim(trained, x, y, EPS, steps=STEPS)}
    if device.type == "cuda" and not quick:
        compiled = load_model(weights).to(device).requires_grad_(False)
        compiled.compile(dynamic=False)
        attacks["ours, compiled"] = lambda x, y: bim(compiled, x, y, EPS, steps=STEPS)
    try:
        attacks["foolbox"] = foolbox_bim(trained, device)
        result["environment"]["software"]["foolbox"] = importlib.metadata.version("foolbox")
    except MspcapsError as error:
        result["unavailable"]["foolbox"] = str(error)
    for name in attacks:
        log(f"{STEPS} steps on {len(x):,} images, {name}")
    effort = Effort(repeats=2 if quick else 3 if device.type == "cpu" else 5, seconds=0.0, warmup=1)
    batches = list(zip(x.split(size), y.split(size), strict=True))
    variants = {name: repeat(partial(attack_all, attack, batches)) for name, attack in attacks.items()}
    timings = time_interleaved(variants, device, effort)
    result["variants"] = {
        name: {
            "seconds": {key: significant(timing.to_dict()[key] / 1000) for key in ("median", "lowest", "highest")},
            "images_per_second": significant(1000 * len(x) / timing.median),
            "fooled": count_fooled(trained, attack_all(attacks[name], batches), batches),
        }
        for name, timing in timings.items()
    }
    if "foolbox" in attacks:
        ours = min(timings[name].median for name in attacks if name != "foolbox")
        result["ratios"] = {"ours_vs_foolbox": round(timings["foolbox"].median / ours, 3)}
    return result


def attack_all(attack: Attack, batches: Batches) -> list[Tensor]:
    return [attack(x, y) for x, y in batches]


def count_fooled(model: nn.Module, adversarial: Sequence[Tensor], batches: Batches) -> int:
    pairs = zip(adversarial, batches, strict=True)
    with torch.no_grad(), full_precision(adversarial[0].device):
        return sum(int((model(images).argmax(1) != y).sum()) for images, (_, y) in pairs)


def foolbox_bim(model: nn.Module, device: torch.device) -> Attack:
    """Foolbox's BIM with the same settings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses a deprecated import of SciPy
            import foolbox
    except ImportError as error:
        raise MspcapsError(
            "foolbox is not installed, so there is nothing to compare with: pip install foolbox"
        ) from error
    target = foolbox.PyTorchModel(model, bounds=(0, 1), device=device)
    attack = foolbox.attacks.LinfBasicIterativeAttack(rel_stepsize=1 / STEPS, steps=STEPS, random_start=False)

    def run(x: Tensor, y: Tensor) -> Tensor:
        return attack(target, x, y, epsilons=EPS)[1]

    return run
