"""Picture files, and answers about them. Nothing here imports torch: an exported model is asked without it."""

from mspcaps.pictures.answers import Prediction, picture_files, stream_answers
from mspcaps.pictures.files import pictures_below, read_form, read_picture, read_pixels

__all__ = [
    "Prediction", "picture_files", "pictures_below", "read_form", "read_picture", "read_pixels", "stream_answers",
]  # fmt: skip
