"""The documentation uses the terms of the field: no phrase of `PHRASES` occurs in its prose."""

import pytest
from paths import ROOT
from prose import matches, prose_of, prose_of_markdown

# Regular expression -> what to write instead.
PHRASES = {
    r"\bimages right\b|\bright about\b|\b(?:is|are) right for\b": "accuracy",
    r"\bfirst weights\b": "initialization, untrained model",
    r"\bluck\b": "seed variance",
    r"\btrainings\b": "runs, seeds, trained models",
    r"\b(?:a|one|each|every) training(?=[,.;:)]| (?:of|is|was|alone|from|that)\b)": "run, seed",
    r"\bcannot be told\b|\bcan be told\b|\bcannot tell\b": "inconclusive, not significant",
    r"\bdoes not hold\b|\bdo not hold\b": "does not replicate",
    r"\bbeside\b": "compared with, versus, next to",
    r"\balike\b|\blikeness\b": "similar, similarity",
    r"\btell(?:s|ing)?\b|\btold\b": "report, show, return, specify, determine, infer",
    r"\bunplaced\b|\b(?:no|without a) place\b": "prefix token, position",
    r"\bwhat goes on\b": "residual stream",
    r"\bhow far (?:\w+ )?heads?(?: \w+)? looks?\b": "attention distance",
    r"\breach of\b": "receptive-field size",
    r"\beven attention\b": "relative to uniform attention",
    r"\bweight of the skips\b": "skip-to-branch norm ratio",
    r"\bread off\b": "linear-probe accuracy, decodable",
    r"\bnine times for ten\b": "the layer at which it reaches 90 % of its maximum",
    r"\bread as\b|\btakes? for\b|\bmakes? of\b": "predict, classify as",
    r"\bspeaks? for\b": "evidence for, attribution",
    r"\banswers? to (?:the )?mouse\b": "interactive",
    r"\bcomes? with the package\b": "bundled",
    r"\bputs? out what\b": "matches within",
    r"\bon loan\b": "preemptible machine",
    r"\bgo(?:es|ing)? on where\b": "resume",
    r"\bdamaged\b": "corrupt",
    r"\btowers?\b": "image encoder",
    r"\brooms?\b|\bfloors?\b|\bdoors?\b": "subpackage, layer of the architecture, command",
    r"\bnothing in common\b": "head indices are not comparable across layers",
    r"\bflat shapes\b": "synthetic shapes",
    r"\bturned round\b": "reversed",
    r"\basks? the network\b": "self-contained HTML file",
}

# Page -> {phrase as found: why it is right there}.
EXCEPTIONS = {}

# Pages that are still to be rewritten. A page without phrases leaves this list.
NOT_YET = [
    "docs/guides/public-weights.md",
    "docs/natural-images.md",
    "docs/speed.md",
]

PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/**/*.md",
        "docs/notebooks/*.ipynb",
    )
    for path in ROOT.glob(pattern)
)


def phrases_in(prose: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """`line: 'phrase' (write: ...)` for every phrase in a text."""
    return [
        f"{line}: {phrase!r} (write: {instead})"
        for pattern, instead in PHRASES.items()
        for line, phrase in matches(pattern, prose)
        if phrase.lower() not in allowed
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_YET])
def test_a_page_has_no_phrase_of_the_list(page):
    found = phrases_in(prose_of(ROOT / page), frozenset(EXCEPTIONS.get(page, ())))
    assert not found, "\n".join([page, *found])


def test_lists_name_existing_pages_that_need_them():
    assert set(NOT_YET) <= set(PAGES)
    assert set(EXCEPTIONS) <= set(PAGES)
    for page, phrases in EXCEPTIONS.items():
        prose = " ".join(prose_of(ROOT / page).lower().split())
        assert all(phrase in prose and reason for phrase, reason in phrases.items()), page


@pytest.mark.parametrize(
    "text, count",
    [
        ("Rows that cannot\nbe told from others.", 2),  # across lines; also 'told'
        ("As `alike` and\n```python\nbeside = 1\n```\nhave it.", 0),
        ("[How](guides/page.md#several-trainings) seeds differ.", 0),
        ("![Two maps beside a third](maps.png)", 1),
        ("---\ncalls: report_trainings\n---\nA ViT with First weights.", 1),
        ("An image on a training set, a training step, each training run.", 0),
    ],
)
def test_phrases_are_counted_in_prose_only(text, count):
    assert len(phrases_in(prose_of_markdown(text))) == count


def test_line_numbers_are_those_of_the_file():
    assert phrases_in(prose_of_markdown("one\n```\na\n```\nalike\n"))[0].startswith("5: 'alike'")
