"""Images already in memory, as Pillow images, arrays or tensors: one by one, in the size that a model takes.

Like pictures.py, this does not import torch. uint8 images are resized by the code that reads files, so a picture gets
the same answer whether we open it or the caller does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mspcaps.data.pictures import LUMA, read_picture
from mspcaps.errors import MspcapsError


def is_image(value: object) -> bool:
    """Whether the value is a Pillow image, an array or a tensor."""
    return isinstance(value, Image.Image | np.ndarray) or is_tensor(value)


def is_tensor(value: object) -> bool:
    return hasattr(value, "detach") and hasattr(value, "numpy")


def split_images(value: Any, channels: int) -> Iterator[Image.Image | np.ndarray]:
    """One image or a batch -> Pillow images, or arrays [h, w, c] of uint8 or of float32 in [0, 1]; `channels` is the
    number that the model takes."""
    if isinstance(value, Image.Image):
        yield value
        return
    array, first = (to_array(value), True) if is_tensor(value) else (np.asarray(value), False)
    yield from to_nhwc(check_pixels(array), channels, first)


def to_array(tensor: Any) -> np.ndarray:
    """A tensor on any device and of any precision -> an array."""
    try:
        tensor = tensor.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    except (TypeError, NotImplementedError, RuntimeError) as error:  # a sparse, quantised or meta tensor
        raise MspcapsError(f"images must be tensors that NumPy can read, but this is not one: {error}") from error


def check_pixels(array: np.ndarray) -> np.ndarray:
    """uint8 as it is, floats in [0, 1] as float32; anything else is refused."""
    if array.dtype == np.uint8:
        return array
    low, high = (array.min(), array.max()) if array.size and array.dtype.kind in "bfiu" else (0, 0)
    if array.dtype.kind == "f" and low >= 0 and high <= 1:  # false for NaN, too
        return array.astype(np.float32)
    values = f" from {low:g} to {high:g}" if array.dtype.kind in "bfiu" else ""
    remedy = ": divide them by 255" if array.dtype.kind == "f" and low >= 0 and 1 < high <= 255 else ""
    raise MspcapsError(f"images must be uint8, or floats in [0, 1], not {array.dtype}{values}{remedy}")


def to_nhwc(array: np.ndarray, channels: int, channels_first: bool) -> np.ndarray:
    """One image [h, w], [h, w, c], [c, h, w], or a batch of them, -> [n, h, w, c].

    The channels are the first or the last axis of an image, whichever has length 1, 3, 4 or the number that the model
    takes; if both do, the first one for tensors and the last one for arrays. A batch of grey images [n, h, w] has none.
    """
    shape, counts = array.shape, {1, 3, 4, channels}
    if array.ndim == 2:
        return array[None, :, :, None]
    if array.ndim not in (3, 4):
        raise MspcapsError(
            f"an image has the shape [h, w], [h, w, c] or [c, h, w], and a batch has one axis more, but this is {shape}"
        )
    first, last = shape[-3] in counts, shape[-1] in counts
    if array.ndim == 3 and not last and first and channels == 1 and shape[0] != 1:
        raise MspcapsError(
            f"images of shape {shape} could be {shape[0]} grey ones or a single one in colour: add an axis for the "
            "channels"
        )
    if array.ndim == 3 and not (first or last):
        return array[..., None]
    if not (first or last):
        raise MspcapsError(f"images of shape {shape} have no axis of 1 or 3 channels")
    batch = array if array.ndim == 4 else array[None]
    return np.moveaxis(batch, 1, -1) if first and (channels_first or not last) else batch


def fit_image(image: Path | Image.Image | np.ndarray, size: tuple[int, int], channels: int) -> np.ndarray:
    """-> [channels, *size], uint8 or float32, stretched to the size, in grey or colour as the model takes it."""
    if not isinstance(image, np.ndarray):
        return read_picture(image, size, channels)
    if image.shape == (*size, channels):
        return np.ascontiguousarray(np.moveaxis(image, -1, 0))
    if channels not in (1, 3) or image.shape[-1] not in (1, 3, 4) or 0 in image.shape:
        raise MspcapsError(
            f"the model takes images of {channels} x {size[0]} x {size[1]} (channels, height, width), and an image of "
            f"shape {image.shape} cannot be converted to that"
        )
    if image.dtype == np.uint8:
        pixels = np.ascontiguousarray(image[..., 0] if image.shape[-1] == 1 else image)
        return read_picture(Image.fromarray(pixels), size, channels)
    planes: np.ndarray = np.moveaxis(image, -1, 0)
    if len(planes) == 4:  # white where transparent, as in files
        planes = planes[:3] * planes[3:] + (1 - planes[3:])
    if channels == 1 and len(planes) == 3:
        planes = np.tensordot(np.array(LUMA, np.float32), planes, 1)[None]
    resized = [
        np.asarray(Image.fromarray(np.ascontiguousarray(plane)).resize(size[::-1], Image.Resampling.BILINEAR))
        for plane in planes
    ]
    return np.clip(np.broadcast_to(np.stack(resized), (channels, *size)), 0, 1)
