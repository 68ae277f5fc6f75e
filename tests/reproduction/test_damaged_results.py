"""Every kind of result has one reader, which refuses what the pages could not show."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mspcaps.bench import result as bench
from mspcaps.errors import MspcapsError
from reproduction import study_tables
from reproduction.study_tables import read_ensembles, read_explanations, read_int8

RESULTS = Path(__file__).parents[2] / "results"
CANDIDATES = study_tables._EXPLANATION | study_tables._CANDIDATES
KINDS: list[tuple[str, Any, Callable[[Path], Any]]] = [
    ("explanation/mspcaps_t-cifar10.json", study_tables._EXPLANATION | study_tables._MEASURED, read_explanations),
    ("explanation/candidates-mspcaps_t-cifar10.json", CANDIDATES, read_explanations),
    ("export/int8.json", study_tables._INT8, read_int8),
    ("ensembles/efficient_capsnet-cifar10.json", study_tables._ENSEMBLE, read_ensembles),
]


def tables(content: Any, form: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every table of the content and each key that the form demands of it."""
    if isinstance(form, list):
        yield from tables(content[-1], form[0])
    elif isinstance(form, dict):
        for key, inner in form.items():
            names = [*content][-1:] if key == "*" else [key]
            if key != "*":
                yield content, key
            for name in names:
                yield from tables(content[name], inner)


@pytest.mark.parametrize(("name", "form", "read"), KINDS)
def test_whatever_is_missing_is_named(name: str, form: Any, read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir()
    shutil.copy(RESULTS / name, tmp_path / name)
    assert read(tmp_path)
    check_refusals(tmp_path / name, form, lambda: read(tmp_path))


@pytest.mark.parametrize("path", sorted((RESULTS / "bench").glob("*.json")), ids=lambda path: path.stem)
def test_whatever_is_missing_from_a_benchmark_is_named(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    form = bench._FORM | bench._FORMS[bench.read_result(copy)["what"]]
    check_refusals(copy, form, lambda: bench.read_result(copy))


def check_refusals(path: Path, form: Any, read: Callable[[], Any]) -> None:
    whole = path.read_text()
    for number, (_, key) in enumerate(tables(json.loads(whole), form)):
        content = json.loads(whole)
        table = [*tables(content, form)][number][0]
        del table[key]
        path.write_text(json.dumps(content))
        with pytest.raises(MspcapsError, match=rf"{path.name}.*\b{key}\b"):
            read()
