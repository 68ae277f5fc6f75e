"""The benchmark of families: which ones, figures that hang together, what fails is told."""

import json

import pytest
import torch

from mspcaps.bench import bench_families, families, list_families, tables, write_result
from mspcaps.cli import main
from mspcaps.errors import MspcapsError
from mspcaps.models import list_models, summarize

CPU = torch.device("cpu")
FEW = ("resnet20", "efficient_capsnet")


def test_every_family_is_there_and_no_variant():
    found = list_families()
    assert {"mspcaps_t", "mspcaps_l", "capsnet", "deepcaps", "orthcaps_s", "orthcaps_d", "resnet18"} <= set(found)
    assert not [name for name in found if name.startswith(("mspcaps_t_", "mspcaps_l_"))]
    assert set(found) <= set(list_models())


@pytest.mark.slow
def test_figures_hang_together(tmp_path):
    found = bench_families(device=CPU, batch_size=4, models=FEW, quick=True)
    assert list(found["families"]) == ["mspcaps_t", *FEW] and found["failed"] == {}
    for name, family in found["families"].items():
        cost, train = summarize(name), family["train"]
        assert (family["params"], family["macs"]) == (cost.params, cost.macs)
        assert train["images_per_second"] == pytest.approx(4000 / train["ms_per_step"]["median"], rel=1e-3)
        assert (train["form"], train["precision"], family["infer"]["form"]) == ("eager", "fp32", "channels_last")
        assert family["infer"]["images_per_second"] > 0 < family["infer"]["relative"] and train["relative"] > 0
        assert "peak_memory_bytes" not in train  # counted on a GPU only
    ((head, rows),), notes = tables.result_tables(found)
    assert [row[0] for row in rows] == ["efficient_capsnet", "resnet20", "mspcaps_t"], "fewest parameters first"
    assert all(len(row) == len(head) for row in rows) and notes
    path = write_result(tmp_path, found)
    assert path.name.startswith("families-resnet20+efficient_capsnet-") and json.loads(path.read_text()) == found


def test_many_models_make_no_long_name(tmp_path):
    """A file system takes 255 bytes; other models have another file, and the file still has all names."""
    facts = {"environment": {"device": "d", "software": {"torch": "2.13.0+cpu"}}, "what": "families", "quick": False}
    many = [facts | {"model": "+".join(list_families() * 3)}, facts | {"model": "+".join(list_families()[1:] * 3)}]
    paths = [write_result(tmp_path, result) for result in many]
    assert len({path.name for path in paths}) == 2 and all(len(path.name) < 100 for path in paths)
    assert [json.loads(path.read_text()) for path in paths] == many


def test_relative_is_to_the_reference_in_the_same_blocks():
    reference, other = families.Timing((2.0, 4.0, 3.0)), families.Timing((1.0, 2.0, 1.5))
    assert families.rates((reference, other), 6) == {"images_per_second": 4000.0, "relative": 2.0}


@pytest.mark.slow
def test_what_does_not_fit_is_told_and_the_rest_measured(monkeypatch):
    infer = families.Pair.infer

    def too_large(self: families.Pair, name: str) -> families.Forward:
        if name == "resnet20":
            raise torch.OutOfMemoryError("no room\nand more")
        return infer(self, name)

    monkeypatch.setattr(families.Pair, "infer", too_large)
    saved: list[list[str]] = []
    few = ("resnet20", "efficient_capsnet", "mspcaps_t_scale16")
    found = bench_families(
        "efficient_capsnet", CPU, 2, few, quick=True, save=lambda result: saved.append([*result["families"]])
    )
    assert saved == [["efficient_capsnet"], ["efficient_capsnet"], ["efficient_capsnet", "mspcaps_t_scale16"]]
    assert found["failed"] == {"resnet20": "no room"}
    assert any("no room" in note for note in tables.result_tables(found)[1])


@pytest.mark.slow
def test_the_command_writes_its_figures(tmp_path, capsys):
    words = ["bench", "families", "--model", "efficient_capsnet", "--models", "efficient_capsnet", "--quick"]
    assert main([*words, "--batch-size", "2", "--device", "cpu", "--results", str(tmp_path)]) == 0
    (path,) = (tmp_path / "bench").iterdir()
    assert json.loads(path.read_text())["quick"] and "efficient_capsnet" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["families", "--packed", "2"], ["train", "--models", "capsnet"]])
def test_options_of_another_benchmark_are_refused(words, capsys):
    assert main(["bench", *words]) != 0 and words[1] in capsys.readouterr().err


def test_bad_arguments_are_refused():
    with pytest.raises(MspcapsError, match="1"):
        bench_families(device=CPU, batch_size=1)
    with pytest.raises(MspcapsError, match="no_such"):
        bench_families(device=CPU, models=["no_such"])
