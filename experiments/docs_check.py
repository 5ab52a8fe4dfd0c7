"""Runs every command of README.md on small stand-in data: `make docs-check`.

The README is read as a newcomer would read it: its commands and programs run from top to bottom in one directory, where
the photos and weights that they speak of are drawn or random and small. What must be different here (a download, hours
of training) is said in the tables below. A command that none of them knows is a failure, so that nothing comes into the
README unseen.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

WEIGHTS = "vgg16.safetensors"

SUBSTITUTIONS: Mapping[str, str] = {
    "imagenet": WEIGHTS,  # would be downloaded; random weights of the same shape do
    "DIR": "data",
}
"""Words of a command, and what stands in for them."""

ADDITIONS: Mapping[str, str] = {
    "libra train": "--epochs 1",
    "libra pretrain": "--epochs 1",
    "python -m agents.zoo train": "-n 2000",
}
"""How a command begins, and what is put behind it so that it takes seconds."""

NOT_RUN: Mapping[str, str] = {
    "pip install --constraint constraints.txt .": "what runs this is installed already; `make test` installs it so",
    "make demo": "makes .venv; tests/experiments/test_cli.py runs `libra demo`",
    "make test": "makes .venv and runs for minutes; .ci/run runs it",
    "libra bench": "measures for minutes; tests/experiments/test_cli.py runs a part of it",
}
"""Commands, word for word, that are not run here, and why."""

PROGRAMS = ("libra", "python")
"""Programs that are run here with any arguments."""

SHELLS = ("sh", "bash", "shell", "console")
TIMEOUT = 300

Kind = Literal["shell", "python", "file"]
Outcome = Literal["ok", "failed", "unknown", "not run"]

_FENCE = re.compile(r"```\s*(\w*)")
_SPAN = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(?:libra|make|pip|python)\s+\S")
_FILE = re.compile(r"#\s*(\w+\.py)\s*\n")


@dataclass(frozen=True)
class Snippet:
    """A command line, a Python program, or a Python file that a later command needs."""

    line: int
    """Where it begins, from 1."""
    kind: Kind
    text: str

    @property
    def title(self) -> str:
        """The command, or what tells a program apart."""
        return self.text if self.kind == "shell" else f"{self.kind} of line {self.line}"


@dataclass(frozen=True)
class Report:
    """What became of a snippet."""

    snippet: Snippet
    outcome: Outcome
    detail: str = ""
    """The reason, or the end of what was printed."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the README may stay as it is."""
        return self.outcome in ("ok", "not run")


# ------------------------------------------------------------------------------------------------------- what is there


def extract(markdown: str) -> list[Snippet]:
    """Commands of indented and of shell blocks and of code within the text, and Python blocks, from top to bottom.

    Within the text, the bare name of a command that stands elsewhere with arguments (`libra train`) is only its name.
    """
    found: list[Snippet] = []
    prose: list[str] = []
    lines = markdown.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if fence := _FENCE.match(line):
            end = next((k for k in range(number + 1, len(lines)) if lines[k].startswith("```")), len(lines))
            found += _block(fence[1], lines[number + 1 : end], number + 2)
        elif line.startswith("    ") and not (prose and prose[-1].strip()):
            end = number + 1
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            found += _shell(lines[number:end], number + 1)
            end -= 1
        else:
            prose.append(line)
            number += 1
            continue
        prose += [""] * (end + 1 - number)
        number = end + 1
    for mentioned in _mentioned("\n".join(prose)):
        if not any(snippet.text.startswith(f"{mentioned.text} ") for snippet in found):
            found.append(mentioned)
    return sorted(found, key=lambda snippet: snippet.line)


def _block(language: str, lines: Sequence[str], first: int) -> list[Snippet]:
    if language in SHELLS:
        return _shell(lines, first)
    if language == "python":
        text = "\n".join(lines) + "\n"
        return [Snippet(first, "file" if _FILE.match(text) else "python", text)]
    return []


def _shell(lines: Sequence[str], first: int) -> list[Snippet]:
    """A snippet for each command; comments go, and lines that end with a backslash are joined with the next."""
    found, words, start = [], "", first
    for number, line in enumerate(lines, first):
        words, start = (words, start) if words else ("", number)
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        words = f"{words} {bare}".strip()
        if words.endswith("\\"):
            words = words[:-1].strip()
        elif words:
            found.append(Snippet(start, "shell", words))
            words = ""
    return found


def _mentioned(prose: str) -> list[Snippet]:
    return [
        Snippet(prose.count("\n", 0, span.start()) + 1, "shell", " ".join(span[1].split()))
        for span in _SPAN.finditer(prose)
        if _COMMAND.match(span[1])
    ]


# ------------------------------------------------------------------------------------------------- what is done with it


def judge(snippet: Snippet) -> Report | None:
    """The report on a snippet that is not run; None for those that are."""
    if snippet.kind != "shell":
        return None
    if snippet.text in NOT_RUN:
        return Report(snippet, "not run", NOT_RUN[snippet.text])
    if program_of(snippet.text) not in PROGRAMS:
        return Report(snippet, "unknown", "experiments/docs_check.py knows neither how to run it nor why not to")
    return None


