"""Data sets: every release's spelling is found, every quirk survives, every broken file is named."""

import json
import logging
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
from dataset_helpers import DOTS, names, shanghaitech, write_mat, write_photo
from numpy.typing import ArrayLike
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from libra_gym.counts import patch_counts
from libra_gym.datasets import open_dataset, read_image
from libra_gym.datasets.images import OVERLAY_MARK, is_overlay
from libra_gym.datasets.inspection import inspect
from libra_gym.datasets.ucf_cc_50 import FOLDS
from libra_gym.errors import LibraError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


# ---------------------------------------------------------------------------------------------------------- releases


@pytest.mark.parametrize("home", ["part_A", "part_A_final", "Part_A", "ShanghaiTech/part_A", "."])
@pytest.mark.parametrize("truth", ["ground-truth", "ground_truth", "Ground Truth"])
def test_shanghaitech_is_found_in_every_spelling(tmp_path: Path, home: str, truth: str) -> None:
    root = tmp_path / "part_A" if home == "." else tmp_path
    shanghaitech(root / home, [1, 2, 10], truth=truth)
    dataset = open_dataset("shanghaitech_a", root)
    assert names(dataset, "train") == ["train/IMG_1", "train/IMG_2"]
    photo = dataset.photos("validation")[0]
    assert photo.name == "train/IMG_10"
    assert photo.image().shape == (20, 30, 3)
    np.testing.assert_array_equal(photo.points(), np.array(DOTS, np.float32))
    assert photo.points().dtype == np.float32


def test_part_a_is_not_mistaken_for_part_b(tmp_path: Path) -> None:
    shanghaitech(tmp_path / "part_A", [1])
    for root in (tmp_path, tmp_path / "part_A"):
        with pytest.raises(LibraError, match=r"part_B/train_data/images/IMG_1\.jpg"):
            open_dataset("shanghaitech_b", root)


def test_shanghaitech_validates_on_the_numbers_divisible_by_ten(tmp_path: Path) -> None:
    shanghaitech(tmp_path / "part_B", range(1, 41))
    shanghaitech(tmp_path / "part_B", [1, 10], folder="test_data")
    dataset = open_dataset("shanghaitech_b", tmp_path)
    assert names(dataset, "validation") == [f"train/IMG_{k}" for k in (10, 20, 30, 40)]
    assert len(names(dataset, "train")) == 36
    assert names(dataset, "test") == ["test/IMG_1", "test/IMG_10"]
    assert len(names(dataset, "train+validation+test")) == 42
    assert len(names(dataset, "train+train")) == 36


def test_the_leaked_photo_is_not_trained_on_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shanghaitech(tmp_path / "part_A", [119, 120, 121, 122])
    shanghaitech(tmp_path / "part_B", [121])
    dataset = open_dataset("shanghaitech_a", tmp_path)
    with caplog.at_level(logging.INFO, logger="libra_gym"):
        assert names(dataset, "train+validation") == ["train/IMG_119", "train/IMG_122", "train/IMG_120"]
    assert "train/IMG_121" in caplog.text
    assert "test/IMG_98" in caplog.text
    caplog.clear()
    assert len(names(open_dataset("shanghaitech_a", tmp_path), "train")) == 2
    assert caplog.text == ""  # once is enough
    assert names(dataset, "leaked") == ["train/IMG_121"]
    assert names(open_dataset("shanghaitech_b", tmp_path), "train") == ["train/IMG_121"]


@pytest.mark.parametrize("home", [".", "UCF_CC_50"])
def test_ucf_cc_50_has_five_fixed_folds(tmp_path: Path, home: str) -> None:
    for k in range(1, 51):
        write_photo(tmp_path / home / f"{k}.jpg", grey=True)
        write_mat(tmp_path / home / f"{k}_ann.mat", DOTS)
    dataset = open_dataset("ucf_cc_50", tmp_path)
    assert names(dataset, "all") == [str(k) for k in range(1, 51)]
    tested = [names(dataset, f"fold{k}-test") for k in range(1, 6)]
    assert sorted((name for fold in tested for name in fold), key=int) == names(dataset, "all")
    for k, fold in enumerate(tested, start=1):
        train, validation = names(dataset, f"fold{k}-train"), names(dataset, f"fold{k}-validation")
        assert (len(train), len(validation), len(fold)) == (36, 4, 10)
        assert set(train) | set(validation) | set(fold) == set(names(dataset, "all"))
    assert len(dataset.photos("all")[0].points()) == 2


def test_the_folds_are_those_of_their_seed() -> None:
    order = np.random.default_rng(50).permutation(50) + 1
    assert tuple(tuple(sorted(fold)) for fold in order.reshape(5, 10).tolist()) == FOLDS


