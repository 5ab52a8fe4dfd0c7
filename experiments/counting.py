"""Counting many photos and videos one after the other, so that one bad file does not stop the others."""

from __future__ import annotations

import csv
import glob
import io
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from libra_gym.counter import Counted, Counter, view
from libra_gym.datasets.images import OVERLAY_MARK, is_overlay
from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole
from libra_gym.photos import Pixels, Region, Video, check_region, limit_side
from libra_gym.rendering.overlay import course_figure, overlay_figure
from libra_gym.suffixes import PHOTO_SUFFIXES, UNREAD_SUFFIXES, VIDEO_SUFFIXES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Entry = dict[str, Any]
"""`file`, `count`, `low`, `high`, `seconds`, for a frame also `frame` and `time`, for a photo unlike those that the
model learnt from also `hint`; or `file` and `error`."""
_DPI = 110


def find_files(asked: Iterable[str]) -> list[Path]:
    """The files that a user means by files, folders and patterns, each once; what is not there stays as it was said."""
    found: dict[Path, None] = {}
    for text in asked:
        if not text.strip():
            raise LibraError(f"A photo is named {text!r}, which is nothing; give a file, a folder ('.' for this one).")
        path = Path(text)
        if os.path.isdir(path):  # of os.path, which takes names that are too long for those of nothing
            files = _in_folder(path)
        elif os.path.exists(path):
            files = [path]
        else:
            matches = sorted(Path(name) for name in glob.glob(text, recursive=True))
            files = [match for match in matches if match.is_file()]
            if not files:  # a pattern of folders
                files = [file for folder in matches for file in _in_folder(folder)]
        found |= dict.fromkeys(files or [path])
    return list(found)


def _in_folder(folder: Path) -> list[Path]:
    """Photos and videos, also broken links to them and kinds that cannot be read, which will be told as errors.

    Pictures that an earlier `--overlay` drew are left out, and so are files like `._IMG_1.jpg`, in which macOS keeps
    what it knows of the file `IMG_1.jpg`.
    """
    known = PHOTO_SUFFIXES + VIDEO_SUFFIXES + UNREAD_SUFFIXES
    try:
        named = [file for file in folder.iterdir() if file.suffix.lower() in known and not file.name.startswith("._")]
    except OSError:  # the folder itself will be told as an error
        return []
    return sorted(file for file in named if not os.path.isdir(file) and not is_overlay(file))


def _check_readable(folder: Path) -> None:
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise LibraError(f"This folder cannot be read ({error.strerror}).") from None


def passing_bar(console: Console) -> Progress:
    """A bar for a number of files or photos, which is gone when they are done; none where there is no terminal."""
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def parse_region(text: str) -> Region:
    """`x,y,width,height` as four numbers."""
    try:
        left, top, width, height = (int(number) for number in text.split(","))
    except ValueError:
        raise LibraError(f"The region {text!r} is not x,y,width,height, four whole numbers of pixels.") from None
    return check_region((left, top, width, height))


