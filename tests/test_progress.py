"""What a run tells about itself while it goes."""

from types import SimpleNamespace

import pytest
import torch

from mspcaps.progress import Meter, Reading


def test_a_run_too_short_for_a_rate_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr("mspcaps.progress.time.monotonic", lambda: next(moments))
    trainer = SimpleNamespace(
        epoch=0, steps_done=5, history=[], recipe=SimpleNamespace(epochs=1),
        plan=SimpleNamespace(steps=10, batch_size=8), step=SimpleNamespace(loss_sum=torch.tensor(1.0)),
    )  # fmt: skip
    meter = Meter()
    for _ in range(2):
        assert str(meter.read(trainer)) == "epoch 1/1   50 %  loss 0.2000"  # type: ignore[arg-type]
    trainer.steps_done = 10
    assert str(meter.read(trainer)) == "epoch 1/1  100 %  20 images/s  0:00 left  loss 0.1000"  # type: ignore[arg-type]


def test_the_whole_line() -> None:
    reading = Reading(epoch=2, epochs=3, steps=15, of_steps=30, rate=1234.5, left=75, loss=0.25, accuracy=12.345)
    assert str(reading) == "epoch 2/3   50 %  1,234 images/s  1:15 left  loss 0.2500  accuracy 12.35 %"
