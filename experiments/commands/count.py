"""`libra count`: how many people are in a photo, several photos, or the frames of a video (docs/counting.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.commands.sources import refuse_idle
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    from libra_gym.counter import Counter

STOPPED = 130
"""The exit status of a program that Ctrl-C stopped."""


def count(
    context: typer.Context,
    photos: Annotated[
        list[str] | None, typer.Argument(help="Photos, videos, folders of them, or patterns such as 'day1/*.jpg'.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="'dense' for crowds, 'street' for up to a few hundred people, or a file that `libra release` or "
            "`libra pretrain --method weighing` made."
        ),
    ] = "dense",
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
    overlay: Annotated[Path | None, typer.Option(help="Write pictures of where the people are to this folder.")] = None,
    region: Annotated[str | None, typer.Option(help="Count only this part: x,y,width,height in pixels.")] = None,
    max_side: Annotated[
        int | None, typer.Option(min=1, help="Shrink photos whose longer side has more than N pixels to N.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="In a video, count only every N-th frame.")] = 25,
    card: Annotated[bool, typer.Option("--card", help="Show what the model is, and its limits, and stop.")] = False,
) -> None:
    """Count the people in photos and videos."""
    from experiments.counting import Session, find_files, parse_region
    from libra_gym.counter import Counter
    from libra_gym.suffixes import VIDEO_SUFFIXES

    if not photos and not card:
        raise LibraError("`libra count` needs a photo, a folder or a pattern.")
    if card and photos:
        raise LibraError("--card shows the model and counts nothing; leave out the photos, or --card.")
    if card:
        refuse_idle(context, "counts nothing with --card", "json", "overlay", "region", "max_side", "every")
    files = find_files(photos or [])
    if not any(file.suffix.lower() in VIDEO_SUFFIXES for file in files):
        refuse_idle(context, "is for videos, and there is none among the files", "every")
    part = None if region is None else parse_region(region)
    counter = Counter.load(model)
    if card:
        _show_card(counter)
        return
    _silence_decoders()
    session = Session(counter, part, max_side, every, overlay)
    stopped = session.run(files, Console(stderr=True))
    if json:
        _print_json(session.entries)
    else:
        _print_table(session.entries, counter)
    if stopped:
        print(f"libra: stopped after {session.finished} of {len(files)} files.", file=sys.stderr)
        raise typer.Exit(STOPPED)
    if any("error" in entry for entry in session.entries):
        raise typer.Exit(1)


def _show_card(counter: Counter) -> None:
    from rich.markdown import Markdown

    from experiments.card import card_markdown

    Console().print(Markdown(card_markdown(counter)))


def _silence_decoders() -> None:
    """OpenCV tells of damaged files on standard error in words of its own; ours name the file."""
    import cv2

    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # AV_LOG_QUIET
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def _print_json(entries: list[dict[str, Any]]) -> None:
    from json import dumps

    print(dumps(entries, indent=2, ensure_ascii=False))


def _print_table(entries: list[dict[str, Any]], counter: Counter) -> None:
    """A row for each photo and for each video; errors go to standard error."""
    counted: dict[str, list[dict[str, Any]]] = {}
    errors = []
    for entry in entries:
        if "error" in entry:
            errors.append(entry)
        else:
            counted.setdefault(entry["file"], []).append(entry)
    interval = counter.uncertainty
    table = Table()
    table.add_column("photo", overflow="fold")
    for column in ("people", "interval" if interval is None else f"{interval.coverage:.0%} interval", "seconds"):
        table.add_column(column, justify="right")
    for file, rows in counted.items():
        table.add_row(*(_video_row(file, rows) if "frame" in rows[0] else _photo_row(file, rows[0])))
    console = Console()
    if counted:
        console.print(table)
    if interval is not None and any(rows[0]["low"] is not None for rows in counted.values()):
        console.print(f"[dim]{interval}[/dim]")
    for file, rows in counted.items():
        if "hint" in rows[0]:
            print(f"{file}: {rows[0]['hint']}")
    for entry in errors:
        named = "" if entry["file"] in entry["error"] else f"{entry['file']}: "
        print(f"libra: {named}{entry['error']}", file=sys.stderr)


def _photo_row(file: str, entry: dict[str, Any]) -> tuple[str, ...]:
    interval = "–" if entry["low"] is None else f"{entry['low']:,.0f} to {entry['high']:,.0f}"
    return escape(file), f"{entry['count']:,.0f}", interval, f"{entry['seconds']:.1f}"


def _video_row(file: str, frames: list[dict[str, Any]]) -> tuple[str, ...]:
    people = [entry["count"] for entry in frames]
    text = f"{min(people):,.0f} to {max(people):,.0f} in {len(frames)} frames"
    if len(frames) == 1:
        text = f"{people[0]:,.0f} in 1 frame"
    return escape(file), text, "–", f"{sum(entry['seconds'] for entry in frames):.1f}"
