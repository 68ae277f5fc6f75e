"""Picture files, and answers about them. Nothing here imports torch: an exported model is asked without it."""

from mspcaps.pictures.answers import Prediction, picture_files, stream_answers
from mspcaps.pictures.files import SUFFIXES, read_form, read_picture, read_pixels

__all__ = ["SUFFIXES", "Prediction", "picture_files", "read_form", "read_picture", "read_pixels", "stream_answers"]
