"""The scorecard: each finding of a paper, what was measured, and whether it holds.

Which claims there are, `claim_rows` and `walmer_claims` list; how each statistic is computed and
why its line is where it is, `findings`, `walmer_findings` and `walmer_feature_findings` say.
"""

from dataclasses import dataclass, fields

import numpy as np
import xarray as xr

from ..papers import claim_rows, walmer_claims
from ..papers.claim_rows import Row
from ..papers.papers import RAGHU

ROWS = claim_rows.ROWS + walmer_claims.ROWS

VERDICTS = ("holds", "does not hold", "cannot tell", "not measured")


@dataclass(frozen=True)
class Claim:
    """One finding of a paper, held against a measurement.

    Attributes:
        name: short and unique.
        statement: the finding, in words.
        section, figure: where the paper reports it.
        quantity: what the value is, in a few words.
        value: the statistic.
        low, high: its 95 % interval; NaN where nothing is known of the uncertainty.
        threshold: the line it is held against.
        direction: "above" or "below", the side of the line that the paper reports.
        verdict: one of `VERDICTS`.
        explanation: what the value is and where its interval comes from, or why there is none.
        results: names of the results it was computed from.
        source: name and address of the paper.
    """

    name: str
    statement: str
    section: str
    figure: str
    quantity: str
    value: float
    low: float
    high: float
    threshold: float
    direction: str
    verdict: str
    explanation: str
    results: tuple[str, ...] = ()
    source: tuple[str, str] = RAGHU


def verdict(low, high, threshold, direction):
    """Whether an interval lies on the reported side of a line, on the other, or across it."""
    above, below = low > threshold, high < threshold
    if not (above or below):
        return "cannot tell"
    return "holds" if above == (direction == "above") else "does not hold"


def scorecard(
    results,
    *,
    vit,
    resnet=None,
    gap=None,
    without=None,
    fresh=None,
    noise=None,
    block=None,
    accuracy=None,
):
    """All claims about these models, paper by paper, in each one's order.

    Args:
        results: dict from result name to labelled result. Read are "cka.VIT", "cka.RESNET",
            "cka.VIT.RESNET", "cka.WITHOUT", "attention_distance.VIT", "head_similarity.VIT.RESNET",
            "receptive_field.VIT", "receptive_field.RESNET", "receptive_field_branch.VIT",
            "skip_ratio.VIT", "skip_ratio.RESNET", "localization.VIT", ".GAP" and ".RESNET",
            "ridge_probe_tokens.VIT", ".GAP" and ".RESNET", "data_scale.VIT"; and those of
            `walmer_measurements` that `walmer_claims` names.
        vit, resnet, gap, without: the names of the ViT with a CLS token, of the ResNet, of the ViT
            with average pooling and of the ViT without the skips of `block`, as in the results'
            names; None where there is no such model.
        fresh, noise: the names of the ViT before any training, and of noise in its place.
        block: name of the block without skips, "block03".
        accuracy: dict from such a name to a pair of test accuracy in [0, 1] and number of test
            examples.

    Returns:
        List of `Claim`. Those that lack a model or a result have the verdict "not measured" and
        the reason as their explanation.
    """
    roles = {"vit": vit, "resnet": resnet, "gap": gap, "without": without}
    roles |= {"fresh": fresh, "noise": noise, "block": block}
    pairs = {f"accuracy.{name}": pair for name, pair in (accuracy or {}).items()}
    found = {**results, **pairs, "block": block}
    return [_evaluate(row, roles, found) for row in ROWS]


def as_dataset(claims):
    """The claims as a Dataset along `claim`, to save beside the results."""
    columns = {
        field.name: [getattr(claim, field.name) for claim in claims] for field in fields(Claim)
    }
    columns["results"] = [" ".join(names) for names in columns["results"]]
    columns["source"] = [name for name, _ in columns["source"]]
    names = columns.pop("name")
    data = {key: ("claim", np.array(values)) for key, values in columns.items()}
    return xr.Dataset(data, coords={"claim": names}, attrs={"interval": "95 %"})


def _evaluate(row, roles, found):
    """The claim of a row, measured if its models and results are there."""
    try:
        names = tuple(_named(template, roles) for template in row.inputs)
        absent = [name for name in names if found.get(name) is None]
        if absent:
            raise ValueError(f"There is no result {' and no '.join(absent)}.")
        estimate = row.compute(*(found[name] for name in names))
    except ValueError as error:
        return _claim(row, np.nan, np.nan, np.nan, "not measured", str(error))
    result = verdict(estimate.low, estimate.high, row.threshold, row.direction)
    text = f"{row.measure} Interval: {estimate.how}."
    used = tuple(name for name in names if isinstance(found[name], xr.DataArray | xr.Dataset))
    return _claim(row, estimate.value, estimate.low, estimate.high, result, text, used)


def _named(template, roles):
    """A result's name with the models' names in it."""
    needed = {
        "resnet": "a ResNet",
        "gap": "a ViT with average pooling",
        "without": "a ViT without the skips of a block",
        "fresh": "the ViT before any training",
        "noise": "noise in the place of the ViT's features",
        "vit": "a ViT",
        "block": "the block without skips",
    }
    for role, words in needed.items():
        if f"{{{role}}}" in template and not roles[role]:
            raise ValueError(f"There is no model to measure it on: it takes {words}.")
    return template.format(**roles)


def _claim(row, value, low, high, result, explanation, used=()):
    same = {field.name for field in fields(Claim)} & {field.name for field in fields(Row)}
    kept = {name: getattr(row, name) for name in same}
    return Claim(
        **kept,
        value=value,
        low=low,
        high=high,
        verdict=result,
        explanation=explanation,
        results=used,
    )
