"""The paper's figures, checked against a reading of the paper."""

import pytest

from experiments.commands.reproduce import TableName
from experiments.reproduce.paper import paper_tables
from experiments.reproduce.tables import TABLES


@pytest.mark.parametrize(
    ("table", "row", "where", "printed"),
    [
        ("sota", "LibraNet", "SHT A", "55.9 97.1"),
        ("sota", "LibraNet", "UCF_CC_50", "181.2 262.2"),
        ("sota", "TEDnet", "UCF-QNRF", "113.0 188.0"),
        ("sota", "S-DCNet", "SHT B", "6.7 10.7"),
        ("cross", "LibraNet", "B → QNRF", "224.2 405.3"),
        ("cross", "SPN+L2SM", "QNRF → A", "73.4 119.4"),
        ("ablation", "W/O Guiding", "SHT A", "149.8 261.3"),
        ("game", "LibraNet", "SHT A", "55.9 68.0 82.1 113.1"),
        ("steps", "16", "SHT A", "56.9 93.9"),
        ("tolerance", "0.7", "SHT A", "60.1 96.8"),
        ("plugin", "TasselNetv2†+LibraNet", "SHT A", "64.7 100.6"),
        ("plugin", "ImageNet Regression", "SHT A", "156.2 259.9"),
        ("seeds", "LibraNet", "SHT A", "56.4 ± 1.8 97.8 ± 2.3"),
        ("speed", "LibraNet", "1080×720", "158.0 142.0 16.0"),
    ],
)
def test_figures_are_those_of_the_paper(table, row, where, printed):
    assert " ".join(map(str, paper_tables()[table].figures(row, where))) == printed


def test_what_the_paper_leaves_out_is_left_out():
    assert paper_tables()["sota"].figures("PGCNet", "UCF-QNRF") is None
    assert paper_tables()["cross"].figures("BL", "A → B") is None


def test_every_row_has_a_figure_for_every_metric():
    for table in paper_tables().values():
        for places in table.rows.values():
            assert {len(figures) for figures in places.values()} == {len(table.metrics)}


def test_the_command_the_tables_and_the_papers_figures_have_the_same_names():
    assert {name.value for name in TableName} == set(TABLES) == set(paper_tables())
