"""The page in Gradio's components; session.py computes the answers, templates/app.html words them."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspcaps.app.session import RANGES, Changes, answer
from mspcaps.app.store import ModelStore
from mspcaps.app.uploads import MAX_UPLOAD_BYTES, MAX_UPLOAD_PIXELS
from mspcaps.data import CATALOG
from mspcaps.errors import MspcapsError
from mspcaps.evaluation.load import trained_on
from mspcaps.pages import macro, render

if TYPE_CHECKING:
    import gradio as gr

TITLE = "mspcaps: parts and wholes"
COLOURS = {"white": "#ffffff", "red": "#d63a2f", "yellow": "#f0c33c", "green": "#3f9b4f", "blue": "#3a78c9"}
# Gradio reads these from the environment only. The last two tame its monitor, which counts all earlier answers at every
# new one, even when switched off.
GRADIO_ENVIRONMENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_MAX_EVENTS": "1",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": "1000000000",
}
# Gradio sends the values of its components; the picture comes from our own script.
ASK_JS = "(picture, ...rest) => { window.mspcaps.pending(true); return [window.mspcaps.picture, ...rest]; }"


def import_gradio() -> Any:
    """Gradio, without telemetry."""
    os.environ.update(GRADIO_ENVIRONMENT)
    try:
        import gradio
    except ImportError as error:
        raise MspcapsError("the app needs gradio: pip install 'mspcaps[app]'") from error
    return gradio


def layout(gr: Any, store: ModelStore, workers: int) -> "gr.Blocks":
    first = store.names[0]
    upload_zone = macro("app.html", "upload_zone")(MAX_UPLOAD_BYTES // 10**6, MAX_UPLOAD_PIXELS // 10**6)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(macro("app.html", "heading")(), apply_default_css=False, js_on_load=None)
        with gr.Row(elem_classes="desk", equal_height=False):
            with gr.Column(scale=0, min_width=330, elem_classes="controls"):
                model = gr.Dropdown(store.names, value=first, label="Model", filterable=False, elem_id="model")
                with gr.Tabs(elem_id="sources"):
                    samples = tab(gr, "Samples", sample_buttons(store, first), "samples(element, trigger, watch)")
                    upload = tab(gr, "Upload", upload_zone, "upload(element, trigger)")
                    drawing = tab(gr, "Draw", macro("app.html", "drawing_board")(COLOURS), "draw(element, trigger)")
                rotation = slider(gr, "rotation", "Rotation, degrees clockwise", 1)
                noise = slider(gr, "noise", "Noise, levels out of 255", 1)
                attack = slider(gr, "fgsm", "FGSM attack, levels out of 255", 0.5)
                reset = gr.Button("Undo all changes", elem_id="reset", size="sm")
            with gr.Column(scale=1, min_width=320):
                waiting = macro("app.html", "message")("The answer will appear here.")
                result = gr.HTML(waiting, apply_default_css=False, elem_id="answer")
        tree = gr.HTML("", apply_default_css=False, elem_id="tree", js_on_load="mspcaps.unfold(element, watch)")
        picture = gr.Textbox(visible=False)
        model.change(
            lambda name: sample_buttons(store, name),
            model, samples, show_progress="hidden", api_visibility="private", concurrency_limit=workers,
        )  # fmt: skip
        answered = gr.on(
            [part.input for part in (samples, upload, drawing)] + [part.change for part in (rotation, noise, attack)],
            predict_fn(store),
            [picture, model, rotation, noise, attack],
            [result, tree],
            js=ASK_JS,
            preprocess=False,  # our own checks refuse bad values in plain sentences
            trigger_mode="always_last",  # a moving slider skips values that are out of date
            concurrency_limit=workers,
            show_progress="hidden",
            api_name="answer",
        )
        answered.then(None, None, None, js="() => window.mspcaps.pending(false)", api_visibility="private")
        reset.click(None, None, [rotation, noise, attack], js="() => [0, 0, 0]", api_visibility="private")
    return blocks


def predict_fn(store: ModelStore) -> Callable[..., tuple[str, str]]:
    """The function that Gradio calls: whatever comes in, HTML comes out."""
    message = macro("app.html", "message")

    def predict(picture: object, model: object, rotation: object, noise: object, fgsm: object) -> tuple[str, str]:
        try:
            changes = Changes.from_request(rotation=rotation, noise=noise, fgsm=fgsm)
            result = answer(store.model(model), picture, changes, store.truth(model, picture))
            return result.view, result.routing
        except MspcapsError as error:
            return message(str(error)), ""
        except Exception:
            logging.getLogger(__name__).exception("no answer could be computed")
            return message("Something went wrong; see the terminal that runs the app"), ""

    return predict


def slider(gr: Any, name: str, label: str, step: float) -> Any:
    low, high = RANGES[name]
    return gr.Slider(low, high, value=0, step=step, label=label, elem_id=name, buttons=[])


def tab(gr: Any, name: str, html: str, script: str) -> Any:
    with gr.Tab(name):
        # Gradio recognises an event only if its name appears in the script
        return gr.HTML(html, apply_default_css=False, js_on_load=f"mspcaps.{script}; // 'input'")


def sample_buttons(store: ModelStore, name: str) -> str:
    data = trained_on(store.model(name))
    return macro("app.html", "sample_buttons")(name, store.samples(name), CATALOG.get(data or ""))


def theme(gr: Any) -> Any:
    """System fonts only: Gradio's own themes load fonts from the web."""
    fonts = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Liberation Sans")
    mono = ("ui-monospace", "Menlo", "Consolas", "Liberation Mono", "monospace")
    return gr.themes.Base(font=[*fonts, "sans-serif"], font_mono=list(mono))


def head() -> str:
    """Style and script. The style sheets of our pages apply only inside .view, to leave Gradio's own elements alone;
    only the colours and fonts, with which the first sheet begins, apply to the whole page."""
    colours, _, rules = (render("design.css") + render("explanation.css")).partition("* {")
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("app.css", "app.js"))
    limits = f'const limits = {{"bytes": {MAX_UPLOAD_BYTES}}};\n'
    return f"<style>\n{colours}\n.view {{\n* {{{rules}}}\n{style}</style>\n<script>\n{limits}{script}</script>"
