"""The README's commands are known to `make docs-check`, and what the documents name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from experiments import docs_check
from experiments.cli import app
from experiments.docs_check import Snippet, extract, judge, run, stand_in

HOME = Path(__file__).resolve().parents[2]
DOCUMENTS = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
LIBRA = typer.main.get_command(app)

documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(HOME)))


def shell(markdown):
    return [snippet.text for snippet in extract(markdown) if snippet.kind == "shell"]


# ---------------------------------------------------------------------------------------------------------- extraction


def test_commands_come_from_indented_and_shell_blocks_in_order():
    text = (
        "Text.\n\n    libra one   # a comment\n    libra two\n\n```sh\nlibra three\n```\n\n```bibtex\nlibra four\n```\n"
    )
    assert extract(text) == [
        Snippet(3, "shell", "libra one"),
        Snippet(4, "shell", "libra two"),
        Snippet(7, "shell", "libra three"),
    ]


def test_continued_lines_are_one_command():
    assert extract("    libra one \\\n      --two  # what\n    libra three\n") == [
        Snippet(1, "shell", "libra one --two"),
        Snippet(3, "shell", "libra three"),
    ]


def test_an_indented_line_within_a_paragraph_is_no_command():
    assert extract("A paragraph that goes\n    on and on\n") == []


def test_a_hash_within_a_word_is_no_comment():
    assert shell("    libra show --name a#b\n") == ["libra show --name a#b"]


def test_commands_within_the_text_are_taken_unless_they_only_name_one_that_is_run():
    text = "`libra train` or `libra bench`\nor `libra\ntrain --resume a`, not `libra_dqn`.\n\n    libra train --out a\n"
    assert [(s.line, s.text) for s in extract(text)] == [
        (1, "libra bench"),
        (2, "libra train --resume a"),
        (5, "libra train --out a"),
    ]


def test_python_blocks_are_programs_or_files():
    text = "```python\nimport os\n```\n\n```python\n# mine.py\nx = 1\n```\n"
    assert [(s.kind, s.text) for s in extract(text)] == [("python", "import os\n"), ("file", "# mine.py\nx = 1\n")]


# ------------------------------------------------------------------------------------------------- what is run, and how


@pytest.mark.parametrize(
    "command", ["sudo rm -r /", "make everything", "pip install libra-gym", "A=1 curl x", "libraries"]
)
def test_an_unknown_command_is_bad(command):
    report = judge(Snippet(1, "shell", command))
    assert report is not None
    assert report.outcome == "unknown"
    assert not report.good


def test_a_command_that_is_not_run_says_why():
    report = judge(Snippet(1, "shell", "make test"))
    assert report is not None
    assert (report.outcome, report.good) == ("not run", True)
    assert ".ci/run" in report.detail


def test_words_are_replaced_and_short_runs_asked_for():
    assert stand_in("libra reproduce sota --root DIR --out DIRECTORY") == (
        "libra reproduce sota --root data --out DIRECTORY"
    )
    assert stand_in("A=1 libra train --bank demo") == "A=1 libra train --bank demo --epochs 1"
    assert stand_in("libra features --weights imagenet") == f"libra features --weights {docs_check.WEIGHTS}"


def test_snippets_run_in_the_directory_and_failures_are_told(tmp_path):
    assert run(Snippet(1, "file", "# mine.py\nx = 'found'\n"), tmp_path).good
    assert run(Snippet(5, "python", "import mine\nopen(mine.x, 'w').close()\n"), tmp_path).good
    assert (tmp_path / "found").is_file()
    failed = run(Snippet(9, "shell", "python -c 'raise SystemExit(\"green sky\")'"), tmp_path)
    assert (failed.outcome, failed.good) == ("failed", False)
    assert "status 1" in failed.detail
    assert "green sky" in failed.detail


@pytest.mark.parametrize(
    ("text", "status"), [("    python -c 1\n", 0), ("    python -c 1/0\n", 1), ("    nothing\n", 1)]
)
def test_the_exit_status_tells_whether_all_is_well(tmp_path, monkeypatch, capsys, text, status):
    document = tmp_path / "README.md"
    document.write_text(text)
    monkeypatch.setattr(sys, "argv", ["docs_check", str(document)])
    monkeypatch.setattr(docs_check, "lay_out", lambda directory: None)
    assert docs_check.main() == status
    assert f"1 snippets, {status} bad" in capsys.readouterr().out


def test_every_command_of_the_readme_is_known():
    snippets = extract((HOME / "README.md").read_text(encoding="utf-8"))
    assert len(snippets) > 10
    reports = {snippet.text: judge(snippet) for snippet in snippets}
    assert [text for text, report in reports.items() if report and not report.good] == []


def test_nothing_is_excused_that_the_documents_do_not_name():
    named = " ".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    assert [command for command in docs_check.NOT_RUN if command not in named] == []


# ------------------------------------------------------------------------------------------- what documents name exists


def slug(heading):
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-")


def anchors(path):
    return {slug(match[1]) for match in re.finditer(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


@documents
def test_links_lead_somewhere(document):
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


def test_the_readme_links_every_page():
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (HOME / "docs").glob("*.md") if f"(docs/{path.name})" not in readme] == []


@documents
def test_files_that_are_named_exist(document):
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|libra_gym|agents|experiments|tests)/[\w/]*(?:/|\.(?:py|md|yaml)))`", text)
    assert [name for name in named if "NAME" not in name and not (HOME / name).exists()] == []


def commands(text):
    """The words after `libra` of every command: on lines of their own, joined where they go on, and within the text."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^\s*(?:\w+=\S* )*(?:libra|.* -m experiments\.cli) ([^`#\n]+)", joined, re.MULTILINE)
    spans = re.findall(r"`(?:\w+=\S* )*libra\s([^`]+)`", joined)
    return [line.split() for line in lines + spans]


