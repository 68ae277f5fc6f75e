"""`mspcaps app`."""

from pathlib import Path
from typing import Annotated

import tyro

from mspcaps.cli.common import Maybe


def app(
    weights: Annotated[tuple[Path, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    host: str = "127.0.0.1",
    port: Maybe[int] = None,
    device: Maybe[str] = None,
) -> None:
    """Serve a local web page for trying models on pictures: see the parts, rotate, add noise, attack.

    Args:
        weights: Your own .safetensors files, listed before the shipped models.
        host: Address to listen on. The default is reachable from this computer only; there is no password.
        port: Port to listen on; by default the first free one from 7860 on.
        device: cpu or cuda; default: the GPU if there is one.
    """
    from mspcaps.app import ModelStore
    from mspcaps.app.layout import import_gradio
    from mspcaps.training import choose_device

    import_gradio()  # if it is missing, say so before any model is loaded
    from mspcaps.app.server import start

    running = start(ModelStore([path.expanduser() for path in weights], choose_device(device)), host, port)
    print(f"The app is running at {running.url} until you press Ctrl-C.", flush=True)
    running.wait()
