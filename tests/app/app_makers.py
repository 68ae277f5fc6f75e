"""Models, servers and questions for the tests of the app."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch

import mspcaps
from mspcaps.data import facts
from mspcaps.models import save_weights

SOURCE = Path(__file__).parents[2] / "src"


def weights(path: Path, name: str = "mspcaps_t", data: str = "fashionmnist", channels: int = 1) -> Path:
    """An untrained model for which images matter more than positions, as if it was trained on a set of the catalog."""
    torch.manual_seed(0)
    classes = list(facts(data).classes)
    model = mspcaps.create_model(name, num_classes=len(classes), in_chans=channels)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("position"):
                parameter *= 0.02
    save_weights(path, model, classes=classes, recipe={"data": data})
    return path


@dataclass(frozen=True)
class Server:
    """`mspcaps app` in a process of its own."""

    process: subprocess.Popen
    url: str
    log: Path

    def memory(self, field: str = "VmRSS") -> int:
        """Resident bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    def forget_peak(self) -> int:
        """From now on `peak` counts anew; the resident bytes of this moment."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.memory()

    def peak(self) -> int:
        """The most resident bytes since then, as the kernel saw them."""
        return self.memory("VmHWM")

    def upload(self, data: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer of POST /picture."""
        return post(f"{self.url}picture", data, "application/octet-stream")

    def ask(self, *values: object) -> str:
        """Through Gradio's own API, as its documentation says: the answer as HTML, or the sentence of its error."""
        status, reply = post(
            f"{self.url}gradio_api/call/answer", json.dumps({"data": values}).encode(), "application/json"
        )
        if status != 200:
            return str(reply)
        with urlopen(f"{self.url}gradio_api/call/answer/{reply['event_id']}", timeout=60) as stream:
            for line in stream:
                if line.startswith(b"event: "):
                    event = line[7:].strip().decode()
                elif line.startswith(b"data: ") and event in ("complete", "error"):
                    found = json.loads(line[6:])
                    return found[0] if event == "complete" else json.dumps(found)
        raise AssertionError("the stream ended without an answer")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def post(url: str, data: bytes, kind: str) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(Request(url, data, {"Content-Type": kind}), timeout=60) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.loads(error.read())


def start_server(folder: Path, *files: Path) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    words = [sys.executable, "-m", "mspcaps", "app", "--port", port, "--device", "cpu", "--weights", *files]
    with log.open("w") as out:
        process = subprocess.Popen([str(word) for word in words], env=env, stdout=out, stderr=subprocess.STDOUT)
    for _ in range(600):
        if "The app is running at" in log.read_text():
            return Server(process, f"http://127.0.0.1:{port}/", log)
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"the app did not start: {log.read_text()}")
