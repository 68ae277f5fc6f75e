"""Starting a script in several processes with torchrun, as a user would."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def environment() -> dict[str, str]:
    """The environment of this process, with one thread."""
    paths = os.pathsep.join(path for path in [str(HERE), *sys.path] if path)
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def torchrun(processes: int, *command: str, restarts: int = 0) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*start, "--max-restarts", str(restarts), *command]


def in_processes(processes: int, script: str, out: Path, *arguments: str, restarts: int = 0) -> str:
    """The output of a script run in this many processes; its first argument is `out`, which is empty."""
    path = out.parent / "script.py"
    path.write_text(script)
    for _ in range(3):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        command = torchrun(processes, str(path), str(out), *arguments, restarts=restarts)
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        # Very rarely a thread of PyTorch is not joined when a process ends, after all our work.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout
