"""Photos and videos of all kinds, as they are meant to be seen."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from libra_gym.errors import LibraError
from libra_gym.photos import Video, crop, limit_side, read_photo

LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}


@pytest.fixture(scope="module")
def scene():
    """Smooth colours, so that JPEG changes little."""
    small = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    return cv2.resize(small, (50, 40), interpolation=cv2.INTER_LINEAR)


def written(tmp_path, picture, kind, **options):
    path = tmp_path / f"photo.{kind.lower()}"
    picture.save(path, kind, **options)
    return path


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP"])
def test_a_plain_photo_is_read_as_it_is(tmp_path, scene, kind):
    path = written(tmp_path, Image.fromarray(scene), kind, **LOSSLESS.get(kind, {}))
    np.testing.assert_array_equal(read_photo(path), scene)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_turns_the_photo_upright(tmp_path, scene, kind, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    path = written(tmp_path, Image.fromarray(scene), kind, exif=exif, **LOSSLESS.get(kind, {"quality": 95}))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(path)), float)
    photo = read_photo(path)
    assert photo.shape == upright.shape
    assert np.abs(photo - upright).mean() < 2


@pytest.mark.parametrize("kind", LOSSLESS)
def test_what_is_transparent_is_white(tmp_path, scene, kind):
    alpha = np.full(scene.shape[:2], 255, np.uint8)
    alpha[:10], alpha[10:20] = 0, 51
    picture = Image.fromarray(np.dstack([scene, alpha]))
    photo = read_photo(written(tmp_path, picture, kind, **LOSSLESS[kind])).astype(float)
    assert (photo[:10] == 255).all()
    np.testing.assert_allclose(photo[10:20], scene[10:20] * 0.2 + 255 * 0.8, atol=1.01)
    np.testing.assert_array_equal(photo[20:], scene[20:])


@pytest.mark.parametrize("channels", [3, 4])
def test_an_avif_is_turned_upright(tmp_path, channels):
    pixels = np.full((64, 96, channels), 255, np.uint8)
    pixels[:32, :48, :3] = 0
    exif = Image.Exif()
    exif[274] = 6
    photo = read_photo(written(tmp_path, Image.fromarray(pixels), "AVIF", exif=exif, quality=95))
    assert photo.shape == (96, 64, 3)
    assert photo[10, 54].max() < 50 < 200 < photo[10, 10].min()


def test_a_damaged_avif_is_named(tmp_path, scene):
    noise = np.random.default_rng(0).integers(0, 256, (200, 240, 4), np.uint8)
    path = written(tmp_path, Image.fromarray(noise), "AVIF")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(LibraError, match=r"photo\.avif"):
        read_photo(path)


def test_a_transparent_photo_is_turned_too(tmp_path, scene):
    exif = Image.Exif()
    exif[274] = 6
    picture = Image.fromarray(np.dstack([scene, np.full(scene.shape[:2], 255, np.uint8)]))
    photo = read_photo(written(tmp_path, picture, "PNG", exif=exif))
    np.testing.assert_array_equal(photo, np.rot90(scene, -1))


def test_a_transparent_colour_of_a_palette_is_white(tmp_path):
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((0, 0), 0)
    photo = read_photo(written(tmp_path, picture, "PNG", transparency=0))
    assert photo[0, 0].tolist() == [255, 255, 255]
    assert photo[1, 1].tolist() == [0, 0, 255]


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
@pytest.mark.parametrize("grey", [False, True])
def test_sixteen_bits_are_cut_to_eight(tmp_path, scene, suffix, grey):
    deep = scene.astype(np.uint16) * 257
    path = tmp_path / f"deep{suffix}"
    cv2.imwrite(str(path), deep[..., 0] if grey else deep[..., ::-1])
    expected = np.repeat(scene[..., :1], 3, 2) if grey else scene
    np.testing.assert_array_equal(read_photo(path), expected)


def test_sixteen_bits_of_grey_with_a_transparent_colour_are_cut_too(tmp_path, scene):
    """Pillow would make all of it white."""
    picture = Image.fromarray(scene[..., 0].astype(np.uint16) * 257)
    photo = read_photo(written(tmp_path, picture, "PNG", transparency=0))
    np.testing.assert_array_equal(photo, np.repeat(scene[..., :1], 3, 2))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_is_converted(tmp_path, scene, kind):
    path = written(
        tmp_path, Image.fromarray(scene).convert("CMYK"), kind, **({"quality": 95} if kind == "JPEG" else {})
    )
    assert np.abs(read_photo(path).astype(float) - scene).mean() < 3


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_has_three_equal_channels(tmp_path, scene, mode):
    picture = Image.fromarray(scene).convert(mode)
    photo = read_photo(written(tmp_path, picture, "PNG"))
    np.testing.assert_array_equal(photo, np.repeat(np.asarray(picture.convert("L"))[..., None], 3, 2))


@pytest.mark.parametrize(
    ("kind", "transparent"),
    [*((kind, False) for kind in ("JPEG", "PNG", "WEBP", "TIFF", "BMP")), *((kind, True) for kind in LOSSLESS)],
)
def test_half_a_file_is_an_error_that_names_it(tmp_path, scene, kind, transparent):
    picture = Image.fromarray(np.dstack([scene, scene[..., 0]]) if transparent else scene)
    data = io.BytesIO()
    picture.save(data, kind)
    path = tmp_path / "half.img"
    path.write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
    with pytest.raises(LibraError, match=r"half\.img"):
        read_photo(path)


def test_a_damaged_transparent_photo_is_an_error_that_names_it(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 4), np.uint8)  # several chunks
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "PNG")
    path = tmp_path / "zeros.png"
    half = len(data.getvalue()) // 2
    path.write_bytes(data.getvalue()[:half] + bytes(half))
    with pytest.raises(LibraError, match=r"zeros\.png"):
        read_photo(path)


def test_a_long_text_in_a_photo_does_no_harm(tmp_path, scene):
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "a" * (1 << 21), zip=True)
    path = written(tmp_path, Image.fromarray(scene), "PNG", pnginfo=text)
    np.testing.assert_array_equal(read_photo(path), scene)


@pytest.mark.parametrize("content", [b"", b"not a photo", None])
def test_what_is_no_photo_is_named(tmp_path, content):
    path = tmp_path / "thing.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LibraError, match=r"thing\.jpg"):
        read_photo(path)


def test_pillows_own_limit_is_left_as_it_was(tmp_path, scene):
    before = Image.MAX_IMAGE_PIXELS
    read_photo(written(tmp_path, Image.fromarray(scene), "PNG"))
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_region_is_cut_out(scene):
    np.testing.assert_array_equal(crop(scene, (10, 5, 20, 30)), scene[5:35, 10:30])
    assert crop(scene, (0, 0, 50, 40)).shape == scene.shape


@pytest.mark.parametrize("region", [(0, 0, 0, 5), (-1, 0, 5, 5), (40, 0, 11, 5), (0, 39, 5, 2), (1, 2, 3)])
def test_a_region_must_lie_in_the_photo(scene, region):
    with pytest.raises(LibraError, match=",".join(map(str, region))):
        crop(scene, region)


@pytest.mark.parametrize(("side", "size"), [(25, (20, 25)), (50, (40, 50)), (1000, (40, 50)), (1, (1, 1))])
def test_the_longer_side_is_limited(scene, side, size):
    assert limit_side(scene, side).shape[:2] == size


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Ten grey frames, each lighter than the one before, five a second."""
    path = tmp_path_factory.mktemp("video") / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 5.0, (64, 48))
    for number in range(10):
        writer.write(np.full((48, 64, 3), 20 * number, np.uint8))
    writer.release()
    return path


