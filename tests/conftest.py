"""For the whole suite, before anything is imported that would settle it otherwise."""

import os
import signal

import torch

# Two test workers share two cores: one thread each is faster than two threads each.
torch.set_num_threads(1)

# Without a GPU our Triton kernels are tested in Triton's interpreter, which must be chosen before Triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Tests that import onnxruntime themselves would else have it write into the home folder of whoever runs them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# A suite that was started in the background may ignore Ctrl-C, and so would the commands that it starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
