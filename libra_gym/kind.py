"""What kind of photos a model was made from, and how far another photo is from them.

Interval and error figures of a model hold for photos of its own kind. A photo that is far larger or smaller than all of
them, or whose count is far from all of theirs, is told so, and gets no interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

from libra_gym.counts import Size

FAR: Final = 2.0
"""A photo so many times as large, small, full or empty as the last of a model's own is far from all of them."""


class Hint(NamedTuple):
    """In what a photo is unlike those that a model was made from, and what may be done about it."""

    fact: str
    advice: str

    def __str__(self) -> str:
        return f"{self.fact}. {self.advice}"


@dataclass(frozen=True)
class Kind:
    """The range of a model's photos, as its data set has them (before the model's own scale); None: unknown."""

    longest_side: int | None = None
    """The longer side, in pixels, of the largest photo."""
    shortest_side: int | None = None
    """The longer side, in pixels, of the smallest photo."""
    fewest: int | None = None
    """People in the emptiest photo."""
    most: int | None = None
    """People in the fullest photo."""

    @classmethod
    def of(cls, photos: Iterable[tuple[Size, int]]) -> Kind:
        """The range of photos that are given as height and width, and the number of their people."""
        known = [(max(size), people) for size, people in photos]
        if not known:
            return cls()
        sides, people = zip(*known)
        return cls(max(sides), min(sides), min(people), max(people))

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> Kind:
        """What a model says of its photos."""
        known = {field.name: int(about[field.name]) for field in fields(cls) if about.get(field.name) is not None}
        if list(known) == ["longest_side"]:
            return _PACKAGED.get((about.get("weights", ""), about.get("dataset", "")), cls(**known))
        return cls(**known)

    def to_dict(self) -> dict[str, int]:
        """What is known, for a model's own description."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def join(self, other: Kind) -> Kind:
        """The range of both; what one of them does not know is not known."""

        def both(name: str, choose: Any) -> int | None:
            values = getattr(self, name), getattr(other, name)
            return None if None in values else choose(values)

        return Kind(both("longest_side", max), both("shortest_side", min), both("fewest", min), both("most", max))

    def too_large(self, size: Size) -> Hint | None:
        """The hint for a photo, or a part of one, that is far larger than all photos."""
        side, known = max(size), self.longest_side
        if known is None or side <= FAR * known:
            return None
        return Hint(
            f"its longer side has {side:,} pixels, and no photo that the model learnt from had more than {known:,}",
            f"Heads that are too large for it are missed or counted twice: compare `--max-side {known}`.",
        )

    def unlike(self, size: Size, count: float) -> Hint | None:
        """The hint for a whole photo of this height and width in which so many people were counted."""
        if (hint := self.too_large(size)) is not None:
            return hint
        side = max(size)
        if self.shortest_side is not None and side < self.shortest_side / FAR:
            return Hint(
                f"its longer side has {side:,} pixels, and no photo that the model learnt from had fewer than "
                f"{self.shortest_side:,}",
                "Heads that are too small for it are missed: take a larger copy of it, or a larger `--max-side`.",
            )
        if self.fewest is not None and count < self.fewest / FAR:
            return Hint(
                f"no photo that the model learnt from had fewer than {self.fewest:,} people",
                "So low a count may be right, but was never checked: there may be nobody in the photo.",
            )
        if self.most is not None and count > self.most * FAR:
            return Hint(
                f"no photo that the model learnt from had more than {self.most:,} people",
                "So high a count was never checked.",
            )
        return None


_DENSE: Final = "f59c5448287b8bf4a6977157834a0ac61420721af34576619c31aa4317d55b92"
_STREET: Final = "3c5955225b590baf1de04fcc09436992edeb4e0503ec67ddba2fd4d57477adc4"
_PACKAGED: Final = {
    (_DENSE, "shanghaitech_a"): Kind(1024, 359, 33, 3138),
    (_STREET, "shanghaitech_b"): Kind(1024, 1024, 12, 576),
}
"""The range of the models that ship with the package, whose files hold only the longest side: by the hash of their
backbone and their data set."""
