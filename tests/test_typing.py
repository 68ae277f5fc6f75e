"""What a type checker knows of the Python interface: `make lint` runs mypy on this file, and pytest runs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type, get_args, get_type_hints

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import mspcaps
from mspcaps.errors import MspcapsError
from mspcaps.models import Model, MSPCapsName, registry
from mspcaps.models.mspcaps import MSPCaps

X = torch.rand(2, 3, 32, 32)


def test_by_the_name_of_a_capsule_network_its_methods_are_known() -> None:
    model = mspcaps.create_model("mspcaps_t_scale16", num_classes=4)
    assert_type(model, MSPCaps)
    assert_type(model.eval().forward_capsules(X), Tensor)
    scores = model(X)
    assert_type(scores, Tensor)
    assert_type(model.loss(scores, torch.tensor([0, 1])), Tensor)
    assert scores.shape == (2, 4) and isinstance(model, MSPCaps)


def test_what_has_no_capsules_is_not_said_to_have_them() -> None:
    resnet = mspcaps.create_model("resnet20")
    assert_type(resnet, Model)
    with pytest.raises(AttributeError):
        resnet.forward_capsules(X)  # type: ignore[operator]  # mypy would tell if this were not needed
    with pytest.raises(MspcapsError):
        mspcaps.create_model("mspcaps_t", num_class=3)  # type: ignore[call-overload]


def test_what_a_file_holds_is_found_out(tmp_path: Path) -> None:
    loaded = mspcaps.load_model("mspcaps_t.fashionmnist")
    assert_type(loaded, Model)
    assert_type(loaded.metadata, dict[str, Any])
    mspcaps.save_pretrained(loaded, tmp_path)
    again = mspcaps.from_pretrained(tmp_path)
    assert_type(again, Model)
    assert isinstance(again, MSPCaps)
    assert again.forward_capsules(X[:, :1]).shape == (2, 10, 32)
    assert again.config == loaded.config and again.metadata == loaded.metadata


def test_a_new_model_is_about_nothing_yet() -> None:
    with torch.device("meta"):
        assert all(mspcaps.create_model(name).metadata == {} for name in mspcaps.list_models())
        assert all(isinstance(mspcaps.create_model(name), Model) for name in mspcaps.list_models())


def test_the_list_of_capsule_networks_is_whole() -> None:
    def returned(builder: Callable[..., Any]) -> type:
        return get_type_hints(builder)["return"]

    builders = registry._builders
    assert sorted(get_args(MSPCapsName)) == [n for n in sorted(builders) if issubclass(returned(builders[n]), MSPCaps)]


def test_images_go_into_a_loader() -> None:
    data = mspcaps.load_dataset("fashionmnist_sample", "test").subset(slice(0, 6))
    loader = DataLoader(data, batch_size=4)
    assert_type(loader, DataLoader[tuple[Tensor, int]])
    assert [len(images) for images, _ in loader] == [4, 2]
