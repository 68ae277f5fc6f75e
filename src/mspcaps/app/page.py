"""The page as Gradio lays it out, and the server behind it. Thin: whatever is worked out, session.py works out."""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mspcaps.app import view
from mspcaps.app.perturb import RANGES, Changes
from mspcaps.app.session import answer
from mspcaps.app.store import ModelStore, Sample, trained_on
from mspcaps.app.uploads import UPLOAD_BYTES, UPLOAD_PIXELS
from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError

if TYPE_CHECKING:
    import gradio as gr

TITLE = "mspcaps: parts and wholes"
COLOURS = {"white": "#ffffff", "red": "#d63a2f", "yellow": "#f0c33c", "green": "#3f9b4f", "blue": "#3a78c9"}
# Gradio reads these from the environment only. The last two concern a monitor that we switch off: without them every
# answer would still count all answers before it.
PRIVATE = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_MAX_EVENTS": "1",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}
# Gradio asks with what the components hold; the picture is held by our own script.
ASK = "(picture, ...rest) => { window.mspcaps.pending(true); return [window.mspcaps.picture, ...rest]; }"


@dataclass(frozen=True)
class Running:
    """A server at work in threads of this process."""

    url: str
    blocks: "gr.Blocks"

    def close(self) -> None:
        self.blocks.close(verbose=False)

    def wait(self) -> None:
        """Until Ctrl-C."""
        self.blocks.block_thread()


def start(shelf: ModelStore, host: str = "127.0.0.1", port: int | None = None) -> Running:
    """Serve the page; without a port the first free one from 7860 on."""
    gr = import_gradio()
    from starlette.middleware import Middleware
    from starlette.routing import Route

    from mspcaps.app.server import QUEUE, SESSIONS, UPLOAD_PATH, WORKERS, Gate, Uploads

    check_address(host, port)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // WORKERS))  # the workers share the cores
    blocks = layout(gr, shelf, WORKERS)
    blocks.queue(max_size=QUEUE, default_concurrency_limit=WORKERS)
    try:
        _, url, _ = blocks.launch(
            server_name=host,
            server_port=port,
            share=False,
            prevent_thread_lock=True,
            quiet=True,
            show_error=True,  # what Gradio itself refuses gets its sentence, too
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            state_session_capacity=SESSIONS,
            max_file_size=1,  # nothing comes in this way
            theme=theme(gr),
            head=head(),
            app_kwargs={
                "middleware": [Middleware(Gate)],
                "routes": [Route(UPLOAD_PATH, Uploads().post, methods=["POST"])],
            },
        )
    except OSError as error:  # between our look at the address and now somebody else has taken it
        raise MspcapsError(f"cannot listen on {host}: {error.strerror or error}") from error
    return Running(url, blocks)