@pytest.mark.parametrize(("every", "numbers"), [(1, list(range(10))), (4, [0, 4, 8]), (99, [0])])
def test_every_so_many_frames_of_a_video(clip, every, numbers):
    frames = list(Video(clip).frames(every))
    assert [frame.number for frame in frames] == numbers
    assert [frame.time for frame in frames] == pytest.approx([number / 5 for number in numbers])
    for frame in frames:
        assert frame.pixels.mean() == pytest.approx(20 * frame.number, abs=4)


def test_a_video_knows_its_length(clip):
    assert Video(clip).length == 10


@pytest.mark.parametrize("content", [b"not a video", None])
def test_what_is_no_video_is_named(tmp_path, content):
    path = tmp_path / "thing.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LibraError, match=r"thing\.mp4"):
        list(Video(path).frames())


def test_a_video_that_was_cut_off_gives_its_frames_and_then_an_error(tmp_path):
    whole, cut = tmp_path / "whole.avi", tmp_path / "cut.avi"
    writer = cv2.VideoWriter(str(whole), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (96, 96))
    for number in range(30):
        writer.write(np.random.default_rng(number).integers(0, 256, (96, 96, 3), np.uint8))
    writer.release()
    assert len(list(Video(whole).frames())) == 30
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    numbers = []

    def watch():
        for frame in Video(cut).frames():
            numbers.append(frame.number)

    with pytest.raises(LibraError, match=r"ends after \d+ of its 30 frames"):
        watch()
    assert 5 < len(numbers) < 25


def test_a_video_without_a_frame_that_can_be_decoded_is_an_error(clip, monkeypatch):
    class Blind:
        left = 10

        def isOpened(self):
            return True

        def get(self, _):
            return 10

        def grab(self):
            self.left -= 1
            return self.left >= 0

        def retrieve(self):
            return False, None

        def release(self):
            pass

    monkeypatch.setattr(cv2, "VideoCapture", lambda path: Blind())
    with pytest.raises(LibraError, match="no frame that OpenCV can decode"):
        list(Video(clip).frames(5))


def test_a_preview_in_a_raw_file_is_no_photo(tmp_path, scene):
    cv2.imwrite(str(tmp_path / "a.tif"), scene)
    (tmp_path / "a.tif").rename(tmp_path / "a.PEF")
    with pytest.raises(LibraError, match=r"of the kind \.pef"):
        read_photo(tmp_path / "a.PEF")


def test_kinds_of_phones_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "a.HEIC").write_bytes(b"ftypheic")
    with pytest.raises(LibraError, match=r"of the kind \.heic; save it as JPEG"):
        read_photo(tmp_path / "a.HEIC")