@pytest.mark.parametrize(("home", "train"), [(".", "Train"), ("UCF-QNRF_ECCV18", "Train"), (".", "train")])
def test_ucf_qnrf_holds_out_a_fixed_tenth(tmp_path: Path, home: str, train: str) -> None:
    for k in range(1, 31):
        write_photo(tmp_path / home / train / f"img_{k:04d}.jpg")
        write_mat(tmp_path / home / train / f"img_{k:04d}_ann.mat", DOTS)
    dataset = open_dataset("ucf_qnrf", tmp_path)
    assert (len(names(dataset, "train")), len(names(dataset, "validation"))) == (27, 3)
    assert names(dataset, "validation") == names(open_dataset("ucf_qnrf", tmp_path), "validation")
    assert len(names(dataset, "train+validation")) == 30
    with pytest.raises(LibraError, match="'test'"):
        dataset.photos("test")
    assert "img_0031.jpg, img_0032.jpg" in dataset.missing()[0]


@pytest.mark.parametrize("home", [".", "jhu_crowd_v2.0"])
def test_jhu_reads_text_labels_and_photos_without_people(tmp_path: Path, home: str) -> None:
    for part, labels in (("train", "12 7 5 6 1 0\n3 4 2 2 1 0\n"), ("val", ""), ("test", "1.5 2.5 3 3 1 0")):
        write_photo(tmp_path / home / part / "images" / "0007.jpg")
        (tmp_path / home / part / "gt").mkdir()
        (tmp_path / home / part / "gt" / "0007.txt").write_text(labels)
    dataset = open_dataset("jhu", tmp_path)
    assert names(dataset, "train+validation+test") == ["train/0007", "validation/0007", "test/0007"]
    points = [photo.points().tolist() for photo in dataset.photos("train+validation+test")]
    assert points == [[[12, 7], [3, 4]], [], [[1.5, 2.5]]]


# --------------------------------------------------------------------------------------------------- a user's folder


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.csv", "3.5,4.25\n10,7\n"),
        ("a.csv", "x,y\r\n3.5, 4.25\r\n\r\n10,7,head\r\n"),
        ("a.csv", "\ufeffX,Y\n3.5,4.25\n10,7"),
        ("a.csv", "id,x,y\n1,3.5,4.25\n2,10,7\n"),
        ("a.csv", "y,x\n4.25,3.5\n7,10\n"),
        ("a.csv", '"x","y"\n"3.5","4.25"\n"10","7"\n'),
        ("a.json", json.dumps(DOTS)),
        ("a.json", json.dumps({"points": DOTS})),
    ],
)
def test_a_folder_takes_csv_and_json(tmp_path: Path, file: str, content: str) -> None:
    write_photo(tmp_path / "a.PNG")
    (tmp_path / file).write_text(content, encoding="utf-8")
    (photo,) = open_dataset("folder", tmp_path).photos("all")
    assert photo.name == "a.PNG"
    np.testing.assert_array_equal(photo.points(), np.array(DOTS, np.float32))


@pytest.mark.parametrize(("file", "content"), [("a.csv", ""), ("a.csv", "x,y\n"), ("a.json", "[]")])
def test_an_empty_label_file_means_nobody(tmp_path: Path, file: str, content: str) -> None:
    write_photo(tmp_path / "a.jpg")
    (tmp_path / file).write_text(content)
    (photo,) = open_dataset("folder", tmp_path).photos("all")
    assert photo.points().shape == (0, 2)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.csv", "1,2\n3\n", "Line 2 of"),
        ("a.csv", "12.5;80\n", "Line 1 of"),
        ("a.csv", "1,2\nnan,3\n", "Line 2 of"),
        ("a.csv", "1,2\n1e39,3\n", "Line 2 of"),
        ("a.csv", "id,x,y\n1,2\n", "Line 2 of"),
        ("a.csv", "1,2\nthree,four\n", "Line 2 of"),
        ("a.csv", "row,col\n1,2\n", "must name the columns x and y"),
        ("a.json", "[[NaN, 3]]", r"should be JSON like"),
        ("a.json", "{", r"should be JSON like"),
        ("a.json", '{"heads": []}', r"should be JSON like"),
        ("a.json", "[1, 2]", r"should be JSON like"),
        ("a.json", f"[[1{'0' * 400}, 2]]", r"should be JSON like"),
        ("a.json", "[" * 100_000, r"should be JSON like"),
        ("a.csv", f'1,2,"{"a" * 200_000}"\n', "is no CSV file"),
    ],
)
def test_a_wrong_label_file_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    write_photo(tmp_path / "a.jpg")
    (tmp_path / file).write_text(content)
    (photo,) = open_dataset("folder", tmp_path).photos("all")
    with pytest.raises(LibraError, match=message) as error:
        photo.points()
    assert str(tmp_path / file) in str(error.value)


