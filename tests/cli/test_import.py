"""`mspcaps --import MODULE COMMAND`, and what the first page of help lists."""

import sys

import pytest
from cli_makers import TINY, draw

from mspcaps.models import registry

CODE = """
from mspcaps.models import register_model
from mspcaps.models.resnet import resnet20

@register_model
def my_net(task, *, width: int = 1):
    return resnet20(task)
"""


@pytest.fixture(autouse=True)
def own_names(place, monkeypatch):
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))
    monkeypatch.setattr(sys, "path", [*sys.path])
    (place / "my_models").mkdir()
    (place / "my_models" / "nets.py").write_text(CODE)


@pytest.mark.slow
def test_a_registered_model_is_listed_trained_and_used(say, place):
    draw(place / "pictures")
    assert say("models", "my_net").status == 2
    assert "my_net" in say("--import", "my_models.nets", "models", "my_net").out
    options = [*TINY[2:], "--data", "pictures", "--model", "my_net", "--img-size", "16", "--name", "own"]
    assert say("--import=my_models.nets", "train", *options).status == 0
    weights = place / "runs" / "pictures" / "my_net" / "own-seed0" / "last.safetensors"
    assert say("--import", "my_models.nets", "predict", weights, "pictures").out.count("\n") == 12


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("absent.nets", "", ["absent"]),
        ("broken", "x = 1\ny = x / 0\n", ["ZeroDivisionError", "line 2", "broken.py"]),
        ("wrong", "def f(:\n", ["SyntaxError"]),
        ("lacks", "import no_such_package\n", ["no_such_package"]),
        ("nets.py/", "", ["'nets.py/'"]),
    ],
)
def test_what_cannot_be_imported_gets_a_sentence(name, code, words, say, place):
    if code:
        (place / f"{name}.py").write_text(code)
    said = say("--import", name, "models")
    assert said.status == 2 and said.err.count("\n") == 1 and all(word in said.err for word in words), said.err
    assert say("--import").status == 2


def test_help_lists_what_belongs_to_no_command(say):
    said = say("--help").out
    assert all(option in said for option in ("--version", "--import", "--tyro-print-completion"))
