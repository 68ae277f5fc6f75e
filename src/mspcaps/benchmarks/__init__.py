"""How fast it is: training and inference against an eager reference and a ResNet, measured side by side in one run."""

from mspcaps.benchmarks import tables
from mspcaps.benchmarks.infer import bench_infer
from mspcaps.benchmarks.result import write_result
from mspcaps.benchmarks.train import bench_train

__all__ = ["bench_infer", "bench_train", "tables", "write_result"]
