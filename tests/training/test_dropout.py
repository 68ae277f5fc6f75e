"""Dropout is a function of (seed, epoch, step): in every engine, in a share of the batch, and after a kill."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from test_trainer import CPU, equal_files, recipe_for
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.models import Model, Task, register_model, registry
from mspcaps.models.layers import Dropout, dropout_keys
from mspcaps.training import Recipe, Trainer
from mspcaps.training.device import compiler_works
from mspcaps.training.loader import dropout_key
from mspcaps.training.step import refuse_torch_dropout


class TwoLayers(Model):
    """A scratch model with two Dropout layers."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.first = nn.Linear(task.in_chans * task.img_size[0] * task.img_size[1], 32)
        self.drop_first, self.drop_second = Dropout(0.25), Dropout(0.5)
        self.head = nn.Linear(32, task.num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.first(self.drop_first(x.flatten(1))).relu()

    def forward_head(self, features: Tensor) -> Tensor:
        return self.head(self.drop_second(features))


def dropped(task: Task) -> Model:
    return TwoLayers(task)


def with_torchs_dropout(task: Task) -> Model:
    model = TwoLayers(task)
    model.drop_second = nn.Dropout(0.5)  # type: ignore[assignment]
    return model


def with_attention(task: Task) -> Model:
    model = TwoLayers(task)
    model.attention = nn.MultiheadAttention(32, 2, dropout=0.5)
    return model


def with_lstm(task: Task) -> Model:
    model = TwoLayers(task)
    model.lstm = nn.LSTM(32, 32, num_layers=2, dropout=0.5)
    return model


@pytest.fixture(autouse=True)
def scratch_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    for model in (dropped, with_torchs_dropout, with_attention, with_lstm):
        register_model(model)


def scratch_recipe(data: Path, **changes: object) -> Recipe:
    """SGD with Nesterov momentum, steps and clipping."""
    base = {"model": "dropped", "optimizer": "sgd", "nesterov": True, "clip_grad": 1.0, "lr": 0.05, "epochs": 6}
    return recipe_for(data, **base | {"schedule": "steps", "lr_steps": [2, 4]} | changes)


def masks_of(layer: Dropout, shape: tuple[int, ...], key: int) -> Tensor:
    layer.key.fill_(key)
    return layer.train()(torch.ones(shape)) > 0


def test_masks_keep_the_right_share_and_differ_between_keys() -> None:
    layer = Dropout(0.3)
    one, other = (masks_of(layer, (200, 500), dropout_key(0, epoch)) for epoch in (0, 1))
    assert abs(one.float().mean().item() - 0.7) < 0.005  # three deviations: 0.0043
    assert abs((one & other).float().mean().item() - 0.49) < 0.005, "independent of each other"
    assert abs((one[:, 1:] & one[:, :-1]).float().mean().item() - 0.49) < 0.005, "and of their neighbours"
    assert abs((one[1:] & one[:-1]).float().mean().item() - 0.49) < 0.005
    x = torch.randn(200, 500)
    assert torch.equal(layer.train()(x)[other], (x / 0.7)[other]) and torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    for wrong in (-0.1, 1.0):
        with pytest.raises(MspcapsError, match=f"{wrong}"):
            Dropout(wrong)


def test_keys_differ_between_layers_steps_and_epochs() -> None:
    keys = [
        dropout_keys(torch.tensor([dropout_key(seed, epoch)]), torch.tensor([step]), 4).tolist()
        for seed in range(3) for epoch in range(3) for step in range(50)
    ]  # fmt: skip
    flat = [key for row in keys for key in row]
    assert len(set(flat)) == len(flat) == 1800 and min(flat) >= 0
    assert len({key & 0xFFFFFFFF for key in flat}) > 1795, "32 bits of them nearly always"


def test_memory_layout_and_share_of_the_batch_do_not_matter() -> None:
    layer, whole = Dropout(0.5), torch.randn(8, 3, 4, 4)
    layer.key.fill_(12345)
    expected = layer.train()(whole)
    assert torch.equal(layer(whole.contiguous(memory_format=torch.channels_last)), expected)
    for rank, part in enumerate(whole.chunk(4)):
        layer.share = rank
        assert torch.equal(layer(part), expected.chunk(4)[rank])


@pytest.mark.slow
def test_the_compiler_draws_the_same_masks(tiny_npz: Path, tmp_path: Path) -> None:
    if not compiler_works():
        pytest.skip("there is no C++ compiler")
    layer = Dropout(0.4).train()
    layer.key.fill_(dropout_key(3, 7))
    x = torch.randn(64, 33)
    assert torch.equal(torch.compile(layer, fullgraph=True, dynamic=False)(x) == 0, layer(x) == 0)
    steps = {}
    for engine in ("eager", "compile"):
        trainer = Trainer(scratch_recipe(tiny_npz), CPU, engine, out=tmp_path, results=tmp_path)  # type: ignore[arg-type]
        trainer.optimizer.lr.fill_(0.05)
        trainer.loader.begin(1, step=2)
        trainer.step()
        steps[engine] = trainer.step.keys.clone(), trainer.weights()
    assert torch.equal(steps["eager"][0], steps["compile"][0]) and steps["eager"][0].all()
    torch.testing.assert_close(steps["eager"][1], steps["compile"][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "name"), [("with_torchs_dropout", "drop_second"), ("with_attention", "attention"), ("with_lstm", "lstm")]
)
def test_dropout_of_pytorch_is_refused(tiny_npz: Path, tmp_path: Path, model: str, name: str) -> None:
    with pytest.raises(MspcapsError, match=name):
        Trainer(scratch_recipe(tiny_npz, model=model), CPU, out=tmp_path, results=tmp_path)


def test_attention_without_dropout_is_taken() -> None:
    model = TwoLayers(Task(4, 1, (8, 8), (0.5,), (0.5,)))
    model.attention = nn.MultiheadAttention(32, 2)
    refuse_torch_dropout(model)


def killed_at(data: Path, folder: Path, epoch: int, step: int) -> None:
    """Trains until the process kills itself at this step, one step after the last checkpoint."""

    def listener(trainer: Trainer) -> None:
        if (trainer.epoch, trainer.steps_done) == (epoch, step):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    options = {"out": folder, "results": folder, "save_every": 0.0, "log": print}
    Trainer(scratch_recipe(data), CPU, "eager", listener=listener, **options).run()  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_killed_run_with_dropout_resumes_bit_for_bit(tiny_npz: Path, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for folder, kills in (("clean", [(-1, 0)]), ("killed", [(0, 3), (1, 1), (3, 5), (5, 6), (-1, 0)])):
        for epoch, step in kills:
            child = fork.Process(target=killed_at, args=(tiny_npz, tmp_path / folder, epoch, step))
            child.start()
            child.join()
            assert child.exitcode == (0 if epoch < 0 else -signal.SIGKILL)
    run = Path("bars/dropped/test-seed0")
    for name in ("last.safetensors", "best.safetensors"):
        assert equal_files(tmp_path / "clean" / run / name, tmp_path / "killed" / run / name)