def test_what_macos_keeps_beside_a_photo_is_no_photo(tmp_path: Path) -> None:
    write_photo(tmp_path / "a.jpg")
    (tmp_path / "._a.jpg").write_bytes(b"\0\5\x16\7")
    assert names(open_dataset("folder", tmp_path), "all") == ["a.jpg"]


def test_a_folder_is_split_by_subdirectories_or_held_out(tmp_path: Path) -> None:
    for k in range(20):
        write_photo(tmp_path / f"{k}.jpg")
    flat = open_dataset("folder", tmp_path)
    assert (len(names(flat, "train")), len(names(flat, "validation")), len(names(flat, "all"))) == (18, 2, 20)
    write_photo(tmp_path / "validation" / "v.jpg")
    write_photo(tmp_path / "test" / "t.jpg")
    assert names(flat, "validation") == ["validation/v.jpg"]
    assert names(flat, "test") == ["test/t.jpg"]
    assert len(names(flat, "train")) == 20


# ------------------------------------------------------------------------------------------------------------ quirks


def test_grey_photos_have_three_channels(tmp_path: Path) -> None:
    write_photo(tmp_path / "grey.jpg", grey=True)
    image = read_image(tmp_path / "grey.jpg")
    assert image.shape == (20, 30, 3)
    assert image.dtype == np.uint8
    assert (image == image[..., :1]).all()


def test_photos_are_rgb(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "red.png"), np.full((4, 4, 3), (0, 0, 255), np.uint8))
    assert read_image(tmp_path / "red.png")[0, 0].tolist() == [255, 0, 0]


def test_an_exif_orientation_does_not_turn_the_photo_away_from_its_dots(tmp_path: Path) -> None:
    write_photo(tmp_path / "plain.jpg")
    data = (tmp_path / "plain.jpg").read_bytes()
    # A TIFF directory with one entry: orientation (0x0112), short, one value, 6 (turned by 90°).
    tiff = b"MM\x00\x2a\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"
    exif = b"Exif\x00\x00" + tiff
    turned = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    (tmp_path / "turned.jpg").write_bytes(turned)
    obeyed = cv2.imread(str(tmp_path / "turned.jpg"))
    assert obeyed is not None
    assert obeyed.shape == (30, 20, 3)
    np.testing.assert_array_equal(read_image(tmp_path / "turned.jpg"), read_image(tmp_path / "plain.jpg"))


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_no_kind_of_photo_is_turned(tmp_path: Path, kind: str, orientation: int) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    exif = Image.Exif()
    exif[274] = orientation
    path = tmp_path / f"photo.{kind.lower()}"
    Image.fromarray(stored).save(path, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    np.testing.assert_array_equal(read_image(path), stored)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("filled", [False, True])
def test_a_truncated_photo_is_named(tmp_path: Path, suffix: str, filled: bool) -> None:
    path = tmp_path / f"cut{suffix}"
    write_photo(path, height=100, width=100)
    data = path.read_bytes()
    lost = len(data) // 3
    path.write_bytes(data[:-lost] + bytes(lost if filled else 0))
    with pytest.raises(LibraError, match="cut"):
        read_image(path)


@pytest.mark.parametrize("content", [b"", b"not a photo"])
def test_what_is_no_photo_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.jpg").write_bytes(content)
    with pytest.raises(LibraError, match=r"odd\.jpg"):
        read_image(tmp_path / "odd.jpg")
    with pytest.raises(LibraError, match=r"gone\.jpg"):
        read_image(tmp_path / "gone.jpg")


def test_photos_with_odd_dots_are_kept_and_reported(tmp_path: Path) -> None:
    odd: dict[int, ArrayLike] = {
        1: [(-3, 2), (5, 5), (30, 5)],
        2: [(5, 5)] * 3,
        3: np.zeros((0, 2)),
        4: np.zeros((0, 0)),
        5: [(1, 1)],
    }
    for k, dots in odd.items():
        write_photo(tmp_path / f"{k}.jpg", grey=True)
        write_mat(tmp_path / f"{k}_ann.mat", dots)
    dataset = open_dataset("ucf_cc_50", tmp_path)
    totals = [patch_counts(photo.points(), (20, 30)).sum() for photo in dataset.photos("all")]
    assert totals == pytest.approx([1, 3, 0, 0, 1], abs=1e-5)
    (report,) = inspect(dataset)
    assert report.people == [3, 3, 0, 0, 1]
    assert list(report.quirks.values()) == [5, 2, 2, 2]  # grey photos, empty photos, dots outside, dots on another
    assert not report.broken


def test_photos_can_be_sent_to_worker_processes(tmp_path: Path) -> None:
    shanghaitech(tmp_path / "part_A", [1])
    (photo,) = open_dataset("shanghaitech_a", tmp_path).photos("train")
    assert len(pickle.loads(pickle.dumps(photo)).points()) == 2


# ---------------------------------------------------------------------------------------------------------- mistakes


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LibraError, match=r"'sanghaitech'.*shanghaitech_a"):
        open_dataset("sanghaitech", tmp_path)
    with pytest.raises(LibraError, match="needs the directory"):
        open_dataset("jhu")
    with pytest.raises(LibraError, match="nowhere"):
        open_dataset("jhu", tmp_path / "nowhere")
    for name in ("shanghaitech_a", "ucf_cc_50", "ucf_qnrf", "jhu", "folder"):
        with pytest.raises(LibraError, match="should hold"):
            open_dataset(name, tmp_path)
    write_photo(tmp_path / "a.jpg")
    with pytest.raises(LibraError, match=r"'dev'.*train, validation, test, all"):
        open_dataset("folder", tmp_path).photos("train+dev")


