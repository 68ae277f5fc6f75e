"""How far long work is, told in lines and in bars."""

import io
import sys
import types
from typing import Any

import pytest

from mspcaps.progress import Progress, clock, printable, say


def moments(monkeypatch: pytest.MonkeyPatch, *times: float) -> list[float]:
    """The clock stands at the last of the times that was asked for."""
    now = [times[0]]
    monkeypatch.setattr("mspcaps.progress.time.monotonic", lambda: now[0])
    return now


def test_lines_come_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 steps in 4 seconds; the rate is that of the last half minute, not of all time."""
    now, file = moments(monkeypatch, 100.0), io.StringIO()
    with Progress("images", every=3.0, file=file) as progress:
        for time, done in ((100.0, 0), (101.0, 100), (104.0, 256), (140.0, 640), (140.5, 700), (150.0, 960)):
            now[0] = time
            assert progress.due("run") == (time not in (101.0, 140.5))
            progress.update("run", done, 960, "loss 0.5", f"epoch {1 + done // 320}/3")
    assert file.getvalue().splitlines() == [
        "epoch 1/3   27 %  64 images/s  0:11 left  loss 0.5",
        "epoch 3/3   67 %  11 images/s  0:30 left  loss 0.5",
        "epoch 4/3  100 %  15 images/s  0:00 left  loss 0.5",
    ]


def test_work_too_short_for_a_rate_and_without_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    now, file = moments(monkeypatch, 0.0), io.StringIO()
    with Progress("bytes", every=1.0, file=file) as progress:
        progress.update("all at once", 5, 5)
        progress.update("a file", 0, None)
        now[0] = 2.0
        progress.update("a file", 3_000_000, None)
    assert file.getvalue().splitlines() == ["all at once  100 %", "a file  3,000,000  1.5 MB/s"]


@pytest.mark.parametrize(("parallel", "left"), [(False, ["b"]), (True, ["a", "b"])])
def test_a_bar_on_a_terminal(parallel: bool, left: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Progress("images", parallel=parallel) as progress:
        assert progress.bars is not None
        progress.update("a", 1, 10)
        progress.update("b", 2, 10, "loss 0.5")
        tasks = [(task.description, task.completed, task.total, task.fields["facts"]) for task in progress.bars.tasks]
    assert tasks == [(name, 1 if name == "a" else 2, 10, "" if name == "a" else "loss 0.5") for name in left]


class Notebook(types.ModuleType):
    """IPython in a kernel, as far as we use it."""

    def __init__(self) -> None:
        super().__init__("IPython")
        self.display_module, self.shown = types.ModuleType("IPython.display"), list[Any]()
        self.display_module.display = self.show  # type: ignore[attr-defined]

    def get_ipython(self) -> Any:
        return types.SimpleNamespace(kernel=object())

    def show(self, what: Any, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        self.shown.append([what])
        return types.SimpleNamespace(update=lambda what, raw: self.shown[-1].append(what))


def test_a_notebook_draws_in_place(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Ten thousand updates in ten seconds are one cell, drawn again four times a second, and no line."""
    now, notebook = moments(monkeypatch, 0.0), Notebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display_module)
    with Progress("images") as progress:
        for i in range(1, 10_001):
            now[0] = i / 1000
            progress.update("a <b>", i, 10_000, "loss 0.5")
    (states,) = notebook.shown
    assert 35 < len(states) < 45 and capsys.readouterr() == ("", "")
    last = states[-1]["text/html"]
    assert 'value="10000" max="10000"' in last and "a &lt;b&gt;" in last and "1,000 images/s" in last
    assert last.count("<progress") == 1 and "loss 0.5" in states[-1]["text/plain"]


def test_the_clock() -> None:
    assert [clock(seconds) for seconds in (0, 75, 3675)] == ["0:00", "1:15", "1:01:15"]


HOSTILE = "a\x1b[2Jb\x9b31m\rc\u202ed\x07"  # clears the screen, colours, goes back, turns the text, rings


def test_what_a_terminal_would_obey_is_shown(capsys: Any) -> None:
    assert printable(HOSTILE) == r"a\x1b[2Jb\x9b31m\rc\u202ed\x07"
    assert printable("Käse 猫 👩‍👧 x") == "Käse 猫 👩‍👧 x" and printable("two\nlines") == r"two\nlines"
    say("one\ntwo\x1b")
    file = io.StringIO()
    with Progress(file=file) as progress:
        progress.update(HOSTILE, 1, 1, HOSTILE)
    assert capsys.readouterr().out == "one\ntwo\\x1b\n"
    assert not set("\x1b\x9b\r\u202e\x07") & set(file.getvalue())
