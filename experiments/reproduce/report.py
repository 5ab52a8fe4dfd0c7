"""The finished table as Markdown, CSV and one HTML page that needs no other file."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from experiments.reproduce.jobs import Job
from experiments.reproduce.paper import Figure, PaperTable
from experiments.reproduce.results import Line
from libra_gym.features.storage import write_whole

_CSV = (
    "table", "row", "where", "metric", "paper", "paper_std", "ours", "ours_std", "seeds", "difference", "judged_on",
    "reason",
)  # fmt: skip
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c2430; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .3rem .7rem; border-bottom: 1px solid #d5dae1; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } .ours { font-weight: 600; }
.reason { color: #8a4b08; } pre { background: #f4f6f8; padding: .8rem; overflow-x: auto; font-size: 13px; }
img { max-width: 100%; } h2 { margin-top: 2rem; font-size: 1.15rem; }
"""


@dataclass(frozen=True)
class Report:
    """All that the files say."""

    name: str
    table: PaperTable
    lines: Sequence[Line]
    notes: Sequence[str]
    jobs: Sequence[Job]
    """Every job behind the table, needs first."""
    command: str
    versions: dict[str, str]
    places: Mapping[str, str] = field(default_factory=dict)
    """Directories and files of this machine, and what stands for them in the files, which are meant for others."""

    def write(self, out: Path) -> list[Path]:
        """Write the three files; the paths."""
        texts = {".md": self.markdown(), ".csv": self.csv(), ".html": self.html()}
        paths = [out / f"{self.name}{suffix}" for suffix in texts]
        for path, text in zip(paths, texts.values()):
            write_whole(path, text.encode())
        return paths

    def _public(self, text: str) -> str:
        """The same for others to read: with the names of places, and not where they are on this machine."""
        for place in sorted(self.places, key=len, reverse=True):
            text = re.sub(rf"{re.escape(place)}(?![\w-])", lambda _, name=self.places[place]: name, text)
        return text

    # ---------------------------------------------------------------------------------------------------- contents

    @property
    def compared(self) -> bool:
        """Whether the paper has any of the figures: of another data set than its own it has none."""
        return any(cell.paper is not None for line in self.lines for cell in line.cells)

    @property
    def header(self) -> list[str]:
        """Names of the columns."""
        columns = ("paper", "ours", "Δ") if self.compared else ("ours",)
        figures = [f"{metric} {what}" for metric in self.table.metrics for what in columns]
        return ["", "where", *figures, "judged on", "remark"]

    def cells(self, line: Line) -> list[str]:
        """A line as text, in the order of the header."""
        shown = slice(None) if self.compared else slice(1, 2)
        figures = [text for cell in line.cells for text in cell.shown[shown]]
        return [line.row, line.where, *figures, line.judged, self._public(line.reason)]

    @property
    def others(self) -> list[list[str]]:
        """The paper's rows that are not run here, with a pair of figures for each place."""
        ran = {line.row for line in self.lines}
        return [
            [row, where, *map(str, figures)]
            for row, places in self.table.rows.items()
            if row not in ran
            for where, figures in places.items()
        ]

    @property
    def remarks(self) -> list[str]:
        """The notes, as others may read them."""
        return [self._public(note) for note in self.notes]

    @property
    def commands(self) -> list[str]:
        """The command behind the table, a blank, and those of all jobs in an order in which they can be run."""
        return [self._public(line) for line in (self.command, "", *(str(job.begin) for job in self.jobs))]

    # ----------------------------------------------------------------------------------------------------- formats

    def markdown(self) -> str:
        """For people and for version control."""
        parts = [f"# {self.table.title}", _markdown_table(self.header, [self.cells(line) for line in self.lines])]
        parts.append(self._legend)
        if self.notes:
            parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in self.remarks))
        if self.others:
            parts.append(
                "## The paper's other rows\n\n" + _markdown_table(["", "where", *self.table.metrics], self.others)
            )
        parts.append("## Commands\n\n" + "\n".join(f"    {line}" for line in self.commands).rstrip())
        parts.append("## Versions\n\n" + "\n".join(f"- {name} {number}" for name, number in self.versions.items()))
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """One row per figure, in full precision."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CSV)
        for line in self.lines:
            for cell in line.cells:
                figures = [*_both(cell.paper), *_both(cell.ours), line.seeds, cell.difference]
                ends = (line.judged, self._public(line.reason))
                writer.writerow([self.name, line.row, line.where, cell.metric, *figures, *ends])
        return text.getvalue()

    def html(self) -> str:
        """One self-contained page."""
        title = escape(self.table.title)
        body = [f"<h1>{title}</h1>", _html_table(self.header, [self.cells(line) for line in self.lines])]
        body.append(f"<p>{escape(self._legend)}</p>")
        body.append(f'<img alt="The paper’s figures and ours" src="data:image/png;base64,{self._plot()}">')
        if self.notes:
            body.append("<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in self.remarks) + "</ul>")
        if self.others:
            header = ["", "where", *self.table.metrics]
            body.append("<h2>The paper's other rows</h2>" + _html_table(header, self.others))
        typed = escape("\n".join(self.commands))
        body.append(f"<h2>Commands</h2><pre>{typed}</pre>")
        versions = [[name, number] for name, number in self.versions.items()]
        body.append("<h2>Versions</h2>" + _html_table(["", ""], versions))
        page = "\n".join(body)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{_STYLE}</style></head>\n<body>\n{page}\n</body></html>\n"
        )

    @property
    def _legend(self) -> str:
        difference = "Δ is ours less the paper's. " if self.compared else ""
        return f"{difference}The paper's “MSE” is the root of the mean squared error."

    def _plot(self) -> str:
        from experiments.reproduce.plot import draw

        return base64.b64encode(draw(self.table.metrics, self.lines, self.table.along)).decode()


def _both(figure: Figure | None) -> tuple[float | None, float | None]:
    return (None, None) if figure is None else (figure.mean, figure.std)


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def kind(column: str) -> str:
        name = column.rpartition(" ")[2]
        if column == "remark":
            return ' class="reason"'
        return f' class="number {name}"' if name in ("paper", "ours", "Δ") else ""

    head = "".join(f"<th{kind(column)}>{escape(column)}</th>" for column in header)
    body = "".join(
        "<tr>" + "".join(f"<td{kind(column)}>{escape(cell)}</td>" for column, cell in zip(header, row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
