"""Reading photos."""

from __future__ import annotations

import io
import re
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from libra_gym.errors import LibraError

OVERLAY_MARK = {"Software": "libra-gym, libra count --overlay"}
"""Text within every picture that `libra count --overlay` draws: such a picture is no photo."""
_OVERLAY = re.compile(r".+-count(-\d+)?\.png")
_JPEG = b"\xff\xd8\xff"
_END = 0xD9
_BARE = (0x00, 0x01, *range(0xD0, 0xD9))
"""What may follow 0xFF in a JPEG and has no length behind it: nothing, within a scan, or a marker without content."""
_TIFF = (b"II*\x00", b"MM\x00*")
_ORIENTATION = 274


def read_image(path: Path | str) -> NDArray[np.uint8]:
    """The photo as RGB, ``(height, width, 3)``; grey photos get three equal channels.

    Pixels stay as they are stored: an EXIF orientation is ignored, since dots are annotated in stored pixels.
    """
    data = read_bytes(path)
    image = None
    if data:
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        except cv2.error:  # it has more pixels than OpenCV decodes
            raise LibraError(f"The photo {path} is too large to be decoded; make it smaller, and its dots.") from None
    if image is None:
        raise LibraError(f"The photo {path} is damaged or not an image that OpenCV knows; get this file again.")
    if data.startswith(_TIFF):
        image = _as_stored(np.asarray(image, np.uint8), data)
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _as_stored(image: NDArray[np.uint8], data: bytes) -> NDArray[np.uint8]:
    """A TIFF's pixels as they are stored; OpenCV turns them upright even when it is told to leave them."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            orientation = picture.getexif().get(_ORIENTATION, 1)
    except (OSError, SyntaxError, Image.DecompressionBombError):  # a kind of TIFF that Pillow does not know
        return image
    mirrored = np.fliplr(image) if orientation in (2, 4, 5, 7) else image
    turns = {3: 2, 4: 2, 5: 1, 6: 1, 7: -1, 8: -1}.get(orientation, 0)
    return np.ascontiguousarray(np.rot90(mirrored, turns))


def is_overlay(path: Path, *, unmarked: bool = True) -> bool:
    """Whether this is a picture that `libra count --overlay` has drawn, by its name and its mark.

    Those of earlier versions have no mark but Matplotlib's own (`unmarked`), which pictures of others have too.
    """
    if not _OVERLAY.fullmatch(path.name):
        return False
    try:
        with Image.open(path) as picture:
            if unmarked and str(picture.info.get("Software", "")).startswith("Matplotlib"):
                return True
            return all(picture.info.get(key) == text for key, text in OVERLAY_MARK.items())
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False


def is_turned(path: Path) -> bool:
    """Whether a photo is meant to be seen otherwise than it is stored."""
    try:
        with Image.open(path) as picture:
            return bool(picture.getexif().get(_ORIENTATION, 1) != 1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # one that is drawn has no file
        return False


def read_bytes(path: Path | str) -> bytes:
    """The file of a photo, unless it is gone or the end of a JPEG is."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise LibraError(f"The photo {path} cannot be read: {error.strerror or error}.") from error
    if is_jpeg(data) and not _has_end(data):  # decoders fill the lost end with grey
        raise LibraError(f"The photo {path} is truncated; get this file again.")
    return data


def is_jpeg(data: bytes) -> bool:
    """Whether a file's first bytes are those of a JPEG."""
    return data.startswith(_JPEG)


def _has_end(data: bytes) -> bool:
    """Whether a JPEG goes on to its end marker.

    Segments are passed over by their length, for some hold a small JPEG of their own. What comes behind the end, such
    as the film of a motion photo, is not looked at.
    """
    place = len(_JPEG) - 1
    while 0 <= (place := data.find(b"\xff", place)) < len(data) - 1:
        marker = data[place + 1]
        if marker == _END:
            return True
        if marker == 0xFF:  # filling before a marker
            place += 1
        elif marker in _BARE:
            place += 2
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return False
