"""Folders as the Hugging Face hub has them: there and back without losing a bit, on disk and over the wire."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from local_hub import Hub, local_hub

import mspcaps
from mspcaps.cli import main
from mspcaps.errors import MspcapsError
from mspcaps.export import from_pretrained, save_pretrained
from mspcaps.export.hub import push_to_hub
from mspcaps.files import sha256_of
from mspcaps.models import Card, save_weights

SOURCE = Path(__file__).parents[2] / "src"
CLASSES = ["disc", "square", "Dreieck ∆"]


def small() -> torch.nn.Module:
    torch.manual_seed(3)
    model = mspcaps.create_model(
        "mspcaps_t_scale16", num_classes=3, in_chans=1, img_size=(16, 20), mean=[0.3], std=[0.2]
    )
    model.metadata = {"classes": CLASSES, "recipe": {"data": "pictures"}}
    return model.eval()


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) and x[name].dtype == y[name].dtype for name in x)


def test_there_and_back(tmp_path, capsys):
    model = small()
    folder = save_pretrained(model, tmp_path / "deep" / "folder")
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    again = from_pretrained(folder)
    assert same(model, again) and not again.training
    assert again.metadata["classes"] == CLASSES and again.config == model.config
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["architecture"], config["num_classes"], config["img_size"]) == ("mspcaps_t_scale16", 3, [16, 20])
    assert (config["classes"], config["mean"], config["library_name"]) == (CLASSES, [0.3], "mspcaps")
    assert main(["eval", str(folder / "model.safetensors")]) == 2  # it is a weights file like any other
    assert "pictures" in capsys.readouterr().err


def test_the_model_card_claims_nothing_that_nobody_measured(tmp_path):
    model = small()
    text = (save_pretrained(model, tmp_path) / "README.md").read_text(encoding="utf-8")
    front = text.split("---")[1].split()
    assert front[:2] == ["library_name:", "mspcaps"]
    assert {"capsule-network", "mspcaps_t_scale16"} <= set(front)
    assert "license:" not in front and "Accuracy" not in text
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in text
    text = (save_pretrained(model, tmp_path, licence="cc-by-4.0") / "README.md").read_text(encoding="utf-8")
    assert "license: cc-by-4.0\n" in text


def test_the_accuracy_is_that_of_shipped_weights(tmp_path, monkeypatch):
    """The card speaks of these very weights: with one number changed it no longer does."""
    shipped = tmp_path / "shipped"
    path = shipped / "mspcaps_t_scale16.mnist.safetensors"
    save_weights(path, small())
    known: dict[str, object] = dict.fromkeys(Card.__dataclass_fields__, "")
    known |= {"accuracy": 97.531, "test_images": 10_000, "dataset": "mnist", "measured_on": "an abacus", "probe": []}
    known |= {"bytes": path.stat().st_size, "sha256": sha256_of(path), "licence": "The weights: MIT, like mspcaps."}
    path.with_suffix(".json").write_text(json.dumps(known))
    monkeypatch.setattr(mspcaps.models.shipped, "weights_folder", lambda: shipped)
    text = (save_pretrained(small(), tmp_path / "a", licence="cc0-1.0") / "README.md").read_text(encoding="utf-8")
    assert "97.53 % of the 10,000 test images of mnist, measured on an abacus" in text
    assert "license: mit\n" in text, "theirs, whatever the caller says"
    other = small()
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1e-3
    text = (save_pretrained(other, tmp_path / "b") / "README.md").read_text(encoding="utf-8")
    assert "Accuracy" not in text and "license" not in text


@pytest.mark.parametrize("options", [{"position": False}, {"decoder": True}])
def test_shipped_weights_under_other_options_are_not_the_shipped_ones(tmp_path, options):
    """All that fits is copied, but the model has fewer tensors than the shipped one, or more."""
    other = mspcaps.create_model("mspcaps_t", pretrained="cifar10", **options)
    assert "Accuracy" not in (save_pretrained(other, tmp_path) / "README.md").read_text(encoding="utf-8")


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(MspcapsError, match="nowhere/at/all"):
        from_pretrained("nowhere/at/all")
    with pytest.raises(MspcapsError, match=r"\./nowhere"):
        from_pretrained("./nowhere")
    with pytest.raises(MspcapsError, match=r"model\.safetensors"):
        from_pretrained(tmp_path)
    with pytest.raises(MspcapsError, match="main"):
        from_pretrained(tmp_path, revision="main")
    with pytest.raises(MspcapsError, match="Linear"):
        save_pretrained(torch.nn.Linear(2, 2), tmp_path / "linear")
    nameless = small()
    nameless.metadata = {"classes": ["disc"]}
    with pytest.raises(MspcapsError, match="1"):
        save_pretrained(nameless, tmp_path / "nameless")
    assert list(tmp_path.iterdir()) == []
    folder = save_pretrained(small(), tmp_path / "mixed")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_classes": 4}))
    with pytest.raises(MspcapsError, match=r"num_classes.*4.*3"):
        from_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(MspcapsError, match=r"config\.json"):
        from_pretrained(folder)
    (folder / "config.json").unlink()
    assert same(from_pretrained(folder), small())
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: from_pretrained("owner/name"), lambda: push_to_hub(small(), "owner/name")):
        with pytest.raises(MspcapsError, match=r"mspcaps\[hub\]"):
            call()


def test_what_the_hub_is_asked_for(tmp_path, monkeypatch):
    asked: list[tuple[str, dict[str, object]]] = []

    def note(what: str, answer: object):
        return lambda *names, **options: (asked.append((what, dict(enumerate(names)) | options)), answer)[1]

    folder = save_pretrained(small(), tmp_path)
    hub = SimpleNamespace(
        create_repo=note("create", "https://hub/owner/name"),
        upload_folder=note("upload", None),
        snapshot_download=note("fetch", str(folder)),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(MspcapsError, match="name"):
        push_to_hub(small(), "name")
    assert asked == []
    assert push_to_hub(small(), "owner/name") == "https://hub/owner/name"
    assert asked[0] == ("create", {0: "owner/name", "private": False, "exist_ok": True})
    assert asked[1][0] == "upload" and asked[1][1]["repo_id"] == "owner/name"
    assert same(from_pretrained("owner/name", revision="v2"), small())
    wanted = {0: "owner/name", "revision": "v2", "allow_patterns": ["model.safetensors", "config.json"]}
    assert asked[2:] == [("fetch", wanted)]


ROUND_TRIP = """
import sys, torch, mspcaps
from mspcaps.errors import MspcapsError
torch.set_num_threads(1)
model = mspcaps.from_pretrained(sys.argv[1])
print(mspcaps.push_to_hub(model, "someone/shapes", private=True))
again = mspcaps.from_pretrained("someone/shapes")
x, y = model.state_dict(), again.state_dict()
print(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x), *again.metadata["classes"])
for name in ("someone/nothing", "someone/foreign"):
    try:
        mspcaps.from_pretrained(name)
    except MspcapsError as error:
        print(error)
