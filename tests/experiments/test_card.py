"""The card of a released model."""

import pytest

from experiments.card import read_notes
from libra_gym.errors import LibraError


@pytest.mark.parametrize(
    ("text", "missing"), [("## Limits\nMany.", "Licence"), ("## Licence\nCC0\n## Limits\n", "Limits")]
)
def test_a_card_says_limits_and_licence(tmp_path, text, missing):
    (tmp_path / "card.md").write_text(text)
    with pytest.raises(LibraError, match=missing):
        read_notes(tmp_path / "card.md")
    with pytest.raises(LibraError, match=r"absent\.md"):
        read_notes(tmp_path / "absent.md")
