"""How fast it is: training, inference and attacks, always beside something else that is measured in the same run."""

from mspcaps.bench import tables
from mspcaps.bench.attack import bench_attack
from mspcaps.bench.infer import bench_infer
from mspcaps.bench.result import write_result
from mspcaps.bench.train import bench_train

__all__ = ["bench_attack", "bench_infer", "bench_train", "tables", "write_result"]
