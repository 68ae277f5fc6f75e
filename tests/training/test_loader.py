"""The images that a step sees, as functions of (seed, epoch)."""

import multiprocessing

import pytest
import torch

from mspcaps.data import Augmentation, ImageSet
from mspcaps.data.augment import epoch_draws, epoch_order
from mspcaps.training.loader import Loader


def draw_two_epochs() -> None:
    data = ImageSet(torch.zeros(8, 1, 8, 8, dtype=torch.uint8), torch.arange(8) % 2, tuple("ab"), "x")
    loader = Loader(data, 4, Augmentation(crop=2), seed=3)
    for epoch in (0, 1):
        loader.begin(epoch)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_from_one_that_has_trained_can_train() -> None:
    """Threads do not survive a fork: one shared by all loaders of a process would never draw again."""
    draw_two_epochs()
    child = multiprocessing.get_context("fork").Process(target=draw_two_epochs)
    child.start()
    child.join(timeout=20)
    child.kill()  # if it hangs
    child.join()
    assert child.exitcode == 0


def test_every_epoch_has_an_order_and_draws_of_its_own() -> None:
    data = ImageSet(torch.zeros(23, 1, 8, 8, dtype=torch.uint8), torch.arange(23) % 3, tuple("abc"), "x")
    augment, orders = Augmentation(crop=2, flip=True, rotate=10.0), set()
    plan = Loader(data, 5, augment, seed=3)
    for epoch in (0, 1, 7):
        plan.begin(epoch, step=2)
        assert plan.order.shape == (4, 5) and int(plan.position) == 2
        assert torch.equal(plan.order.flatten(), epoch_order(3, epoch, 23)[:20])
        assert torch.equal(plan.draws.flatten(0, 1), epoch_draws(3, epoch, 23, augment)[:20])
        orders.add(tuple(plan.order.flatten().tolist()))
    assert len(orders) == 3
