"""The benchmark measures what it says: the reference trains and computes what ours computes, the figures agree."""

import json
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mspcaps.bench import attack, bench_attack, bench_infer, bench_train, infer, tables, write_result
from mspcaps.bench.packed import measure_packed, measure_sweep, rate_while_all_train, run_together
from mspcaps.bench.result import slug, yardstick
from mspcaps.bench.tables import busy_note, number
from mspcaps.bench.timing import Effort, Timing, quantile, time_interleaved, timed
from mspcaps.bench.train import compare_group
from mspcaps.bench.variants import AugmentedPictures, EagerReference, EngineRun, Task, random_crop
from mspcaps.cli import main
from mspcaps.data import Augmentation, load_dataset
from mspcaps.errors import MspcapsError
from mspcaps.files import format_duration
from mspcaps.models import summarize
from mspcaps.training.objective import batch_loss

CPU = torch.device("cpu")
SMALL = Task(batch_size=8, img_size=16, num_classes=3, images=24)


@pytest.fixture(scope="module")
def trained() -> dict:
    return bench_train("mspcaps_t", CPU, batch_size=4, scaling=True, quick=True)


def test_a_group_of_one_is_timed_beside_none():
    result = compare_group("mspcaps_t_scale16", SMALL, CPU, Effort.for_device(CPU, quick=True), lambda line: None)
    medians = [result[f"ms_per_step_{name}"]["median"] for name in ("alone", "grouped", "synchronised")]
    assert result["relative_grouped"] == pytest.approx(medians[1] / medians[0], rel=1e-3)
    assert result["message_bytes"] == 4 * summarize("mspcaps_t_scale16", 3, 3, 16).params
    assert not torch.distributed.is_initialized(), "the group is left"
    head, rows = tables.group_table(result)
    assert len(head) == 3 and rows[0][2] == "1.000 x"
    result["relative_grouped"] = 1.0016  # of times that were not rounded yet: the page on scale says 0.2 %
    assert tables.group_table(result)[1][1][2] == "1.002 x"


def test_the_reference_computes_what_ours_computes():
    data, none = SMALL.data(), Augmentation()
    for name in ("mspcaps_t", "mspcaps_t_unshared", "resnet20"):
        run = EngineRun(SMALL.model(name), data, SMALL)
        run.loader.augment = none
        ours = batch_loss(run.step.model, run.loader)
        reference = EagerReference(SMALL.model(name), data, 8, none, CPU, workers=0)
        pictures, order = AugmentedPictures(data, none), run.loader.order[0].tolist()
        x, y = torch.stack([pictures[i][0] for i in order]), torch.stack([pictures[i][1] for i in order])
        theirs = reference.criterion(reference.model(x), y)
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
        ours_grad = torch.autograd.grad(ours, list(run.step.model.parameters()))
        for g, h in zip(ours_grad, torch.autograd.grad(theirs, list(reference.model.parameters())), strict=True):
            torch.testing.assert_close(g, h, rtol=1e-3, atol=1e-5)


def test_the_reference_trains():
    reference = EagerReference(SMALL.model("mspcaps_t"), SMALL.data(), 8, Augmentation(flip=True), CPU, workers=0)
    losses = []
    for _ in range(3):
        reference.loss_sum.zero_()
        assert reference.run(15) == 15
        losses.append(reference.loss_sum.item())
    assert losses[2] < 0.9 * losses[0]


def test_the_workers_bring_every_image_once_per_epoch_and_end():
    task = Task(batch_size=2, img_size=16, images=6)
    reference = EagerReference(task.model("mspcaps_t_scale16"), task.data(), 2, Augmentation(crop=2, flip=True), CPU, 1)
    batches = [next(reference.batches) for _ in range(6)]
    assert all(x.shape == (2, 3, 16, 16) and x.dtype == torch.float32 and x.max() <= 1 for x, _ in batches)
    labels = [torch.cat([y for _, y in epoch]).sort().values for epoch in (batches[:3], batches[3:])]
    assert torch.equal(*labels) and torch.equal(labels[0], task.data().labels.sort().values)
    workers = reference.loader._iterator._workers
    reference.close()
    deadline = time.monotonic() + 10
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(worker.is_alive() for worker in workers)


def test_crop_against_a_loop():
    image = torch.arange(1, 1 + 3 * 4 * 5).view(3, 4, 5)
    windows = set()
    for _ in range(60):
        window = random_crop(image, 1)
        (shift,) = [
            (dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)
            if all(
                window[c, y, x] == (image[c, y + dy, x + dx] if 0 <= y + dy < 4 and 0 <= x + dx < 5 else 0)
                for c in range(3) for y in range(4) for x in range(5)
            )
        ]  # fmt: skip
        windows.add(shift)
    assert len(windows) == 9