def program_of(command: str) -> str:
    """The program of a command, after settings of environment variables."""
    return next((word for word in command.split() if not re.match(r"\w+=", word)), "")


def stand_in(command: str) -> str:
    """The command as it is run here."""
    words = [SUBSTITUTIONS.get(word, word) for word in re.split(r"(\s+)", command)]
    bare = re.sub(r"^(\w+=\S*\s+)+", "", command)
    additions = [more for start, more in ADDITIONS.items() if bare.startswith(f"{start} ")]
    return " ".join(["".join(words), *additions])


def run(snippet: Snippet, directory: Path) -> Report:
    """Run a snippet in a directory, or put a file there."""
    if snippet.kind == "file":
        match = _FILE.match(snippet.text)
        assert match is not None
        (directory / match[1]).write_text(snippet.text, encoding="utf-8")
        return Report(snippet, "ok")
    command = stand_in(snippet.text)
    if snippet.kind == "python":
        program = directory / f"readme_line_{snippet.line}.py"
        program.write_text(snippet.text, encoding="utf-8")
        command = f"python {program.name}"
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            shell=True,
            cwd=directory,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Report(snippet, "failed", f"{command!r} took more than {TIMEOUT} seconds", TIMEOUT)
    seconds = time.perf_counter() - start
    if done.returncode == 0:
        return Report(snippet, "ok", seconds=seconds)
    printed = "\n".join(done.stdout.decode(errors="replace").splitlines()[-20:])
    return Report(snippet, "failed", f"{command!r} ended with status {done.returncode}\n{printed}", seconds)


def check(snippets: Sequence[Snippet], directory: Path) -> list[Report]:
    """Run snippets one after the other in a directory, telling of each as it ends."""
    reports = []
    for snippet in snippets:
        report = judge(snippet) or run(snippet, directory)
        print(f"{report.outcome:8} {report.seconds:4.0f} s  {snippet.title}", flush=True)
        if report.detail:
            print("\n".join(f"{'':18}{line}" for line in report.detail.splitlines()), flush=True)
        reports.append(report)
    return reports


# ------------------------------------------------------------------------------------------------------- stand-in data


def lay_out(directory: Path) -> None:
    """The files that the README speaks of: a photo, a folder of photos with dots, a data set, a backbone's weights."""
    _write_photos(directory / "photos", {"train": range(6), "validation": range(6, 12), "test": range(12, 14)})
    (directory / "photo.jpg").write_bytes((directory / "photos/test/12.jpg").read_bytes())
    _write_shanghaitech(directory / "data" / "shanghaitech" / "part_A")
    _write_weights(directory / WEIGHTS)


def _draw(seed: int, path: Path) -> np.ndarray:
    """A drawn scene as a JPEG; returns its dots."""
    import cv2

    from libra_gym.datasets.synthetic import draw_scene

    scene = draw_scene(seed, (96, 128))
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR))
    return scene.points


def _write_photos(root: Path, splits: Mapping[str, range]) -> None:
    for split, seeds in splits.items():
        for seed in seeds:
            points = _draw(seed, root / split / f"{seed}.jpg")
            np.savetxt(root / split / f"{seed}.csv", points, delimiter=",", header="x,y", comments="")


def _write_shanghaitech(part: Path) -> None:
    """Four training photos, one of them for validation, and a test photo, in the released layout."""
    from scipy.io import savemat

    for split, numbers in {"train": (1, 2, 3, 10), "test": (1,)}.items():
        for number in numbers:
            points = _draw(number, part / f"{split}_data" / "images" / f"IMG_{number}.jpg")
            inner = np.empty((1, 1), dtype=[("location", object)])
            inner[0, 0] = (points.astype(np.float64),)
            outer = np.empty((1, 1), dtype=object)
            outer[0, 0] = inner
            labels = part / f"{split}_data" / "ground-truth" / f"GT_IMG_{number}.mat"
            labels.parent.mkdir(parents=True, exist_ok=True)
            savemat(labels, {"image_info": outer})


def _write_weights(path: Path) -> None:
    from safetensors.torch import save_file

    from libra_gym.backbones import load_backbone

    state = load_backbone("vgg16", "random").state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)


def main() -> int:
    """Check a document; the exit status is 1 where a command fails or is not known."""
    parser = argparse.ArgumentParser(description="Run every command of a document on small stand-in data.")
    parser.add_argument("document", nargs="?", type=Path, default=Path("README.md"))
    document = parser.parse_args().document
    snippets = extract(document.read_text(encoding="utf-8"))
    with TemporaryDirectory() as directory:
        lay_out(Path(directory))
        reports = check(snippets, Path(directory))
    bad = sum(not report.good for report in reports)
    print(f"{document}: {len(reports)} snippets, {bad} bad")
    return 1 if bad or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