"""


def in_a_process(code: str, hub: Hub, cache: Path, *args: object, **more: str) -> subprocess.CompletedProcess[str]:
    """huggingface_hub reads its settings when it is imported."""
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(SOURCE)}
    environment = {**os.environ, **own, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **more}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_over_the_wire(tmp_path):
    pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    folder = save_pretrained(small(), tmp_path / "folder")
    with local_hub() as hub:
        hub.files["someone/foreign"] = {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}
        done = in_a_process(ROUND_TRIP, hub, tmp_path / "cache", folder, HF_TOKEN="hf_of_the_test")
        assert done.returncode == 0, done.stderr
        address, verdict, missing, foreign = done.stdout.splitlines()
        assert address == f"{hub.address}/someone/shapes"
        assert verdict == f"True {' '.join(CLASSES)}"
        assert "there is no folder someone/nothing" in missing and "404" in missing
        assert "someone/foreign" in foreign and "model.safetensors" in foreign
        assert hub.private == {"someone/shapes": True}
        held = hub.files["someone/shapes"]
        assert {name: len(content) for name, content in held.items()} == {
            path.name: path.stat().st_size for path in folder.iterdir()
        }
        assert held["README.md"] == (folder / "README.md").read_bytes()
        assert sorted(hub.fetched) == ["config.json", "config.json", "model.safetensors"]  # nothing else was asked for
    # the hub is gone, the cache is not
    code = "import mspcaps; print(*mspcaps.from_pretrained('someone/shapes').metadata['classes'])"
    done = in_a_process(code, hub, tmp_path / "cache", HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout.strip()) == (0, " ".join(CLASSES)), done.stderr


@pytest.mark.slow
def test_a_push_that_may_not(tmp_path):
    pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
    code = (
        "import mspcaps\nfrom mspcaps.errors import MspcapsError\n"
        "try:\n    mspcaps.push_to_hub(mspcaps.create_model('mspcaps_t_scale16'), 'someone/else')\n"
        "except MspcapsError as error:\n    print(error)\n"
    )
    with local_hub() as hub:
        done = in_a_process(code, hub, tmp_path, HF_TOKEN="hf_of_nobody")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cannot upload the model to someone/else: ") and done.stdout.count("\n") == 1
    assert hub.files == {}