def test_our_run_goes_on_into_the_next_epoch():
    run = EngineRun(SMALL.model("mspcaps_t"), SMALL.data(), SMALL)
    assert run.run(4) == 4
    assert (run.epoch, run.done, int(run.loader.position)) == (1, 1, 1)
    assert torch.isfinite(run.step.loss_sum)
    assert run.step.optimizer.lr > 0


def test_packed_runs_all_take_their_steps():
    runs = [EngineRun(SMALL.model("mspcaps_t", seed), SMALL.data(), SMALL, seed=seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert run_together(runs, pool, 2) == 2
    assert [run.done for run in runs] == [2, 2]


@pytest.mark.slow
def test_sweeps_are_timed_while_all_runs_train(monkeypatch):
    """Two runs that do share the device."""
    monkeypatch.setattr("mspcaps.training.sweep.share_of_device", lambda model, device: 0.5)
    found = measure_sweep("mspcaps_t", SMALL, CPU, count=2, epochs=4)
    assert 0.2 < found["throughput_ratio"] < 4
    assert found["throughput_ratio"] == pytest.approx(
        2 * found["seconds_per_epoch_alone"] / found["seconds_per_epoch_of_all"], rel=0.01
    )
    effort = Effort(repeats=1, seconds=0.0, warmup=1)
    alone = measure_packed("mspcaps_t", SMALL, CPU, effort, 2, False, lambda line: None)
    assert "sweep" not in alone and alone["throughput_ratio"] > 0, "a sweep runs one at a time here"


def test_a_run_that_ends_no_epoch_beside_the_others_counts_in_part():
    assert rate_while_all_train([[0, 1, 2, 3], [0, 2, 4, 6]]) == pytest.approx(1 + 1 / 2)
    assert rate_while_all_train([[0, 1, 2], [0, 8, 16]]) == pytest.approx(1 + 1 / 8)
    assert rate_while_all_train([[0, 1], [5, 6]]) == pytest.approx(1), "the other one had not begun"


def test_timing_is_interleaved():
    calls: list[str] = []

    def sleeper(name: str, seconds: float) -> Callable[[int], int]:
        def run(steps: int) -> int:
            calls.append(name)
            time.sleep(steps * seconds)
            return steps

        return run

    variants = {"a": sleeper("a", 0.002), "b": sleeper("b", 0.006)}
    found = time_interleaved(variants, CPU, Effort(3, 0.02, 1), lambda name: calls.append(f"settle {name}"))
    assert calls == [*"aabb", *["settle a", "a", "settle b", "b"] * 3]
    assert 2 <= found["a"].median < found["b"].median
    assert Timing((3.0, 1.0, 2.0)).to_dict() == {
        "median": 2.0,
        "lowest": 1.0,
        "highest": 3.0,
        "samples": [3.0, 1.0, 2.0],
    }
    assert quantile([float(i) for i in range(1, 101)], 0.95) == 95


def test_a_clock_stops_when_the_device_is_done(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("mps"))
    for kind in ("cpu", "cuda", "mps"):
        assert timed(lambda: calls.append("work") or 1, torch.device(kind))[1] == 1
    assert calls == ["work", "cuda", "work", "cuda", "mps", "work", "mps"]


@pytest.mark.slow
def test_figures_of_training_hang_together(trained, tmp_path):
    variants = trained["variants"]
    assert [v["model"] for v in variants.values()] == ["mspcaps_t", "mspcaps_t", "resnet20", "mspcaps_t"]
    assert [v["params"] for v in variants.values()] == [344_320, 344_320, 269_722, 344_320]
    assert [v["precision"] for v in variants.values()] == ["fp32", "fp32", "fp32", "bf16"]
    for variant in variants.values():
        ms = variant["ms_per_step"]
        assert ms["lowest"] <= ms["median"] <= ms["highest"] and len(ms["samples"]) == 2
        assert variant["images_per_second"] == pytest.approx(4000 / ms["median"], rel=1e-3)
        assert variant["seconds_300_epochs"] == pytest.approx(300 * 12_500 * ms["median"] / 1000, rel=1e-3)
        flops = 6 * summarize(variant["model"]).macs * variant["images_per_second"]
        assert variant["tflops"] == pytest.approx(flops / 1e12, rel=1e-2)
        assert variant["share_of_matmul"] == pytest.approx(variant["tflops"] / trained["matmul"]["tflops"], rel=1e-2)
        assert not {"kernels_per_step", "peak_memory_bytes"} & set(variant)  # counted on a GPU only
    rate = {name: v["images_per_second"] for name, v in variants.items()}
    assert trained["ratios"]["ours_vs_reference"] == pytest.approx(rate["ours"] / rate["reference"], abs=1e-2)
    assert {axis: [row[axis] for row in rows] for axis, rows in trained["scaling"].items()} == {
        "img_size": [32, 48], "batch_size": [4, 8], "classes": [10, 20],
    }  # fmt: skip
    ((_, rows), *_), _ = tables.result_tables(trained)
    assert [row[0].split(", ")[1] for row in rows] == ["our engine", "reference", "our engine", "our engine"]
    path = write_result(tmp_path, trained)
    assert re.fullmatch(r"train-mspcaps_t-[\w-]*cpu-\d+-threads?-torch\d+\.\d+\.\d+-quick\.json", path.name)
    assert json.loads(path.read_text()) == trained
    assert {"device", "threads", "software", "commit", "load_before"} <= set(trained["environment"])


@pytest.mark.slow
def test_figures_of_inference_hang_together(monkeypatch):
    found = bench_infer("mspcaps_t", CPU, batch_size=4, quick=True)
    for variant in found["variants"].values():
        assert [form["form"] for form in variant["forms"]] == ["eager", "channels_last"]
        latencies = [form["latency_ms"] for form in variant["forms"]]
        assert all(0 < latency["median"] <= latency["p95"] for latency in latencies)
        assert variant["best_latency"]["median"] == min(latency["median"] for latency in latencies)
        rates = [p["images_per_second"]["median"] for form in variant["forms"] for p in form["throughput"]]
        assert variant["best_throughput"]["images_per_second"] == max(rates)
    why = "skipped in a quick run"
    assert found["unavailable"] == {"compiled": why, "onnxruntime": why}
    assert set(found["ratios"]) == {"latency_ours_vs_resnet", "throughput_ours_vs_resnet"}


def test_every_form_gives_the_same_answers():
    answers = []
    for form in ("eager", "channels_last"):
        forward = infer.Forward(Task().model("mspcaps_t"), form, CPU)
        forward.prepare(infer.random_images(3))
        answers.append(forward())
        assert not forward.model.training and answers[-1].is_inference()
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_onnxruntime_is_measured_beside_the_others(monkeypatch):
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    monkeypatch.setattr(infer, "FORMS", ("eager", "onnxruntime", "captured"))  # quick takes the first two
    works, fails = infer.prepare({"ours": "mspcaps_t_scale16"}, CPU, True, lambda line: None)
    for forward in works.values():
        forward.prepare(infer.random_images(3))
    torch.testing.assert_close(*[forward() for forward in works.values()], rtol=1e-5, atol=1e-5)
    both = {(who, form): forward for who in ("ours", "resnet") for (_, form), forward in works.items()}
    monkeypatch.setattr(infer, "prepare", lambda *args: (both, fails))  # another export would take seconds
    found = bench_infer("mspcaps_t_scale16", CPU, batch_size=2, quick=True)
    for variant in found["variants"].values():
        assert [form["form"] for form in variant["forms"]] == ["eager", "onnxruntime"]
        assert all(len(form["throughput"]) == 1 and form["latency_ms"]["calls"] == 10 for form in variant["forms"])
    ((_, rows),), notes = tables.result_tables(found)
    assert [row[:2] for row in rows][1] == ("mspcaps_t_scale16", "onnxruntime")
    assert f"onnxruntime {found['environment']['software']['onnxruntime']}" in "\n".join(notes)


def test_without_onnxruntime_the_table_says_so(monkeypatch):
    monkeypatch.setattr(infer, "FORMS", ("eager", "onnxruntime", "captured"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(infer, "to_onnx", lambda program, about: b"")
    works, fails = infer.prepare({"ours": "mspcaps_t_scale16"}, CPU, False, lambda line: None)
    assert [form for _, form in works] == ["eager"]
    assert "pip install 'mspcaps[onnx]'" in fails["onnxruntime"]


def test_a_machine_without_a_compiler_says_so(monkeypatch):
    def fail(model: torch.nn.Module, **options: object) -> object:
        def function(x: torch.Tensor) -> torch.Tensor:
            raise torch._dynamo.exc.BackendCompilerFailed(
                "inductor", RuntimeError("No C++ compiler"), first_useful_frame=None
            )

        return function

    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setattr(infer, "FORMS", ("eager", "channels_last", "compiled"))
    works, fails = infer.prepare({"ours": "mspcaps_t"}, CPU, False, lambda line: None)
    assert [form for _, form in works] == ["eager", "channels_last"]
    assert "No C++ compiler" in fails["compiled"]
    compile_once = [lambda x: x, fail(torch.nn.Identity())]  # ours compiles, what it is compared with does not
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile_once.pop(0))
    works, fails = infer.prepare({"ours": "mspcaps_t", "resnet": "mspcaps_t"}, CPU, False, lambda line: None)
    assert {form for _, form in works} == {"eager", "channels_last"} and "compiled" in fails


@pytest.mark.slow
def test_small_words():
    assert (yardstick("mspcaps_t"), yardstick("mspcaps_l")) == ("resnet20", "resnet18")
    assert busy_note({"environment": {"busy": False, "load_before": 0.1}}) == []
    assert "load 3.1" in busy_note({"environment": {"busy": True, "load_before": 3.1}})[0]
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert [number(x) for x in (0.5432, 12.345, 1234.5)] == ["0.543", "12.3", "1,234"]
    assert [format_duration(s) for s in (65, 1320, 90_000)] == ["65 s", "22 min", "25 h"]


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    assert main(["bench", "infer", "--quick", "--batch-size", "2", "--device", "cpu", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (path,) = tmp_path.glob("bench/*.json")
    assert f"Figures: {path}" in out
    assert re.search(r"mspcaps_t +channels_last +[\d.]+ ", out)


@pytest.mark.parametrize(
    ("args", "pattern"),
    [
        (["train", "--batch-size", "1"], r"batch_size is 1"),
        (["train", "--packed", "1"], r"packed is 1"),
        (["train", "--packed", "4"], r"GPU"),
        (["train", "--model", "mspcaps_tt"], r"'mspcaps_tt'.*'mspcaps_t'"),
        (["infer", "--batch-size", "0"], r"batch_size is 0"),
        (["infer", "--scaling"], r"--scaling"),
        (["votes", "--quick"], r"--batch-size"),
        (["infer", "--device", "abacus"], r"'abacus'"),
    ],
)
def test_bad_arguments_get_a_sentence(args, pattern, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--device", "cpu", *args] if "--device" not in args else ["bench", *args]) == 2
    err = capsys.readouterr().err
    assert re.search(pattern, err) and err.startswith("error: ") and err.count("\n") == 1


def test_a_library_call_refuses_like_the_command():
    with pytest.raises(MspcapsError, match="packed is 0"):
        bench_train("mspcaps_t", CPU, packed=0)


def test_a_folder_that_cannot_be_written_into_is_found_before_anything_is_measured(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["bench", "infer", "--quick", "--results", str(tmp_path / "file")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and str(tmp_path / "file" / "bench") in said.err


@pytest.mark.slow
def test_attacks_beside_foolbox(monkeypatch, tmp_path):
    pytest.importorskip("foolbox", reason="nothing to compare with")
    data = load_dataset("fashionmnist_sample", "test", 32).subset(slice(0, 30))
    monkeypatch.setattr(attack, "DATA", "fashionmnist")
    monkeypatch.setattr(attack, "load_dataset", lambda name, split: data)
    result = bench_attack("mspcaps_t", CPU, batch_size=8, quick=True)
    ours, theirs = result["variants"]["ours"], result["variants"]["foolbox"]
    assert result["images"] == 20 and ours["fooled"] >= theirs["fooled"] > 5
    assert ours["images_per_second"] == pytest.approx(20 / ours["seconds"]["median"], rel=1e-3)
    (head, rows), notes = tables.result_tables(result)[0][0], tables.result_tables(result)[1]
    assert len(rows) == 2 and all(len(row) == len(head) for row in rows) and "foolbox 3" in " ".join(notes)
    assert json.loads(write_result(tmp_path, result).read_text()) == result
    monkeypatch.setitem(sys.modules, "foolbox", None)
    alone = bench_attack("mspcaps_t", CPU, batch_size=10, quick=True)
    assert list(alone["variants"]) == ["ours"] and "foolbox" in alone["unavailable"] and "ratios" not in alone
    assert "foolbox" in tables.result_tables(alone)[1][-1]


@pytest.mark.parametrize(("options", "value"), [({"model": "mspcaps_t_dr"}, "mspcaps_t_dr"), ({"batch_size": 0}, "0")])
def test_attacks_that_cannot_be_timed(options, value):
    with pytest.raises(MspcapsError, match=value):
        bench_attack(**{"device": CPU, "quick": True, **options})
