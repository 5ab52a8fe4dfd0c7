"""Names of splits: several joined by `+`, shares of them for cross-validation, and photos left out.

`train:1/5` is the first of five shares of the photos of `train`, and `train:-1/5` is all of `train` but that. A photo's
share is told by its place in an order of all of them by a hash of their names, so that the same photos are shared out
alike in every bank, data set and run; where one is missing, shares are others.

`train:-IMG_108,IMG_202` is all of `train` but these photos, such as those whose dots are wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from libra_gym.errors import LibraError

_SHARE = re.compile(r"(?P<but>-?)(?P<number>\d+)/(?P<of>\d+)")


@dataclass(frozen=True)
class Part:
    """One of the names that a plus sign joins: a whole split, or a share of it."""

    name: str
    """As it was written."""
    split: str
    """Of which it is."""
    number: int = 1
    of: int = 1
    but: bool = False
    """All but that share."""
    without: frozenset[str] = frozenset()
    """Photos that are left out, by their names or the last part of them: `IMG_108` is `train/IMG_108`."""

    def pick(self, names: Iterable[str]) -> set[str]:
        """Those of the split's photos that belong to this part; shares differ by one photo at most."""
        photos = set(names)
        if self.without:
            called = {name: {photo for photo in photos if goes_by(photo, name)} for name in self.without}
            if photos and (unknown := sorted(name for name, found in called.items() if not found)):
                raise LibraError(
                    f"There is no photo {unknown[0]!r} in the split {self.split!r} to leave out; its photos are called "
                    f"{', '.join(sorted(photos)[:3])} and so on."
                )
            return photos.difference(*called.values())
        ranked = by_hash(photos)
        return {name for i, name in enumerate(ranked) if (i % self.of == self.number - 1) != self.but}


def parts(split: str) -> list[Part]:
    """The parts that a split's name joins."""
    return [part(name) for name in split.split("+")]


def part(name: str) -> Part:
    """What a single name means."""
    split, colon, share = name.partition(":")
    if not colon:
        return Part(name, split)
    if all(without := _names(share)) and without:
        return Part(name, split, without=frozenset(without))
    found = _SHARE.fullmatch(share)
    number, of = (int(found["number"]), int(found["of"])) if found else (0, 0)
    if found is None or not 1 <= number <= of or of < 2:
        raise LibraError(
            f"There is no share {share!r} of a split; {split + ':1/5'!r} is the first of five shares of its photos, "
            f"{split + ':-1/5'!r} all but that, and {split + ':-NAME,NAME'!r} all but these photos."
        )
    return Part(name, split, number, of, bool(found["but"]))


def is_training(name: str) -> bool:
    """Whether photos are there to learn from, by the name: `train`, `fold1-train`, `train:-1/5`, `train:-IMG_108`."""
    split, _, share = name.partition(":")
    return split.endswith("train") and (not share or share.startswith("-"))


def may_train(name: str) -> bool:
    """Whether photos are there to learn from, or may be once they are divided, as UCF_CC_50's `all` is into folds."""
    return is_training(name) or left_out(name)[0] == "all"


def left_out(split: str) -> tuple[str, set[str]]:
    """The split's name without the photos that it leaves out, and their names."""
    kept: list[str] = []
    names: set[str] = set()
    for each in split.split("+"):
        whole, _, share = each.partition(":")
        without = _names(share)
        names.update(without)
        kept.append(whole if without else each)
    return "+".join(kept), names


def _names(share: str) -> list[str]:
    """The photos that are left out, if what follows the colon of a split is their names."""
    return share[1:].split(",") if share.startswith("-") and _SHARE.fullmatch(share) is None else []


def goes_by(photo: str, name: str) -> bool:
    """Whether a photo has this name, or its name ends with it: `train/IMG_8` goes by `IMG_8`."""
    return f"/{photo}".endswith(f"/{name}")


def by_hash(names: Iterable[str]) -> list[str]:
    """Names in an order that depends on no random generator: that of a hash of each."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
