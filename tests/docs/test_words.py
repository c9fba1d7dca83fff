"""What is written uses the terms of the field: no phrase of `PHRASES` occurs in prose."""

import re

import pytest
from paths import ROOT
from prose import blank, matches, prose_of, prose_of_markdown, prose_of_python

# "In place", "in its place" and "take place" are no positions.
NOT_INSTEAD = r"(?<!in\s)(?<!its\s)(?<!their\s)(?<!take\s)(?<!takes\s)"

# Regular expression -> what to write instead. The phrases are those of the project's glossary.
PHRASES = {
    r"\bimages right\b|\bright about\b|\b(?:is|are) right for\b": "accuracy",
    r"\b(?:a model with )?first weights\b": "initialization, untrained model",
    r"\bluck\b": "seed variance",
    r"\btrainings\b": "runs, seeds, trained models",
    r"\b(?:a|one|each|every) training(?=[,.;:)]| (?:of|is|was|alone|from|that)\b)": "run, seed",
    r"\b(?:cannot|can) be told\b|\bcannot tell\b": "inconclusive, not significant",
    r"\b(?:claims?|findings?) (?:that )?holds?\b|\bdo(?:es)? not hold\b(?! \w)": "replicates",
    r"\bfindings?\b": "claim (of a paper), result (of a measurement)",
    r"\b(?:above|below|side of|past|over) (?:the|its|their) line\b": "threshold",
    r"\bbeside\b": "compared with, versus, next to",
    r"\balike\b|\blikeness\b": "similar, similarity",
    r"\b(?:what )?tells? \w+ apart\b": "difference",
    r"\btell(?:s|ing)?\b|\btold\b": "report, show, return, specify, determine, infer",
    rf"\b(?:un)?placed\b|{NOT_INSTEAD}\bplaces?\b(?! of\b)": "position, prefix token",
    r"\bwhat goes on\b|\b(?:blocks'|the|its) sums\b(?! of)": "residual stream",
    r"\bhow far (?:\w+ )?heads?(?: \w+)? looks?\b|\blooks? less far\b": "attention distance",
    r"\b(?:the|its|their|a|of) reach\b|\breach of\b": "attention distance, receptive-field size",
    r"\beven attention\b": "relative to uniform attention",
    r"\bweight of the skips\b": "skip-to-branch norm ratio",
    r"\bread off\b": "linear-probe accuracy, decodable",
    r"\bnine times for ten\b": "the layer at which it reaches 90 % of its maximum",
    r"\bread as\b|\b(?:takes?|taken|took) (?:\w+ )?for\b|\bmakes? of\b": "predict, classify as",
    r"\bspeaks? for\b": "evidence for, attribution",
    r"\banswers? to (?:the )?mouse\b": "interactive",
    r"\bcomes? with the package\b": "bundled",
    r"\bhow near\b|\bputs? out\b": "numerical parity, matches within",
    r"\bon loan\b": "preemptible machine",
    r"\bgo(?:es|ing)? on where\b": "resume",
    r"\bdamaged\b": "corrupt",
    r"\b(?:shares?|parts?) of the data\b": "shard",
    r"\btowers?\b": "image encoder",
    r"\brooms?\b|\bfloors?\b|\bdoors?\b": "subpackage, layer of the architecture, command",
    r"\bnothing in common\b": "head indices are not comparable across layers",
    r"\bflat shapes\b": "synthetic shapes",
    r"\bturned round\b": "reversed",
    r"\basks? the network\b": "self-contained HTML file",
}

# Text, as `prose_of` returns it -> why it stays.
EXCEPTIONS = {
    "'place', 'row', 'column'": "an axis of results",
    "layer place row column": "an axis of results",
    "Floor Ceil Round": "operations of TensorFlow",
}


FILES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "docs/**/*.md",
        "docs/notebooks/*.ipynb",
        "analysis/**/*.py",
        "analysis/**/*.html",
        "analysis/**/*.js",
        "analysis/**/*.css",
        "benchmarks/**/*.py",
        "scripts/**/*.py",
        "vit_tf/**/*.py",
    )
    for path in ROOT.glob(pattern)
)


def phrases_in(prose: str) -> list[str]:
    """`line: 'phrase' (write: ...)` for every phrase in a text but those of `EXCEPTIONS`."""
    for text in EXCEPTIONS:
        prose = re.sub(re.escape(text).replace("\\ ", r"\s+"), blank, prose)
    return [
        f"{line}: {phrase!r} (write: {instead})"
        for pattern, instead in PHRASES.items()
        for line, phrase in matches(pattern, prose)
    ]


@pytest.mark.parametrize("file", FILES)
def test_a_file_has_no_phrase_of_the_list(file):
    outputs = phrases_in(prose_of(ROOT / file))
    assert not outputs, "\n".join([file, *outputs])


def test_exceptions_are_needed():
    texts = {file: " ".join(prose_of(ROOT / file).split()) for file in FILES}
    assert [text for text in EXCEPTIONS if not any(text in prose for prose in texts.values())] == []


@pytest.mark.parametrize(
    "text, count",
    [
        ("Rows that cannot\nbe told from others.", 2),  # across lines; also 'told'
        ("As `alike` and\n```python\nbeside = 1\n```\nhave it.", 0),
        ("```python\nbeside = 1  # how far heads look\n# a door\n```", 2),
        ("[How](guides/page.md#several-trainings) seeds differ.", 0),
        ("![Two maps beside a third](maps.png)", 1),
        ("---\ncalls: report_runs\n---\nA ViT with First weights.", 1),
        ("An image on a training set, a training step, each training run.", 0),
    ],
)
def test_phrases_are_counted_in_prose_only(text, count):
    assert len(phrases_in(prose_of_markdown(text))) == count


PYTHON = '''"""A module that tells."""

alike = {"beside": 1}  # a door
error = f"{told} cannot be told: {alike}"


def call():
    """First line.

    Args:
        told, place: a number.

    Examples:
        >>> print("a ViT beside a BiT")
    """
'''


def test_phrases_are_counted_in_strings_docstrings_and_comments():
    outputs = phrases_in(prose_of_python(PYTHON))
    assert [line.partition(" (")[0] for line in outputs] == [
        "4: 'cannot be told'",
        "1: 'tells'",
        "4: 'told'",
        "3: 'door'",
    ]


def test_line_numbers_are_those_of_the_file():
    assert phrases_in(prose_of_markdown("one\n```\na\n```\nalike\n"))[0].startswith("5: 'alike'")
