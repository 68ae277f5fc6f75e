"""Debian's Chromium without a window, driven over its DevTools protocol: all that a test of a page needs."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import websocket

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --disable-dev-shm-usage --remote-debugging-port=0"
)


def find_chromium() -> str | None:
    return shutil.which("chromium")


class Chromium:
    """One browser with one page. Every request that the page makes is in `requests`."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        program = find_chromium()
        assert program is not None
        self.process = subprocess.Popen(
            [program, *FLAGS.split(), f"--user-data-dir={self.profile.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.requests: list[str] = []
        self.errors: list[str] = []  # exceptions and error lines of the page's console
        self.number = 0
        port = self.port()
        pages = json.load(urlopen(f"http://127.0.0.1:{port}/json", timeout=10))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self.socket = websocket.create_connection(address, timeout=30, suppress_origin=True)
        for domain in ("Page", "Network", "Runtime"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def port(self) -> int:
        """Chromium writes the port that it chose into its profile."""
        file = Path(self.profile.name) / "DevToolsActivePort"
        for _ in range(200):
            if file.exists() and (lines := file.read_text().split()):
                return int(lines[0])
            time.sleep(0.1)
        raise RuntimeError("chromium did not start")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            self.note(message)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.errors.append(json.dumps(params["args"])[:500])

    def resize(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def end_at(self, selector: str, margin: int) -> None:
        """Makes the window so high that it ends this many pixels below the element."""
        bottom = self.run(
            f"window.scrollTo(0, 0); document.querySelector({json.dumps(selector)}).getBoundingClientRect().bottom"
        )
        self.resize(self.run("window.innerWidth"), round(bottom) + margin)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression of the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 30) -> None:
        """Until the expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(f"Boolean({script})"):
                return
            time.sleep(0.1)
        raise TimeoutError(f"{script} is still not true; the page says {self.run('document.body.innerText')!r:.800}")

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width, height of an element on the screen, scrolled into view."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            " return [r.left, r.top, r.width, r.height]; })()"
        )
        return tuple(found)

    def click(self, selector: str) -> None:
        left, top, width, height = self.box(selector)
        self.drag([(left + width / 2, top + height / 2)])

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press at the first point, move over the others, let go at the last."""

        def mouse(kind: str, point: tuple[float, float], buttons: int) -> None:
            x, y = point
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

        mouse("mousePressed", points[0], 1)
        for point in points[1:]:
            mouse("mouseMoved", point, 1)
        mouse("mouseReleased", points[-1], 0)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def strangers(self, url: str) -> list[str]:
        """Requests to anything but the server at `url`; what is inside the page (data:, blob:) is no request."""
        home = urlsplit(url).netloc
        return [
            one
            for one in self.requests
            if not one.startswith(("data:", "blob:", "about:")) and urlsplit(one).netloc != home
        ]

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)
        self.profile.cleanup()

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
