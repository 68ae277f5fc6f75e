"""A run's memory is estimated before it is allocated."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mspcaps import load_model, load_recipe
from mspcaps.data import ImageSet
from mspcaps.errors import MspcapsError
from mspcaps.models.summary import summarize
from mspcaps.training import memory
from mspcaps.training.device import free_bytes, has_bf16_instructions
from mspcaps.training.trainer import Trainer

CPU = torch.device("cpu")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux or glibc")
RECIPE = load_recipe("paper/cifar10/mspcaps_t")


@pytest.mark.parametrize(
    ("model", "size"), [pytest.param("mspcaps_t", 512, marks=pytest.mark.soak), ("mspcaps_l", 224)]
)
def test_a_run_that_cannot_fit_is_refused_and_told_the_largest_size_that_can(
    model: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 20 << 30)
    recipe = RECIPE.replace(model=model, data="fashionmnist_sample", img_size=size)
    with pytest.raises(MspcapsError, match=r"img_size of at most (32|64|96|128|160|192)$") as refused:
        Trainer(recipe, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)
    side = int(str(refused.value).split()[-1])
    memory.check_memory(recipe, CPU, 10, 1, (side, side), 0)
    with pytest.raises(MspcapsError):
        memory.check_memory(recipe, CPU, 10, 1, (side + 32, side + 32), 0)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_no_image_is_resized_before_the_run_is_known_to_fit(
    own: bool, tmp_path: Path, tiny_npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 512 pixels the images of MNIST alone take 15 GB: the process would be killed, not refused."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 30)
    resized = ImageSet.resized
    monkeypatch.setattr(ImageSet, "resized", lambda images, size: resized(images, size if size != (512, 512) else None))
    recipe = RECIPE.replace(data=str(tiny_npz) if own else "fashionmnist_sample", img_size=512)
    with pytest.raises(MspcapsError, match="img_size"):
        Trainer(recipe, CPU, out=tmp_path, results=tmp_path, log=lambda line: None)


def test_the_largest_batch_that_fits_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    need = memory.training_need(RECIPE, CPU, {"num_classes": 10, "in_chans": 3, "img_size": 32})
    monkeypatch.setattr(memory, "free_bytes", lambda device: need.fixed + 40 * need.per_image)
    with pytest.raises(MspcapsError, match=r"batch_size of at most 32$"):
        memory.check_memory(RECIPE, CPU, 10, 3, (32, 32), 0)
    memory.check_memory(RECIPE.replace(batch_size=32), CPU, 10, 3, (32, 32), 0)
    with pytest.raises(MspcapsError, match="smaller model"):
        monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
        memory.check_memory(RECIPE, CPU, 10, 3, (32, 32), 0)


def test_each_gpu_of_several_needs_room_for_its_share_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's 128 on four GPUs, each with room for 40."""
    gpu, task = torch.device("cuda", 0), {"num_classes": 10, "in_chans": 3, "img_size": 32}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    need = memory.training_need(RECIPE, gpu, task)
    monkeypatch.setattr(memory, "free_bytes", lambda device: need.fixed + 40 * need.per_image)
    memory.check_memory(RECIPE, gpu, 10, 3, (32, 32), 0, processes=4)
    with pytest.raises(MspcapsError, match=r"batch_size of at most 64$"):
        memory.check_memory(RECIPE, gpu, 10, 3, (32, 32), 0, processes=2)
    with pytest.raises(MspcapsError, match=r"batch_size of at most 32$"):
        memory.check_memory(RECIPE.replace(precision="bf16"), CPU, 10, 3, (32, 32), 0, processes=4)  # of all together


def test_an_average_of_the_weights_takes_memory_too() -> None:
    task = {"num_classes": 10, "in_chans": 3, "img_size": 32}
    plain, averaged = (memory.training_need(RECIPE.replace(ema=decay), CPU, task).fixed for decay in (0.0, 0.999))
    assert averaged - plain == 4 * summarize("mspcaps_t").params


def test_a_step_against_trades_keeps_two_passes() -> None:
    """Of the clean images and of the attacked ones."""
    task = {"num_classes": 10, "in_chans": 3, "img_size": 32}
    needs = {
        kind: memory.training_need(RECIPE.replace(adversary={"kind": kind}, validation=9), CPU, task).per_image
        for kind in ("pgd", "trades")
    }
    assert needs["pgd"] == memory.training_need(RECIPE, CPU, task).per_image == needs["trades"] / 2


MEASURE = """
import torch, mspcaps
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
model = mspcaps.create_model("mspcaps_t", img_size=64)
before = peak()
x, y = torch.rand(64, 3, 64, 64), torch.zeros(64, dtype=torch.int64)
model.training_loss(x, y, model.criterion).backward()
print((peak() - before) * 1024)
"""


@pytest.mark.slow
@LINUX
def test_the_estimate_is_about_what_a_process_takes() -> None:
    took = int(subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, check=True).stdout)
    need = memory.training_need(RECIPE, CPU, {"num_classes": 10, "in_chans": 3, "img_size": 64})
    assert 0.5 < (need.fixed + 64 * need.per_image) / took < 1.5


def test_a_small_file_that_promises_a_huge_model_is_refused_before_it_is_built(tmp_path: Path) -> None:
    config = {"name": "mspcaps_t", "num_classes": 10, "in_chans": 3, "img_size": [100_000, 100_000]}
    path = tmp_path / "huge.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"model": json.dumps(config)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MspcapsError):
        load_model(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kB


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("memory.max", "3000000"), ("memory.current", "1000000")):
        (tmp_path / name).write_text(value)
    monkeypatch.setattr("mspcaps.training.device.CGROUP", tmp_path)
    assert free_bytes(CPU) == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(CPU) > 100_000_000


PAGES = """
import resource, torch
from mspcaps.training.device import choose_device
{call}
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(9): torch.zeros(50_000_000, dtype=torch.uint8) + 1
print(faults() - before)
"""


@pytest.mark.slow
@LINUX
def test_freed_memory_is_reused() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", PAGES.format(call=call)], capture_output=True, check=True).stdout)
        for call in ("", "choose_device('cpu')")
    ]
    assert faults[1] < faults[0] / 2


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx2 amx_bf16 fma", True), ("avx512_bf16", True), ("avx512f avx512_bf16x", False)]
)
def test_a_cpu_with_bf16_instructions_is_recognised(tmp_path: Path, flags: str, expected: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : fpu {flags}\n")
    assert has_bf16_instructions(torch.device("cpu"), cpuinfo) == expected
    assert not has_bf16_instructions(torch.device("cuda"), cpuinfo)
    assert not has_bf16_instructions(torch.device("cpu"), tmp_path / "missing")