def faults(words):
    """What of a command's words the command line does not know."""
    command = LIBRA
    while below(command) and words and not words[0].startswith("-"):
        if words[0] not in below(command):
            return [words[0]]
        command, words = below(command)[words[0]], words[1:]
    named = [word.strip("[].,").partition("=")[0] for word in words if word.startswith(("--", "[--"))]
    return [option for option in named if option not in options(command)]


def below(command):
    """The commands of a group by name; of a command, none."""
    return {name: command.get_command(None, name) for name in getattr(command, "commands", {})}


def options(command):
    return {"--help", *(name for option in command.params for name in option.opts)}


def all_options(command):
    return options(command).union(*map(all_options, below(command).values()))


def test_faults_of_commands_are_found():
    text = (
        "Text `libra tarin` here.\n\n"
        "    A=1 libra train --bank x \\\n      --epoch 3\n    libra data check --rooot=x\n"
        "    libra features --dataset x [--weights y]  # --none\n    libra features verify x\n"
    )
    assert [faults(words) for words in commands(text)] == [["--epoch"], ["--rooot"], [], [], ["tarin"]]


@documents
def test_commands_and_their_options_exist(document):
    found = {" ".join(words): faults(words) for words in commands(document.read_text(encoding="utf-8"))}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


@documents
def test_options_that_are_named_alone_exist(document):
    text = document.read_text(encoding="utf-8").partition("\n## RL Zoo\n")[0]  # which has options of its own
    known = all_options(LIBRA)
    assert [name for name in re.findall(r"`(--[\w-]+)[^`]*`", text) if name not in known] == []


def test_make_docs_check_checks_the_readme():
    shown = subprocess.run(
        ["make", "--dry-run", "--assume-old=.venv/.installed", "docs-check"], capture_output=True, text=True, cwd=HOME
    )
    assert "-m experiments.docs_check README.md" in shown.stdout