def check_address(host: str, port: int | None) -> None:
    """Whether the server could listen there: Gradio waits for seconds and speaks of other things when it cannot."""
    if port is not None and not 0 < port < 65536:
        raise MspcapsError(f"port {port} does not exist: ports are numbered 1 to 65535")
    try:
        socket.create_server((host, port or 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        where = host if port is None else f"{host}, port {port}"
        raise MspcapsError(f"cannot listen on {where}: {error.strerror or error}") from error


def import_gradio() -> Any:
    """Gradio, told to keep to itself."""
    os.environ.update(PRIVATE)
    try:
        import gradio
    except ImportError as error:
        raise MspcapsError("the app needs gradio: pip install 'mspcaps[app]'") from error
    return gradio


def layout(gr: Any, shelf: ModelStore, workers: int) -> "gr.Blocks":
    first = shelf.names[0]
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(HEADER, apply_default_css=False, js_on_load=None)
        with gr.Row(elem_classes="desk", equal_height=False):
            with gr.Column(scale=0, min_width=330, elem_classes="controls"):
                model = gr.Dropdown(shelf.names, value=first, label="Model", filterable=False, elem_id="model")
                with gr.Tabs(elem_id="sources"):
                    samples = tab(gr, "Samples", sample_buttons(shelf, first), "samples(element, trigger, watch)")
                    upload = tab(gr, "Upload", UPLOAD, "upload(element, trigger)")
                    drawing = tab(gr, "Draw", draw_board(), "draw(element, trigger)")
                rotation = slider(gr, "rotation", "Rotation, degrees clockwise", 1)
                noise = slider(gr, "noise", "Noise, levels out of 255", 1)
                attack = slider(gr, "fgsm", "FGSM attack, levels out of 255", 0.5)
                reset = gr.Button("Undo all changes", elem_id="reset", size="sm")
            with gr.Column(scale=1, min_width=320):
                result = gr.HTML(
                    view.sentence("The answer will appear here."), apply_default_css=False, elem_id="answer"
                )
        tree = gr.HTML("", apply_default_css=False, elem_id="tree", js_on_load="mspcaps.unfold(element, watch)")
        picture = gr.Textbox(visible=False)
        model.change(
            lambda name: sample_buttons(shelf, name),
            model, samples, show_progress="hidden", api_visibility="private", concurrency_limit=workers,
        )  # fmt: skip
        asked = gr.on(
            [part.input for part in (samples, upload, drawing)] + [part.change for part in (rotation, noise, attack)],
            asker(shelf),
            [picture, model, rotation, noise, attack],
            [result, tree],
            js=ASK,
            preprocess=False,  # values are judged by our own checks, which answer in sentences
            trigger_mode="always_last",  # a slider on the move skips what is out of date
            concurrency_limit=workers,
            show_progress="hidden",
            api_name="answer",
        )
        asked.then(None, None, None, js="() => window.mspcaps.pending(false)", api_visibility="private")
        reset.click(None, None, [rotation, noise, attack], js="() => [0, 0, 0]", api_visibility="private")
    return blocks


def asker(shelf: ModelStore) -> Any:
    """The one question there is, as Gradio calls it: whatever comes in, HTML comes out."""

    def ask(picture: object, model: object, rotation: object, noise: object, fgsm: object) -> tuple[str, str]:
        try:
            changes = Changes.checked(rotation=rotation, noise=noise, fgsm=fgsm)
            found = answer(shelf.model(model), picture, changes, shelf.truth(model, picture))
            return found.view, found.tree
        except MspcapsError as error:
            return view.sentence(str(error)), ""
        except Exception:
            logging.getLogger(__name__).exception("no answer could be computed")
            return view.sentence("Something went wrong; see the terminal that runs the app"), ""

    return ask


def slider(gr: Any, name: str, label: str, step: float) -> Any:
    low, high = RANGES[name]
    return gr.Slider(low, high, value=0, step=step, label=label, elem_id=name, buttons=[])


def tab(gr: Any, name: str, html: str, script: str) -> Any:
    with gr.Tab(name):
        # the event's name has to stand in the script for Gradio to know it
        return gr.HTML(html, apply_default_css=False, js_on_load=f"mspcaps.{script}; // 'input'")


def sample_buttons(shelf: ModelStore, name: str) -> str:
    """Differs from model to model even where the pictures do not, so that the page notices the change."""
    samples = shelf.samples(name)
    if not samples:
        why = no_samples(trained_on(shelf.model(name)))
        return f'<p class="none" data-model="{escape(name)}">{escape(why)}</p>'
    return f'<div class="samples" data-model="{escape(name)}">{"".join(map(sample_button, samples))}</div>'


def sample_button(sample: Sample) -> str:
    title = escape(sample.title)
    return (
        f'<button type="button" title="{title}" aria-pressed="false" data-picture="{sample.picture}">'
        f'<img alt="{title}" src="{sample.picture}"></button>'
    )


def no_samples(data: str) -> str:
    if data in CATALOG:
        return f"The pictures of {CATALOG[data].title} are not on this machine: `mspcaps data get {data}` fetches them."
    return "There are no samples for this model: upload a picture or draw one."


def draw_board() -> str:
    pens = "".join(
        f'<button type="button" title="{name}" aria-label="{name}" aria-pressed="{str(name == "white").lower()}" '
        f'data-colour="{colour}" style="background:{colour}"></button>'
        for name, colour in COLOURS.items()
    )
    return (
        '<div class="board"><canvas width="256" height="256" aria-label="Drawing board"></canvas>'
        f'<div class="pens">{pens}<button type="button" class="clear">Clear</button></div></div>'
    )


HEADER = (
    '<div class="view heading"><h1>What does it see, and in which parts?</h1><p class="lead">Give a capsule network a '
    "picture, rotate it, add noise or attack it, and watch which parts still agree on the whole.</p></div>"
)
UPLOAD = (
    '<label class="zone"><input type="file" accept="image/png,image/jpeg,image/bmp,image/webp,image/gif">'
    "<b>Choose a picture</b> or drop it here"
    f"<span>PNG, JPEG, BMP, WebP or GIF, up to {UPLOAD_BYTES >> 20} MB and {UPLOAD_PIXELS // 10**6} megapixels. "
    "It stays on the computer that runs the app and "
    'is deleted once it is read.</span></label><p class="told" role="alert"></p>'
)


def theme(gr: Any) -> Any:
    """Fonts of the system only: Gradio's own themes name fonts to load."""
    fonts: Sequence[str] = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Liberation Sans")
    mono: Sequence[str] = ("ui-monospace", "Menlo", "Consolas", "Liberation Mono", "monospace")
    return gr.themes.Base(font=[*fonts, "sans-serif"], font_mono=list(mono))


def head() -> str:
    limits = f'const limits = {{"bytes": {UPLOAD_BYTES}}};\n'
    script = Path(__file__).with_name("app.js").read_text(encoding="utf-8")
    return f"<style>\n{view.style()}</style>\n<script>\n{limits}{script}</script>"
