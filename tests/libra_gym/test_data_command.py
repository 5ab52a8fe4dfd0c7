"""`libra data`: what it finds in a data set, and what it prints."""

from pathlib import Path

from dataset_helpers import names, shanghaitech, write_photo
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from experiments.commands.data import app
from libra_gym.datasets import open_dataset
from libra_gym.errors import LibraError


def test_check_says_what_of_a_folder_is_not_read(tmp_path: Path) -> None:
    for name in ("train/a.jpg", "val/b.jpg", "images/c.jpg"):
        write_photo(tmp_path / name)
        (tmp_path / name).with_suffix(".csv").write_text("3,4\n")
    turned = Image.new("RGB", (30, 20))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "train" / "turned.jpg", exif=exif)
    (tmp_path / "train" / "turned.csv").write_text("3,4\n")
    (tmp_path / "train" / "d.HEIC").write_bytes(b"x")
    (tmp_path / "train" / "alone.csv").write_text("3,4\n")
    dataset = open_dataset("folder", tmp_path)
    assert names(dataset, "validation") == ["val/b.jpg"]
    checked = CliRunner().invoke(app, ["check", "--dataset", "folder", "--root", str(tmp_path)])
    said = " ".join(checked.output.split())
    assert "the directory 'images' is not read" in said
    assert "files of kinds that are not read: 1, such as d.HEIC" in said
    assert "files of dots that no photo uses: 1, such as alone.csv" in said
    assert "train, photos that EXIF says to turn (read as they are stored, like their dots): 1" in said
    assert checked.exit_code == 0


def test_check_names_every_missing_and_broken_file(tmp_path: Path) -> None:
    part = tmp_path / "part_A" / "train_data"
    shanghaitech(tmp_path / "part_A", range(1, 300))
    (part / "images" / "IMG_5.jpg").unlink()
    (part / "ground-truth" / "GT_IMG_6.mat").unlink()
    mat = part / "ground-truth" / "GT_IMG_7.mat"
    mat.write_bytes(mat.read_bytes()[:150])
    savemat(part / "ground-truth" / "GT_IMG_8.mat", {"other": 1})
    (part / "images" / "IMG_9.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    result = CliRunner().invoke(app, ["check", "--dataset", "shanghaitech_a", "--root", str(tmp_path)])
    assert isinstance(result.exception, LibraError)
    faults = str(result.exception).splitlines()[1:]
    for fault, file in zip(
        faults, ["IMG_300.jpg", "IMG_5.jpg", "GT_IMG_6.mat", "GT_IMG_7.mat", "GT_IMG_8.mat", "IMG_9.jpg"]
    ):
        assert file in fault
    assert len(faults) == 6
    assert "not on disk" in result.output


def test_check_and_kernels_print_tables(tmp_path: Path) -> None:
    for k in range(3):
        write_photo(tmp_path / f"{k}.jpg")
        (tmp_path / f"{k}.csv").write_text("3,4\n40,4\n")
    checked = CliRunner().invoke(app, ["check", "--dataset", "folder", "--root", str(tmp_path)])
    assert checked.exit_code == 0
    assert "dots outside" in checked.output
    measured = CliRunner().invoke(app, ["kernels", "--dataset", "folder", "--root", str(tmp_path)])
    assert measured.exit_code == 0
    assert all(kernel in measured.output for kernel in ("paper", "capped (default)", "fixed", "points"))
