"""Ctrl-C at any instant ends a command in silence."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
# Says when the first module after ours is looked for: before that the interpreter itself is not ready.
CODE = """
import os, sys
awaited = sys.argv.pop(1)
class Announce:
    def find_spec(self, name, path=None, target=None):
        if name == awaited:
            sys.meta_path.remove(self)
            os.write(1, b"ready")
sys.meta_path.insert(0, Announce())
from mspcaps.__main__ import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["mspcaps.cli", "torch"])
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3])
def test_ctrl_c_while_modules_are_loaded(module: str, delay: float, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, module, "bench", "infer", "--quick", "--device", "cpu"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"ready"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.slow
def test_an_import_cannot_swallow_it(tmp_path: Path) -> None:
    code = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    (tmp_path / "greedy.py").write_text(code + "print('on')\n")
    command = [sys.executable, "-m", "mspcaps", "--import", "greedy", "--version"]
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
