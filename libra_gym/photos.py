"""People's own photos and videos, as they are meant to be seen: upright, opaque, eight bits a colour.

Photos of data sets are read by `libra_gym.datasets.images`, which leaves the pixels as the dots were put on them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from libra_gym.datasets.images import is_jpeg, read_bytes
from libra_gym.datasets.views import resized
from libra_gym.errors import LibraError
from libra_gym.suffixes import UNREAD_SUFFIXES

Pixels: TypeAlias = NDArray[np.uint8]
"""RGB, `(height, width, 3)`."""
Region: TypeAlias = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""

MOST_PIXELS = 1 << 30
"""OpenCV decodes no more."""

_UNDECODABLE = (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error)
"""What Pillow raises for files that are damaged."""


def read_photo(path: Path | str) -> Pixels:
    """The photo as RGB: turned as its EXIF says, what is transparent on white, 16 bits cut to 8, grey made colour.

    Of an animation it is the first picture. CMYK is converted without regard to a colour profile.
    """
    if (kind := Path(path).suffix.lower()) in UNREAD_SUFFIXES:
        raise LibraError(f"The photo {path} cannot be read, because it is of the kind {kind}; save it as JPEG or PNG.")
    data = read_bytes(path)
    try:
        if not is_jpeg(data) and _is_for_pillow(data):
            return _on_white(data)
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    except (*_UNDECODABLE, cv2.error, Image.DecompressionBombError) as error:
        raise LibraError(f"The photo {path} cannot be decoded ({_first_line(error)}); get this file again.") from error
    if image is None:
        raise LibraError(f"The photo {path} is damaged or of an unknown kind; get it again, or save it as JPEG or PNG.")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image), np.uint8)


def check_region(region: Sequence[int]) -> Region:
    """The region, if it is one."""
    if isinstance(region, str):
        raise LibraError(f"The region is the text {region!r}; give four whole numbers, such as (0, 0, 640, 480).")
    if len(region) == 4 and all(isinstance(number, int | np.integer) for number in region):
        left, top, width, height = region
        if width > 0 and height > 0 and left >= 0 and top >= 0:
            return left, top, width, height
    raise LibraError(f"The region {_text(region)} is no rectangle; it must be x,y,width,height in whole pixels.")


def crop(pixels: Pixels, region: Region) -> Pixels:
    """A region of a photo, which must lie in it."""
    left, top, width, height = check_region(region)
    if left + width > pixels.shape[1] or top + height > pixels.shape[0]:
        raise LibraError(
            f"The region {_text(region)} reaches beyond the photo, which has {pixels.shape[1]} × {pixels.shape[0]} "
            "pixels (width × height)."
        )
    return pixels[top : top + height, left : left + width]


def limit_side(pixels: Pixels, max_side: int) -> Pixels:
    """The photo made smaller if its longer side has more pixels than `max_side`."""
    if max_side < 1:
        raise LibraError(f"max_side is {max_side}, but a photo has at least 1 pixel.")
    height, width = pixels.shape[:2]
    scale = max_side / max(height, width)
    if scale >= 1:
        return pixels
    return resized(pixels, (max(round(height * scale), 1), max(round(width * scale), 1)))


# -------------------------------------------------------------------------------------------------------------- videos


_WHOLE = 0.9
"""The share of the frames that a file promises which it must hold; some kinds of video only estimate their number."""


@dataclass(frozen=True)
class Frame:
    """A picture of a video."""

    number: int
    time: float
    """Seconds since the video's start."""
    pixels: Pixels


@dataclass(frozen=True)
class Video:
    """A video file; frames are decoded while they are asked for."""

    path: Path

    def frames(self, every: int = 1) -> Iterator[Frame]:
        """Every so many frames, the first one included."""
        if every < 1:
            raise LibraError(f"every is {every}, but at least every 1st frame must be taken.")
        capture = self._open()
        rate, promised = self._rate(capture), int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        try:
            number = shown = 0
            while capture.grab():
                if number % every == 0:
                    decoded, image = capture.retrieve()
                    if decoded:
                        shown += 1
                        yield Frame(number, number / rate, np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8))
                number += 1
        finally:
            capture.release()
        if not shown:
            raise LibraError(f"The video {self.path} has no frame that OpenCV can decode; get this file again.")
        if number < _WHOLE * promised:
            raise LibraError(
                f"The video {self.path} ends after {number} of its {promised} frames; get this file again."
            )

    @property
    def length(self) -> int:
        """How many frames the file says that it has; at least 1."""
        capture = self._open()
        length = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        capture.release()
        return max(length, 1)

    def _open(self) -> cv2.VideoCapture:
        if not self.path.is_file():
            raise LibraError(f"There is no video {str(self.path)!r}.")
        capture = cv2.VideoCapture(str(self.path))
        if not capture.isOpened():
            raise LibraError(f"The video {self.path} is damaged or of a kind that OpenCV does not know.")
        return capture

    @staticmethod
    def _rate(capture: cv2.VideoCapture) -> float:
        rate = capture.get(cv2.CAP_PROP_FPS)
        return float(rate) if np.isfinite(rate) and rate > 0 else 25.0


# ----------------------------------------------------------------------------- what OpenCV would show in another way


def _is_for_pillow(data: bytes) -> bool:
    """Whether OpenCV would show a picture wrongly. Reads only the header.

    Of transparent pictures it shows the colours that hide under the transparency, and an AVIF it does not turn upright.
    """
    try:
        with _large_photos_allowed(), Image.open(io.BytesIO(data)) as picture:
            deep = picture.mode.startswith("I")  # 16 bits of grey, which Pillow would clip; OpenCV cuts them to 8
            return picture.format == "AVIF" or (picture.has_transparency_data and not deep)
    except _UNDECODABLE:  # not known to Pillow, which does not mean that OpenCV does not know it
        return False


def _on_white(data: bytes) -> Pixels:
    with _large_photos_allowed(), Image.open(io.BytesIO(data)) as picture:
        upright = ImageOps.exif_transpose(picture).convert("RGBA")
    white = Image.new("RGB", upright.size, "white")
    white.paste(upright, mask=upright.getchannel("A"))
    return np.array(white)


@contextmanager
def _large_photos_allowed() -> Iterator[None]:
    """Pillow refuses photos with more than 179 million pixels; here as many go as in OpenCV."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, MOST_PIXELS
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _text(region: Sequence[int]) -> str:
    return ",".join(str(number) for number in region)
