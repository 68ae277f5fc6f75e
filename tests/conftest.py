"""For the whole suite, before anything is imported that would settle it otherwise."""

import os

import torch

# Two test workers share two cores: one thread each is faster than two threads each.
torch.set_num_threads(1)

# Without a GPU our Triton kernels are tested in Triton's interpreter, which must be chosen before Triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
