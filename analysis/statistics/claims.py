"""Claims of papers, what decides them, and the quantities by which models are compared."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from .estimates import Estimate, Method, Units, safeguard_effect, units_for_power
from .intervals import Limits

POWER = 0.8  # with which a number of images decides
MOST_IMAGES = 100_000  # more are no advice: ImageNet has 50,000 for validation


class Outcome(Enum):
    """What the interval of an effect says about a claim."""

    AS_IN_PAPER = "as in the paper"
    SMALLER = "smaller"
    NO_EFFECT = "no relevant effect"
    OPPOSITE = "opposite"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"


# Outcomes with a mark: what is measured agrees with the paper, or contradicts it.
DECIDED = (Outcome.AS_IN_PAPER, Outcome.SMALLER, Outcome.NO_EFFECT, Outcome.OPPOSITE)


@dataclass(frozen=True)
class PaperEffect:
    """The effect that a paper reports.

    Attributes:
        sign: 1 if the number is above its value without an effect, -1 if it is below, and 0 if the
            claim is that there is no effect.
        size: absolute value of the effect; None if the paper shows only its sign, in a figure.
        place: where the paper reports it, such as "section 6, Figure 8".
    """

    sign: int
    size: float | None
    place: str


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, as a statistic whose value is 0 if there is no effect.

    The decorator `claim` creates a `Claim` from the function that computes the statistic. A `Claim`
    can be called like this function.

    Attributes:
        name: short and unique name of the claim.
        statement: the claim, as a sentence.
        explanation: definition of the statistic.
        estimator: function that computes an `Estimate` from the results named in `inputs`.
        inputs: names of the results that the estimator needs. The roles of the models, such as
            `vit` or `resnet`, are in braces: `"cka.{vit}"`. `"accuracy.{vit}"` is the test accuracy
            of a model. `"block"` is the name of the block without skips, in the role "without".
        unit: name of the statistic, such as "difference in CKA".
        paper: the effect that the paper reports.
        least: the smallest effect of interest, of either sign.
        beyond_untrained: whether the effect is what training adds: the statistic of the trained
            models minus that of untrained copies of these models. It is false if copies have no
            such statistic, or if it is 0 for them by construction: for a model's own accuracy, and
            for models that differ only in their training.
        least_images: the smallest number of training images for which the claim is tested.
        supervision: how the ViTs that the claim is about were trained, as values of
            `supervision.SUPERVISIONS`; empty for ViTs with any training.
    """

    name: str
    statement: str
    explanation: str
    estimator: Callable[..., Estimate]
    inputs: tuple[str, ...]
    unit: str
    paper: PaperEffect
    least: float
    beyond_untrained: bool = True
    least_images: int = 0
    supervision: tuple[str, ...] = ()

    def __call__(self, *results: Any) -> Estimate:
        return self.estimator(*results)


def claim(
    inputs: str,
    place: str,
    unit: str,
    effect: float | Literal["above", "below"],
    least: float,
    *,
    beyond_untrained: bool = True,
    least_images: int = 0,
    supervision: tuple[str, ...] = (),
    name: str = "",
    text: tuple[str, str] | None = None,
) -> Callable[[Callable[..., Estimate]], Claim]:
    """Returns a decorator that creates a `Claim` from the function that computes its statistic.

    The name of the claim is the name of the function. In the docstring of the function, the first
    paragraph is the claim, and the second paragraph defines the statistic. Further paragraphs are
    not shown in reports. The statistic is 0 if there is no effect: use differences, and logarithms
    of ratios.

    Args:
        inputs: names of the results, separated by spaces, as for a `Claim`.
        place: where the paper reports the claim.
        unit: as for a `Claim`.
        effect: the effect that the paper prints. `"above"` and `"below"` stand for an effect of
            which a figure shows only the sign, and 0 for a claim that there is none.
        least, beyond_untrained, least_images, supervision: as for a `Claim`.
        name, text: name of the claim, and its statement and explanation. They replace the name and
            the docstring of the function, if the same function is used for several claims.

    Raises:
        ValueError: if the smallest effect of interest is not above 0, or not below the effect of
            the paper, or if the docstring lacks a paragraph.
    """
    signs = {"above": 1, "below": -1}
    size = None if isinstance(effect, str) else abs(effect)
    sign = signs[effect] if isinstance(effect, str) else int(np.sign(effect))
    if not least > 0 or (size and least >= size):
        raise ValueError(
            "Expected a smallest effect of interest above 0 and below the effect of the paper. "
            f"Received: least={least}, effect={effect}"
        )

    def make(estimator: Callable[..., Estimate]) -> Claim:
        paragraphs = text or _paragraphs(estimator)
        if len(paragraphs) < 2 or paragraphs[1].startswith("Args:"):
            raise ValueError(
                "Expected a docstring with two paragraphs, the claim and the definition of its "
                f"number. Received: {paragraphs} of {estimator}"
            )
        return Claim(
            name=name or estimator.__name__.replace("_", "-"),
            statement=paragraphs[0],
            explanation=paragraphs[1],
            estimator=estimator,
            inputs=tuple(inputs.split()),
            unit=unit,
            paper=PaperEffect(sign, size, place),
            least=least,
            beyond_untrained=beyond_untrained,
            least_images=least_images,
            supervision=supervision,
        )

    return make


