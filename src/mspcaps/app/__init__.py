"""A page in the browser to try models: pick, upload or draw a picture, change it, and watch how the parts respond.

The work is done by `session.answer`, a plain function of a model, a picture and the changes to it, which knows nothing
of browsers. `layout` and `server` put it behind Gradio, which is an extra: `pip install 'mspcaps[app]'`.
"""

from mspcaps.app.session import Answer, Changes, answer
from mspcaps.app.store import ModelStore

__all__ = ["Answer", "Changes", "ModelStore", "answer"]
