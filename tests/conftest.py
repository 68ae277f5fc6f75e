"""For the whole suite, before anything is imported that would settle it otherwise."""

import os
import signal
from collections import Counter

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures of `make soak`: how many kinds of bad input, how many kills, and how they ended."""
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind) if one.when == "call"]
    kinds = [one for one in reports if "test_bad_input[" in one.nodeid and "soak" in one.nodeid]
    if len(kinds) > 100:  # not a part of them
        slowest = max(kinds, key=lambda one: one.duration)
        terminalreporter.write_line(
            f"soak: {len(kinds)} kinds of bad input, {sum(one.passed for one in kinds)} answered as they should be; "
            f"the slowest took {slowest.duration:.1f} s ({slowest.nodeid.partition('[')[2][:-1]})"
        )
    chains = [one for one in reports if "test_killed_runs_end_alike[" in one.nodeid]
    if kills := Counter(name for one in chains for key, name in one.user_properties if key == "killed"):
        terminalreporter.write_line(
            f"soak: {kills.total()} kills ({', '.join(f'{count} {name}' for name, count in kills.most_common())}) of "
            f"{len(chains)} runs, {sum(one.passed for one in chains)} of which ended with the sha256 of one that never "
            "was killed"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in {f"{name}[orthcaps_d]" for name in LONG}:
            item.add_marker(pytest.mark.soak)