def decide(interval: Limits | None, paper: PaperEffect, least: float) -> Outcome:
    """The outcome of a claim, from the 95 % interval of its effect.

    An effect counts if its whole interval lies beyond the smallest effect of interest, on either
    side. It is as in the paper if the interval contains the effect of the paper or lies beyond it
    (Simonsohn 2015). There is no relevant effect if the whole interval lies within the smallest
    effect of interest; where the paper reports no effect, this is as in the paper.
    """
    if interval is None:
        return Outcome.UNDECIDED
    low, high = interval if paper.sign >= 0 else (-interval[1], -interval[0])
    if -least < low and high < least:
        return Outcome.NO_EFFECT if paper.sign else Outcome.AS_IN_PAPER
    if high < -least or (not paper.sign and low > least):
        return Outcome.OPPOSITE
    if not (paper.sign and low > least):
        return Outcome.UNDECIDED
    is_smaller = paper.size is not None and high < paper.size
    return Outcome.SMALLER if is_smaller else Outcome.AS_IN_PAPER


class _Row:
    """A row of a scorecard, about one claim."""

    claim: Claim

    @property
    def name(self) -> str:
        """The name of the claim."""
        return self.claim.name


@dataclass(frozen=True)
class Tested(_Row):
    """A claim that was tested on some models.

    Attributes:
        claim: the `Claim`.
        estimate: the effect that decides the claim. An estimate over images is about these models;
            an estimate over runs is about any models that are trained in the same way.
        trained: the statistic of the trained models.
        untrained: the statistics of their untrained copies; empty for a claim without copies.
        permuted: for a claim about the CKA of two models, the statistic if the two models are shown
            different images; None for other claims.
        models: names of the models.
        results: names of the results from which the statistic was computed.
        source: name and address of the paper.
        runs: for an estimate over runs, a dict from the name of a run to its effect.
    """

    claim: Claim
    estimate: Estimate
    trained: float
    untrained: tuple[float, ...] = ()
    permuted: float | None = None
    models: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    source: tuple[str, str] = ("", "")
    runs: tuple[tuple[str, float], ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The decision about the claim."""
        return decide(self.estimate.interval, self.claim.paper, self.claim.least)


@dataclass(frozen=True)
class NotTested(_Row):
    """A claim that was not tested, and the reason as a sentence."""

    claim: Claim
    reason: str
    models: tuple[str, ...] = ()
    source: tuple[str, str] = ("", "")
    outcome: ClassVar[Outcome] = Outcome.NOT_TESTED


Row: TypeAlias = Tested | NotTested  # of a scorecard


def images_to_decide(tested: Tested) -> int | None:
    """The number of images with which an undecided claim is probably decided; None for others.

    The true effect is taken to be the nearer end of its 80 % interval. If this end lies within the
    smallest effect of interest, or hardly beyond it, the number of images is not known.
    """
    estimate, least = tested.estimate, tested.claim.least
    if tested.outcome is not Outcome.UNDECIDED or estimate.method in (None, Method.RUNS):
        return None
    units, effect = cast(Units, estimate.units), safeguard_effect(estimate)
    if units.images is None or abs(effect) <= least:
        return None
    count = units_for_power(estimate, POWER, effect, float(np.copysign(least, effect)))
    images = int(np.ceil(count * units.images / units.count))
    step = 10 ** max(len(str(images)) - 2, 0)
    return -(-images // step) * step if images <= MOST_IMAGES else None


@dataclass(frozen=True)
class Quantity:
    """A number by which a report compares its models; `quantity` makes it from a function."""

    label: str  # what it is, in words
    explanation: str  # how it is made
    result: str  # name of the result, with `{model}`, and `{other}` for one of two models
    unit: str  # what the number is, in a few words
    estimator: Callable[[Any], Estimate]
    more: str = ""  # what a model with a higher value does, before "than": "attends more globally"

    @property
    def of_pairs(self) -> bool:
        """Whether it is a number about two models."""
        return "{other}" in self.result


def quantity(
    result: str, *, unit: str, more: str = ""
) -> Callable[[Callable[[Any], Estimate]], Quantity]:
    """Returns a decorator that makes a `Quantity` from a function of a result.

    The docstring of the function has two paragraphs, the label and the explanation.
    """

    def make(estimator: Callable[[Any], Estimate]) -> Quantity:
        paragraphs = _paragraphs(estimator)
        if len(paragraphs) != 2:
            raise ValueError(
                f"Expected the docstring of {estimator.__qualname__!r} to be two paragraphs, the "
                f"label and the explanation. Received: {inspect.getdoc(estimator)!r}"
            )
        label, explanation = paragraphs
        return Quantity(label.rstrip("."), explanation, result, unit, estimator, more)

    return make


def _paragraphs(function: Callable[..., Any]) -> list[str]:
    """The paragraphs of a docstring, each on one line."""
    docstring = inspect.getdoc(function) or ""
    return [" ".join(part.split()) for part in docstring.split("\n\n")]