def test_pictures_that_count_has_drawn_are_no_photos(tmp_path: Path) -> None:
    write_photo(tmp_path / "a.jpg")
    write_photo(tmp_path / "my-count.png")
    info = PngInfo()
    for key, text in OVERLAY_MARK.items():
        info.add_text(key, text)
    Image.new("RGB", (30, 20)).save(tmp_path / "a-count.png", pnginfo=info)
    assert names(open_dataset("folder", tmp_path), "all") == ["a.jpg", "my-count.png"]
    earlier = PngInfo()
    earlier.add_text("Software", "Matplotlib version3.11.0, https://matplotlib.org/")
    Image.new("RGB", (30, 20)).save(tmp_path / "b-count.png", pnginfo=earlier)
    assert names(open_dataset("folder", tmp_path), "all") == ["a.jpg", "my-count.png"]
    assert not is_overlay(tmp_path / "b-count.png", unmarked=False)


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not next to the checkout")
def test_the_real_data_are_as_they_are_known() -> None:
    a, b = (open_dataset(f"shanghaitech_{part}", SHARED / "shanghaitech") for part in "ab")
    assert [len(a.photos(split)) for split in ("train", "validation", "leaked")] == [269, 30, 1]
    assert [len(b.photos(split)) for split in ("train", "validation")] == [360, 40]
    assert sum(len(photo.points()) for photo in a.photos("train+validation+leaked")) == 162_413
    assert a.missing() == b.missing() == []
    ucf = [len(photo.points()) for photo in open_dataset("ucf_cc_50", SHARED / "ucf_cc_50").photos("all")]
    assert (min(ucf), max(ucf), sum(ucf)) == (96, 4_633, 63_974)


def test_the_folders_of_splits_may_be_spelt_as_one_likes(tmp_path: Path) -> None:
    for folder in ("Train", "VALIDATION", "test"):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / "a.png"), np.zeros((8, 8, 3), np.uint8))
    dataset = open_dataset("folder", tmp_path)
    names = {split: [photo.name for photo in dataset.photos(split)] for split in ("train", "validation", "test")}
    assert names == {"train": ["Train/a.png"], "validation": ["VALIDATION/a.png"], "test": ["test/a.png"]}


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photo(tmp_path / "train" / "a.png")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for name in ("folder", "shanghaitech_a", "jhu"):
        with pytest.raises(LibraError, match="cannot be read \\(Permission denied\\)"):
            open_dataset(name, tmp_path)


def test_a_part_may_be_a_link_and_gt_be_spelt_as_one_likes(tmp_path: Path) -> None:
    store = tmp_path / "store" / "sht-a"
    write_photo(store / "train_data" / "images" / "IMG_1.jpg")
    write_mat(store / "train_data" / "ground-truth" / "GT_IMG_1.mat", DOTS, shanghaitech=True)
    (tmp_path / "part_A").symlink_to(store)
    assert len(open_dataset("shanghaitech_a", tmp_path / "part_A").photos("train")) == 1
    write_photo(tmp_path / "test" / "images" / "0001.jpg")
    (tmp_path / "test" / "GT").mkdir()
    (tmp_path / "test" / "GT" / "0001.txt").write_text("3 4 5 5 1 0\n")
    assert len(open_dataset("jhu", tmp_path).photos("test")[0].points()) == 1
