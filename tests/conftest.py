"""For the whole suite, before anything is imported that would settle it otherwise."""

import os
import signal

import pytest
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

# OrthCaps-D is OrthCaps-S with 27 routings in the place of two: its passes take a minute in all and test no other code.
LONG = (
    "test_the_compiler_takes_the_loss_of_every_family_whole",
    "test_evaluation_is_repeatable_and_does_not_depend_on_the_batch",
    "test_channels_last_equals_contiguous",
    "test_bf16_drifts_little_and_leaves_the_gradient_its_direction",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in {f"{name}[orthcaps_d]" for name in LONG}:
            item.add_marker(pytest.mark.soak)
