"""Reading photos."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from libra_gym.errors import LibraError

_JPEG, _SCAN, _END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"


def read_image(path: Path | str) -> NDArray[np.uint8]:
    """The photo as RGB, ``(height, width, 3)``; grey photos get three equal channels.

    Pixels stay as they are stored: an EXIF orientation is ignored, since dots are annotated in stored pixels.
    """
    data = read_bytes(path)
    image = None
    if data:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise LibraError(f"The photo {path} is damaged or not an image that OpenCV knows; get this file again.")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def read_bytes(path: Path | str) -> bytes:
    """The file of a photo, unless it is gone or the end of a JPEG is."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise LibraError(f"The photo {path} cannot be read: {error.strerror or error}.") from error
    # Decoders fill the lost end of a JPEG with grey. No end marker can occur within a scan, so one must come after it.
    if is_jpeg(data) and data.rfind(_END) < data.rfind(_SCAN):
        raise LibraError(f"The photo {path} is truncated; get this file again.")
    return data


def is_jpeg(data: bytes) -> bool:
    """Whether a file's first bytes are those of a JPEG."""
    return data.startswith(_JPEG)
