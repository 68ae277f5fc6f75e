"""The initial scale of each kind of layer, against the model as it is made."""

import pytest
import torch

from mspcaps.errors import MspcapsError
from mspcaps.models import create_model
from mspcaps.models.initial import scale_initial_weights


def made(name="mspcaps_t"):
    torch.manual_seed(0)
    return create_model(name)


def test_only_the_named_kind_is_scaled():
    expected = {
        "votes": {"routing.0.w2", "routing.1.w2"},
        "positions": {f"patchify.{i}.position" for i in range(3)},
        "convolutions": {f"blocks.{i}.{part}.conv.weight" for i in range(3) for part in ("first", "rest.0")},
    }
    for kind, names in expected.items():
        plain, scaled = made().state_dict(), made()
        scale_initial_weights(scaled, {kind: 2.0})
        for name, t in scaled.state_dict().items():
            assert torch.equal(t, plain[name] * (2 if name in names else 1)), name


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ({"vote": 2.0}, "initial_scale has no 'vote': the kinds are votes, positions, convolutions"),
        ({"votes": -1.0}, "initial_scale of votes is -1.0"),
        ({"votes": True}, "initial_scale of votes is True"),
        ({"votes": float("nan")}, "initial_scale of votes is nan"),
    ],
)
def test_what_makes_no_sense_is_refused(factors, sentence):
    with pytest.raises(MspcapsError, match=sentence):
        scale_initial_weights(made(), factors)


def test_a_model_without_votes():
    with pytest.raises(MspcapsError, match="names votes, but the model has none"):
        scale_initial_weights(made("resnet20"), {"votes": 2.0})


def test_convolutions_of_any_name():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Linear(2, 2))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    scale_initial_weights(model, {"convolutions": 2.0})
    assert all(
        torch.equal(t, before[name] * (2 if name == "0.weight" else 1)) for name, t in model.state_dict().items()
    )
