"""`mspcaps bench pixels`: cost per pixel, beside the smallest size of the run."""

import pytest

from mspcaps.bench import bench_pixels, pixels, tables
from mspcaps.bench.pixels import SIZES, count_bytes
from mspcaps.bench.variants import Task
from mspcaps.errors import MspcapsError


@pytest.mark.slow
def test_memory_of_lacaps_grows_with_the_pixels_and_that_of_mspcaps_faster():
    def per_pixel(model: str, side: int) -> float:
        task = Task(max(2, 2 * (512 // side) ** 2), side)
        return count_bytes(model, task) / pixels.pixels(task)

    lacaps = [per_pixel("lacaps_t", side) for side in SIZES]
    assert max(lacaps) < 1.3 * lacaps[0]
    assert per_pixel("mspcaps_t", 224) > 1.3 * per_pixel("mspcaps_t", 64)


@pytest.mark.slow
def test_every_size_is_compared_with_the_smallest(monkeypatch: pytest.MonkeyPatch):
    result = bench_pixels("lacaps_t", quick=True)
    first, second = result["sizes"]
    assert (first["img_size"], first["batch_size"], second["img_size"], second["batch_size"]) == (32, 4, 48, 2)
    assert first["relative_time"] == first["relative_memory"] == 1
    assert second["relative_time"] == pytest.approx(second["ns_per_pixel"] / first["ns_per_pixel"], rel=2e-3)
    (_, rows), *_ = tables.result_tables(result)[0]
    assert [row[0] for row in rows] == ["32", "48"] and rows[0][3] == "1.00 x"

    def small(recipe: object, device: object, classes: int, chans: int, size: tuple[int, int], images: int) -> None:
        if size[0] > 32:
            raise MspcapsError("too large")

    monkeypatch.setattr(pixels, "check_memory", small)
    result = bench_pixels("lacaps_t", quick=True)
    assert [one["img_size"] for one in result["sizes"]] == [32] and result["refused"] == {"48": "too large"}


def test_one_image_is_no_batch():
    with pytest.raises(MspcapsError, match="1"):
        bench_pixels("lacaps_t", batch_size=1)
