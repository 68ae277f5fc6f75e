"""Speed and memory of training, inference and attacks, always next to a reference measured in the same run."""

from mspcaps.bench import tables
from mspcaps.bench.attack import bench_attack
from mspcaps.bench.families import bench_families, list_families
from mspcaps.bench.infer import bench_infer
from mspcaps.bench.memory import bench_memory
from mspcaps.bench.pixels import bench_pixels
from mspcaps.bench.result import write_result
from mspcaps.bench.train import bench_train

__all__ = [
    "bench_attack", "bench_families", "bench_infer", "bench_memory", "bench_pixels", "bench_train", "list_families",
    "tables", "write_result",
]  # fmt: skip
