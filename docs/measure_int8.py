"""Measures int8 against fp32 for the shipped T weights: results/export/int8.json.

One thread, so that others on the machine disturb less. It takes up to ten minutes and needs all four data sets
(`mspcaps data get`). `python docs/make_export.py` then writes the figures into docs/export.md.
"""

import json
from pathlib import Path

import torch

from mspcaps.benchmarks.int8 import FILE, measure
from mspcaps.files import write_atomically
from mspcaps.weights import list_pretrained

RESULTS = Path(__file__).parent.parent / "results" / "export"

if __name__ == "__main__":
    torch.set_num_threads(1)
    write_atomically(RESULTS / FILE, json.dumps(measure(list_pretrained("mspcaps_t.*")), indent=1) + "\n")
