"""What a figure needs of models, and the words for what they lack.

The functions of one model end the sentence "MODEL ...", those of several models are sentences; all
are empty where nothing is lacking.
"""

from . import measurements, walmer_measurements

NO_GRID = "has no grid of tokens or places that is known and tiles the images"


def nothing(given):
    """What every model has."""
    return ""


def layers(subject):
    return "" if len(measurements.cka(subject).taps[0]) > 1 else "has one layer to compare only"


def attention(subject):
    if not subject.has_attention:
        return "has no attention weights"
    return "" if subject.grid else NO_GRID


def heads(subject):
    """Weights and outputs of the heads of the first block."""
    first = ("block00/attention/weights", "block00/attention/heads")
    if not set(first) <= set(subject.taps):
        return f"has no {' and '.join(first)}"
    return "" if subject.grid else NO_GRID


def maps(subject):
    """Maps through the depth, as convolutions make them, not those of a patch embedding alone."""
    found = subject.stages or 2 * sum(map(subject.is_map, subject.blocks)) > len(subject.blocks)
    return "" if found else "has no maps of convolutions"


def fields(subject):
    found = measurements.receptive_field(subject).taps
    return "" if found else "has no maps, and no tokens whose grid is known"


def branches(subject):
    found = measurements.receptive_field(subject, "branch").taps
    return "" if found else "has no branches with a place that are known apart from their skips"


def skips(subject):
    sites = [tap.removesuffix("/skip") for tap in subject.taps if tap.endswith("/skip")]
    if not any(f"{site}/branch" in subject.taps for site in sites):
        return "has no skips that are known apart from their branches"
    return "" if subject.grid else NO_GRID


def places(subject):
    return _on_grid(subject, lambda one: measurements.localization(one).taps[0])


def rollout(subject):
    """Attention between skips that pass tokens on as they are."""
    if attention(subject):
        return attention(subject)
    taps = walmer_measurements.rollout_taps(subject)
    sites = dict.fromkeys(tap.rpartition("/")[0] for tap in taps)
    missing = [f"{s}/{end}" for s in sites for end in ("skip", "sum") if f"{s}/{end}" not in taps]
    return f"has no {missing[0]}, which would show that it has that skip" if missing else ""


def norms(subject):
    found = walmer_measurements.norm_taps(subject)
    return "" if len(found) > 1 else "has no norms that are known"


def attention_skips(subject):
    found = walmer_measurements.residual_taps(subject)
    return "" if found else "has no skips of attention that are known"


def last_tokens(subject):
    return _on_grid(subject, walmer_measurements.last_tokens)


def placed(subject):
    return _on_grid(subject, walmer_measurements.placed)


def square(subject):
    if placed(subject):
        return placed(subject)
    alike = subject.grid.rows == subject.grid.columns
    return "" if alike else "has a grid that is not square"


def two_models(subjects):
    return "" if len(subjects) > 1 else "It compares two models; one is given."


def heads_beside_maps(subjects):
    """For two different models."""
    if any(not (heads(one) or maps(other)) for one, other in _ordered_pairs(subjects)):
        return ""
    return (
        "It compares the attention heads of a model with the maps of another; "
        f"{_named(subjects, heads, 'attention heads')}, {_named(subjects, maps, 'maps')}."
    )


def same_blocks(subjects):
    """For two different models."""
    if two_models(subjects):
        return two_models(subjects)
    found = any(one.blocks == other.blocks for one, other in _ordered_pairs(subjects))
    return "" if found else "It compares two models whose layers have the same names; none are."


def trained(words):
    """For what only a set of models that were trained for it has."""
    return lambda subjects: f"It needs {words}, as the study trains them."


def shown_by(number):
    """For what another figure shows of every model."""
    return lambda subjects: f"Figure {number} shows it for every model."


def _on_grid(subject, find):
    """For what needs layers on the grid; `find` gives those of a model that has one."""
    if subject.grid is None:
        return NO_GRID
    return "" if find(subject) else "has no layers on the grid of its tokens or places"


def _ordered_pairs(subjects):
    return [(one, other) for one in subjects for other in subjects if one is not other]


def _named(subjects, need, words):
    names = [subject.name for subject in subjects if not need(subject)]
    return f"{words}: {', '.join(names) or 'none'}"
