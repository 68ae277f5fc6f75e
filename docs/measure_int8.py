"""Measures int8 against fp32 for the shipped T weights: results/export/int8.json.

One thread, so that others on the machine disturb less. It takes up to ten minutes and needs all four data sets
(`mspcaps data get`). `python docs/make_export.py` then writes the figures into docs/export.md.
"""

from pathlib import Path

import torch

from mspcaps.bench.int8 import FILE, measure
from mspcaps.files import write_json
from mspcaps.models import list_pretrained

RESULTS = Path(__file__).parent.parent / "results" / "export"

if __name__ == "__main__":
    torch.set_num_threads(1)
    write_json(RESULTS / FILE, measure(list_pretrained("mspcaps_t.*")))