@dataclass
class Session:
    """Counts file after file and keeps what came of each."""

    counter: Counter
    region: Region | None = None
    max_side: int | None = None
    every: int = 25
    overlay: Path | None = None
    """The folder for pictures; None: no pictures."""
    entries: list[Entry] = field(default_factory=list)
    finished: int = 0
    """How many files were counted to their end, or failed."""
    _taken: set[str] = field(default_factory=set)
    """Files that no picture may be written to, as `_place` tells them apart."""

    def run(self, files: Sequence[Path], console: Console) -> bool:
        """Count the files, with a bar on the console; whether Ctrl-C stopped it. A file that fails is an entry too."""
        if self.overlay is not None:
            try:
                self.overlay.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LibraError(f"{self.overlay} cannot be made ({error.strerror}); give another --overlay.") from None
            for path in files:
                self._taken |= {_place(path), _place(Path(os.path.realpath(path)))}
        with passing_bar(console) as bar:
            whole = bar.add_task("files", total=len(files), visible=len(files) > 1)
            try:
                for path in files:
                    self._file(path, bar)
                    self.finished += 1
                    bar.advance(whole)
            except KeyboardInterrupt:
                return True
        return False

    def _file(self, path: Path, bar: Progress) -> None:
        try:
            if os.path.isdir(path):
                _check_readable(path)
                raise LibraError("There is neither a photo nor a video in this folder.")
            if glob.has_magic(str(path)) and not os.path.lexists(path):
                raise LibraError("No file has a name of this pattern.")
            if path.suffix.lower() in VIDEO_SUFFIXES:
                self._video(path, bar)
            else:
                self._photo(path)
        except LibraError as error:
            self.entries.append({"file": str(path), "error": str(error)})
        except (cv2.error, MemoryError, RuntimeError) as error:  # of decoders, of photos too large for the machine
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            self.entries.append({"file": str(path), "error": f"This file cannot be counted ({reason})."})

    def _photo(self, path: Path) -> None:
        start = time.perf_counter()
        counted, pixels, shrunk = self._count(path)
        self.entries.append(_entry(path, counted, time.perf_counter() - start))
        if self.overlay is not None:  # the count is kept, whatever becomes of the picture
            seen, scale = self.counter.look(pixels), shrunk * self.counter.scale_of(pixels)
            title = _title(path, self.entries[-1], counted.coverage)
            self._save(overlay_figure(seen, counted.patch_map, title, scale, self._note(counted)), path)

    def _note(self, counted: Counted) -> str:
        """What is written below the title of a picture."""
        if counted.hint is None:
            return ""
        lost = self.counter.uncertainty is not None and self.region is None
        return f"no interval: {counted.hint.fact}" if lost else counted.hint.fact

    def _video(self, path: Path, bar: Progress) -> None:
        video = Video(path)
        task = bar.add_task(path.name, total=-(-video.length // self.every))
        frames: list[Entry] = []
        try:
            for frame in video.frames(self.every):
                start = time.perf_counter()
                counted, _, _ = self._count(frame.pixels)
                entry = _entry(path, counted, time.perf_counter() - start)
                frames.append({**entry, "frame": frame.number, "time": round(frame.time, 3)})
                bar.advance(task)
        finally:  # what was counted before Ctrl-C or a damaged frame is kept
            bar.remove_task(task)
            self.entries += frames
            if self.overlay is not None and frames:
                self._save_course(path, frames)

    def _count(self, photo: Path | Pixels) -> tuple[Counted, Pixels, float]:
        """What was counted, the pixels that were, and by what factor `max_side` had shrunk them."""
        whole = view(photo, self.region, None)
        pixels = whole if self.max_side is None else limit_side(whole, self.max_side)
        counted = self.counter.count(pixels, whole=self.region is None and isinstance(photo, Path))
        return counted, pixels, pixels.shape[1] / whole.shape[1]

    # ------------------------------------------------------------------------------------------------------- pictures

    def _save_course(self, path: Path, frames: list[Entry]) -> None:
        """A video's counts as CSV and as a curve."""
        columns = ("frame", "time", "count")
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(frames)
        figure = course_figure([e["time"] for e in frames], [e["count"] for e in frames], path.name)
        picture = self._save(figure, path)
        write_whole(picture.with_suffix(".csv"), text.getvalue().encode())

    def _save(self, figure: Figure, path: Path) -> Path:
        """The figure as `NAME-count.png`, numbered where another picture or a file of the user's has that name."""
        assert self.overlay is not None
        picture, number = self.overlay / f"{path.stem}-count.png", 1
        while _place(picture) in self._taken or _is_anothers(picture):
            number += 1
            picture = self.overlay / f"{path.stem}-count-{number}.png"
        self._taken.add(_place(picture))
        data = io.BytesIO()
        figure.savefig(data, dpi=_DPI, format="png", metadata=OVERLAY_MARK)
        write_whole(picture, data.getvalue())
        return picture


def _is_anothers(picture: Path) -> bool:
    """Whether this name, or that of a video's CSV file beside it, is of a file that no `--overlay` has written."""
    if os.path.lexists(picture):
        return not is_overlay(picture, unmarked=False)
    return os.path.lexists(picture.with_suffix(".csv"))


def _place(path: Path) -> str:
    """The same for two paths of one file, also where capitals make no difference, as on Windows and macOS."""
    return os.path.join(os.path.realpath(path.parent), path.name).casefold()


def _entry(path: Path, counted: Counted, seconds: float) -> Entry:
    low, high = (None if end is None else round(end, 2) for end in (counted.low, counted.high))
    entry = {
        "file": str(path),
        "count": round(counted.count, 2),
        "low": low,
        "high": high,
        "seconds": round(seconds, 3),
    }
    return entry if counted.hint is None else {**entry, "hint": str(counted.hint)}


def _title(path: Path, entry: Entry, coverage: float | None) -> str:
    """With the numbers that the table has: of the entry, which has rounded them once."""
    number = f"{entry['count']:,.0f}"
    title = f"{number} {'person' if number == '1' else 'people'}"
    if entry["low"] is not None:
        title += f" ({coverage:.0%} interval {entry['low']:,.0f} to {entry['high']:,.0f})"
    return f"{title}\n{path.name}"
