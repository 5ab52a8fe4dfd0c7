"""The end of a JPEG: what comes behind it is not looked at, and where it is missing the photo is truncated."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from libra_gym.datasets import read_image
from libra_gym.datasets.images import read_bytes
from libra_gym.errors import LibraError


def jpeg(side=120, **options):
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "JPEG", **options)
    return data.getvalue()


KINDS = {"plain": {}, "progressive": {"progressive": True}, "restarts": {"restart_marker_blocks": 2}}


@pytest.mark.parametrize("trailer", [b"\0" * 9, b"\0\0\0\x18ftypmp42\xff\xda" * 50, b"\xff\xda", b"\xff\xff"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_behind_a_photo_is_left_alone(tmp_path, kind, trailer):
    data = jpeg(**KINDS[kind])
    (tmp_path / "plain.jpg").write_bytes(data)
    (tmp_path / "motion.jpg").write_bytes(data + trailer)
    np.testing.assert_array_equal(read_image(tmp_path / "motion.jpg"), read_image(tmp_path / "plain.jpg"))


@pytest.mark.parametrize("share", [0.2, 0.6, 0.99, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_photo_is_named_though_its_thumbnail_is_whole(tmp_path, kind, share):
    data, small = jpeg(**KINDS[kind]), jpeg(16)
    thumbnail = b"\xff\xe5" + (len(small) + 2).to_bytes(2) + small
    whole = data[:2] + thumbnail + data[2:]
    path = tmp_path / "photo.jpg"
    path.write_bytes(whole)
    assert read_bytes(path) == whole
    path.write_bytes(whole[: round(len(whole) * share) - 1])
    with pytest.raises(LibraError, match=r"photo\.jpg is truncated"):
        read_image(path)


def test_the_end_of_a_large_photo_is_found_at_once(tmp_path):
    (tmp_path / "large.jpg").write_bytes(jpeg(2500, quality=97))
    start = time.perf_counter()
    data = read_bytes(tmp_path / "large.jpg")
    assert len(data) > 8e6
    assert time.perf_counter() - start < 1.0
