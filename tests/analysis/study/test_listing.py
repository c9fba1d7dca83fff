"""The list of figures that is read without importing their modules."""

import pytest

from vit_tf.analysis.study.figure import all_figures
from vit_tf.analysis.study.listing import ListedFigure, listed_figures

PAPER = """
from ..study.figure import Figure, Paper, each

A = Paper("Example et al.", "https://example.org", "X.", rank=%s)
ONE = Figure(paper=A, numbers="1 own", shows="one", models=each("vit"))
"""


def test_the_list_is_that_of_the_imported_definitions():
    assert listed_figures() == [
        ListedFigure(figure.choices, figure.shows, figure.models.all_roles)
        for figure in all_figures()
    ]


def test_papers_come_by_rank_and_variants_inherit(tmp_path):
    (tmp_path / "a.py").write_text(
        PAPER % 9 + 'LATER = Figure(paper=B, numbers="2", shows="of a paper in a later module", '
        'models=pairs((*FEW, "seed"), others=("gap",), ordered=True))'
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "__init__.py").write_text(
        'B = Paper("B", "", prefix="", rank=2)\nFEW = ("vit", "mixer")'
    )
    (tmp_path / "b" / "parts.py").write_text(
        "SIZES, OTHERS = (1, 2), ('gap',)\n"
        'FEW_MORE = (*FEW, "larger")\n'
        'FIRST = Figure(paper=B, numbers="3", shows="two", also="X.1", models=each(*FEW_MORE))\n'
        'SECOND = FIRST.variant(numbers="4", models=group(user_models=False))\n'
        'THIRD = SECOND.variant(shows="three", models=together("vit", baselines=("untrained",)))\n'
    )
    assert listed_figures(tmp_path) == [
        ListedFigure(("2",), "of a paper in a later module", ("vit", "mixer", "seed", "gap")),
        ListedFigure(("3", "X.1"), "two", ("vit", "mixer", "larger")),
        ListedFigure(("4", "X.1"), "two", ()),
        ListedFigure(("4", "X.1"), "three", ("vit",)),
        ListedFigure(("X.1", "own"), "one", ("vit",)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        'TWO = Figure(paper=A, numbers="2", shows="computed".upper())',
        'TWO, THREE = ONE.variant(numbers="2"), ONE.variant(numbers="3")',
        "TWO = UNKNOWN.variant()",
        'TWO = ONE.variant(numbers="2", models=selected())',
        'TWO = ONE.variant(numbers="2", models=each(*UNKNOWN))',
        'TWO = ONE.variant(numbers="2", models=each(*ROLES[:2]))',
        "if True:\n    TWO = ONE.variant()",
    ],
)
def test_definitions_that_only_python_can_read_are_left_to_it(tmp_path, line):
    (tmp_path / "a.py").write_text(PAPER % 9 + line)
    assert listed_figures(tmp_path) is None
