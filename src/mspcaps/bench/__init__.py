"""How fast it is: training and inference against an eager reference and a ResNet, measured side by side in one run."""

from mspcaps.bench import tables
from mspcaps.bench.families import bench_families, list_families
from mspcaps.bench.infer import bench_infer
from mspcaps.bench.result import write_result
from mspcaps.bench.train import bench_train

__all__ = ["bench_families", "bench_infer", "bench_train", "list_families", "tables", "write_result"]
