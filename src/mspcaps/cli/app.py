"""`mspcaps app`."""

from pathlib import Path
from typing import Annotated

import tyro

from mspcaps.cli.options import Maybe


def app(
    weights: Annotated[tuple[Path, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    host: str = "127.0.0.1",
    port: Maybe[int] = None,
    device: Maybe[str] = None,
) -> None:
    """Serve a page to try models on your pictures, and print its address: see parts, turn, add noise, attack.

    Args:
        weights: Own .safetensors files; they come before the models that are shipped.
        host: Address to listen on; the default is reached from this computer only. There is no password.
        port: By default the first free one from 7860 on.
        device: cpu or cuda; by default the GPU if there is one.
    """
    from mspcaps.app import Shelf
    from mspcaps.app.page import import_gradio, start
    from mspcaps.training import choose_device

    import_gradio()  # its absence is told before any model is loaded
    running = start(Shelf([path.expanduser() for path in weights], choose_device(device)), host, port)
    print(f"The app is at {running.url} until you press Ctrl-C.", flush=True)
    running.wait()
