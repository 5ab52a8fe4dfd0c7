"""The card of a released model: what it was made from, how well it counts, and what it must not be used for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.runs.config import RunConfig
from experiments.runs.pretraining import PretrainConfig
from libra_gym import __version__
from libra_gym.counter import Counter
from libra_gym.errors import LibraError
from libra_gym.metrics import Score
from libra_gym.models import MODELS, RELEASED, find_model

LIMITS = (
    "A count is an estimate. The interval was measured on photos like those of the training set; other kinds of photo, "
    "heads of other sizes in pixels, and parts or frames cut out of photos may be off by more."
)
_HEADING = re.compile(r"^#+\s*(.+?)\s*#*\s*$", re.MULTILINE)


def make_card(config: RunConfig, score: Score, notes: dict[str, str], weights: str) -> dict[str, Any]:
    """The card as plain JSON types: `data`, `recipe`, `validation`, `limits`, `licence`, and `notes` of other headings.

    Args:
        config: the run that trained the scale.
        score: its figures on the validation photos.
        notes: what the releaser says, by heading in lower case; `read_notes` gives it.
        weights: the backbone's file, or its name.
    """
    began = _beginnings(weights, config.init)
    data = {
        "began with": list(began) or None,
        "dataset": config.about.get("dataset", config.about["bank"]),
        "trained on": config.train_split,
        "and on the banks": config.about.get("also"),
        "validated on": config.validation_split,
    }
    recipe = {
        "backbone": config.about.get("backbone"),
        "backbone weights (SHA-256)": config.about.get("weights"),
        "scale of the photos": config.about.get("scale"),
        "algorithm": config.algo,
        "preset": config.preset,
        "seed": config.seed,
        "epochs": config.epochs,
        "settings": config.settings,
    }
    return _card(data, recipe, score, notes, began)


def make_weighing_card(
    config: PretrainConfig, about: dict[str, Any], score: Score, notes: dict[str, str]
) -> dict[str, Any]:
    """The same of a model whose backbone and scale learnt together; `about` is what its scale knows of itself."""
    began = _beginnings(config.init, config.weights)
    data = {
        "began with": list(began) or None,
        "dataset": config.dataset,
        "trained on": config.train_split,
        "and on": about.get("data", {}).get("also"),
        "validated on": config.validation_split,
    }
    recipe = {
        "backbone": about.get("backbone"),
        "backbone weights (SHA-256)": about.get("weights"),
        "scale of the photos": about.get("scale"),
        "algorithm": "libra_dqn, then backbone and scale together (libra pretrain --method weighing)",
        "preset": config.preset,
        "seed": config.seed,
        "settings": config.settings,
    }
    return _card(data, recipe, score, notes, began)


def _beginnings(*sources: str | None) -> dict[str, str]:
    """Those of the released models that a model began with, and what their cards say of the licence."""
    files = {str((MODELS / f"{name}.safetensors").absolute()): name for name in RELEASED}
    names = [files.get(source, source) for source in sources if source is not None]
    return {
        name: Counter.load(find_model(name)).card.get("licence", "not stated") for name in names if name in RELEASED
    }


def _card(
    data: dict[str, Any], recipe: dict[str, Any], score: Score, notes: dict[str, str], began: Mapping[str, str]
) -> dict[str, Any]:
    inherited = " ".join(f"It began with {name!r}, whose card says: {licence}" for name, licence in began.items())
    figures = {key: value for key, value in score.to_dict().items() if key not in ("records", "bank", "by_crowd")}
    return {
        "data": data,
        "recipe": {**recipe, "libra-gym": __version__},
        "validation": figures,
        "limits": notes.get("limits", LIMITS),
        "licence": notes.get("licence") or " ".join(filter(None, ("not stated.", inherited))),
        "notes": {heading: text for heading, text in notes.items() if heading not in ("limits", "licence")},
    }


def read_notes(path: Path) -> dict[str, str]:
    """The sections of a Markdown file by heading, in lower case; `limits` and `licence` must be among them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LibraError(f"The card {str(path)!r} cannot be read ({error}).") from None
    _, *parts = _HEADING.split(text)  # heading, text, heading, text, …
    notes = {heading.lower(): body.strip() for heading, body in zip(parts[::2], parts[1::2])}
    for wanted in ("limits", "licence"):
        if not notes.get(wanted):
            raise LibraError(f"The card {str(path)!r} has no section {wanted.capitalize()!r}; add one.")
    return {heading: body for heading, body in notes.items() if body}


def card_markdown(counter: Counter) -> str:
    """The card of a model file for people."""
    card = counter.card
    parts = ["# Model card"]
    for title in ("data", "recipe", "validation"):
        parts += [f"## {title.capitalize()}", "\n".join(_rows(card.get(title, {})))]
    if counter.uncertainty is not None:
        parts += ["## Interval", f"{counter.uncertainty}."]
    sections = {title: card[title] for title in ("limits", "licence") if title in card}
    for title, text in {**card.get("notes", {}), **sections}.items():
        parts += [f"## {title.capitalize()}", text]
    return "\n\n".join(parts) + "\n"


def _rows(figures: Mapping[str, Any], indent: str = "") -> list[str]:
    """A line for each figure that is known; those within others are indented below them."""
    lines = []
    for key, value in figures.items():
        if isinstance(value, dict):
            lines += [f"{indent}- {key}:", *_rows(value, f"{indent}    ")]
        elif value is not None:
            lines.append(f"{indent}- {key}: {_plain(value)}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(item) for item in value)
    return str(value)
