"""What is measured of single images: each result that a model has the taps for, or the reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy.linalg
import tensorflow as tf
import xarray as xr

from vit_tf import edits
from vit_tf.common.errors import explain
from vit_tf.common.names import join_words
from vit_tf.features.features import Features
from vit_tf.features.structure import spread
from vit_tf.features.tokens import prefix_names

from ..engine.pooling import pooled_tokens
from ..engine.results import provenance
from ..engine.stream import collect
from ..flow.ablation import head_ablation, skip_ablation
from ..flow.attribution import grad_cam, input_gradients
from ..flow.logit_lens import logit_lens, token_lens
from ..flow.receptive_field import position_attribution
from ..flow.skips import branch_norms
from ..heads.attention_distance import attention_rows
from ..heads.rollout import gradient_attention, rollout_of_images
from ..objects.keypoints import token_similarity
from ..report.first_screen import LeftOut

if TYPE_CHECKING:
    from ..figures.models import StudyModel

MOST_LAYERS = 13  # whose tokens are compared
MOST_CELLS = 49  # whose receptive fields are taken
MOST_PIXELS = 2_000_000  # of copies of the images, one for each of these cells
MOST_WEIGHTS = 6_000_000  # attention weights of a model on the page
MOST_COSINES = 1_400_000  # similarities of patches of a model on the page
MOST_SCORES = 30_000_000  # of patches, layers and classes that are in memory at once
TOP = 5  # classes of the highest scores that are explained of one image
TOP_OF_SEVERAL = 3  # of each of several images
COMPONENTS = 3  # red, green and blue
AT_ONCE = 64  # runs with an intervention that share a batch


@dataclass(frozen=True)
class Subject:
    """A model and the images that it is looked at with."""

    model: "StudyModel"
    # Float32 array of shape (example, height, width, channel), values in [-1, 1].
    images: np.ndarray = field(repr=False)
    # Positions of the classes to explain; those of the highest scores if None.
    classes: tuple | None = None
    samples: int = 6  # of SmoothGrad
    noise: float = 0.1  # of SmoothGrad
    seed: int = 0  # of SmoothGrad

    @property
    def prefix_names(self) -> Sequence[str]:
        """Names of the prefix tokens: the model's own, or CLS and registers."""
        default_names = prefix_names(self.model.grid.prefix if self.model.grid else 0)
        names = self.model.features.facts.prefix_names
        return names if len(names) == len(default_names) else default_names

    @property
    def pooled_tokens(self) -> tuple[int, ...]:
        """Positions of the tokens that the head reads: the model's own, or CLS, or all."""
        grid = self.model.grid
        return pooled_tokens(self.model.features.facts.pooled_tokens, grid) if grid else ()

    @property
    def pooled_name(self) -> str:
        """What the head reads, in words: "CLS", or "the mean of the patches"."""
        prefix = self.model.grid.prefix if self.model.grid else 0
        named = [self.prefix_names[at] for at in self.pooled_tokens if at < prefix]
        return join_words(named) if named else "the mean of the patches"

    @cached_property
    def scores(self) -> xr.DataArray:
        """Scores of the images: DataArray of shape (example, class)."""
        tap = self.model.require_scores()
        features = self.model.select(tap)

        def step(images: tf.Tensor) -> tf.Tensor:
            return tf.cast(features(images)[tap], tf.float32)  # which may be of mixed precision

        rows = collect(step, self.images, checked=(features,))
        return xr.DataArray(
            rows,
            {"example": np.arange(len(rows)), "class": np.arange(rows.shape[1])},
            ("example", "class"),
            name="scores",
            attrs=provenance(features, len(rows), 1, long_name="score", units="score", tap=tap),
        )

    @cached_property
    def explained_classes(self) -> list[list[int]]:
        """Indices of the classes to explain for each image: those specified, or its likeliest."""
        if self.classes is not None:
            return [[int(number) for number in self.classes]] * len(self.images)
        most = TOP if len(self.images) == 1 else TOP_OF_SEVERAL
        return np.argsort(-self.scores.values, axis=1, kind="stable")[:, :most].tolist()

    def explain(self, measure: Callable[..., Any]) -> xr.DataArray:
        """The result (example, class, ...) of a measurement of each image for its own classes."""
        if len({*map(tuple, self.explained_classes)}) == 1:
            return measure(self.images, self.explained_classes[0])
        pairs = zip(self.images, self.explained_classes, strict=True)
        results: list[xr.DataArray] = [measure(image[None], classes) for image, classes in pairs]
        every = list(dict.fromkeys(np.transpose(self.explained_classes).ravel().tolist()))
        return xr.concat(
            [result.reindex({"class": every}) for result in results],
            "example",
            combine_attrs="override",
        )

    def explained(self, result: xr.DataArray) -> list[np.ndarray]:
        """The values of a result of `explain` for the classes of each image: a list."""
        images = zip(result, self.explained_classes, strict=True)
        return [values.sel({"class": classes}).values for values, classes in images]

    @cached_property
    def tokens(self) -> dict[str, np.ndarray]:
        """Tokens of some layers: dict from tap to array (example, row, column, channel)."""
        if self.model.has_maps:
            return self._values(self.layers_of(position_attribution))
        grid = self.model.require_grid()
        shape = (len(self.images), grid.rows, grid.columns, -1)
        return {tap: x[:, grid.prefix :].reshape(shape) for tap, x in self._placed.items()}

    @property
    def prefix_tokens(self) -> dict[str, np.ndarray]:
        """Tokens without a position, in the same layers: arrays (example, token, channel)."""
        if self.model.has_maps:
            return {}
        prefix = self.model.require_grid().prefix
        return {tap: x[:, :prefix] for tap, x in self._placed.items()}

    @cached_property
    def _placed(self) -> dict[str, np.ndarray]:
        """Sequences of tokens, (example, token, channel), of some layers on the grid."""
        values = self._values(spread(self.layers_of(token_similarity), MOST_LAYERS))
        return {tap: x.reshape(len(x), -1, x.shape[-1]) for tap, x in values.items()}

    def _values(self, taps: Sequence[str]) -> dict[str, np.ndarray]:
        features = self.model.select(*taps)

        def step(images: tf.Tensor) -> dict[str, tf.Tensor]:
            held = features(images)
            return {tap: tf.cast(held[tap], tf.float32) for tap in taps}

        return collect(step, self.images, checked=(features,))

    def layers_of(
        self,
        measurement: Callable[..., Any],
        most: Callable[["Subject", list[str]], int] | None = None,
    ) -> list[str]:
        """The layers that a measurement declares; a `NotApplicable` for a model without them."""
        kind = measurement.kind
        layers = self.model.find_layers(kind) if kind == "scores" else self.model.layers(kind)
        return spread(layers, most(self, layers)) if most else layers


@dataclass(frozen=True)
class MeasurementPanel:
    """A panel of the page for the result of a registered measurement, on the layers of its kind.

    Attributes:
        measurement: the measurement that is called.
        takes: which of `"scores"`, `"grid"` and `"classes"` it takes as arguments of these names.
        most_layers: function of a subject and its layers that returns how many layers, evenly
            spaced, fit on the page; None for all.
        options: function of a subject that returns further arguments.
        complete: function of a subject and the result that returns the result for the page.
    """

    measurement: Callable[..., Any]
    takes: tuple[str, ...] = ()
    most_layers: Callable[[Subject, list[str]], int] | None = None
    options: Callable[[Subject], dict[str, Any]] | None = None
    complete: Callable[[Subject, Any], Any] | None = None

    def __call__(self, subject: Subject) -> Any:
        """The result of a subject; a `NotApplicable` where the model has no such layers."""
        model = subject.model
        options = self.options(subject) if self.options else {}
        options |= {"scores": model.require_scores()} if "scores" in self.takes else {}
        options |= {"grid": model.require_grid()} if "grid" in self.takes else {}
        layers = subject.layers_of(self.measurement, self.most_layers)
        scores = [options["scores"]] if "scores" in options else []
        features = model.select(*layers, *scores)
        if "classes" in self.takes:
            result = subject.explain(
                lambda images, classes: self.measurement(
                    features, images, classes=classes, **options
                )
            )
        else:
            result = self.measurement(features, subject.images, **options)
        return self.complete(subject, result) if self.complete else result

    def call(self, subject: Subject) -> str:
        """The expression that gives the result, of a model and images; the first if they differ."""
        declaration, images = cast(Any, self.measurement).declaration, "images"
        options = self.options(subject) if self.options else {}
        all_layers = subject.layers_of(self.measurement)
        layers = subject.layers_of(self.measurement, self.most_layers)
        options |= {"detail": len(layers)} if len(layers) < len(all_layers) else {}
        if "classes" in self.takes:
            first, *others = subject.explained_classes
            images = "images[:1]" if any(other != first for other in others) else images
            options |= {"classes": first}
        return declaration.expression(1, images, **options).replace("{model}", "model")


def most_attention(subject: Subject, weights: list[str]) -> int:
    """How many layers of attention weights fit on the page."""
    model = subject.model
    heads, tokens = model.shapes[weights[0]][0], model.require_grid().num_tokens
    return max(1, MOST_WEIGHTS // (len(subject.images) * heads * tokens**2))


def most_similarities(subject: Subject, _: list[str]) -> int:
    """How many layers of similarities fit on the page."""
    pairs = (len(subject.images) * subject.model.require_grid().num_spatial) ** 2
    return max(2, min(MOST_LAYERS, MOST_COSINES // pairs))


def without_zero_layers(subject: Subject, result: xr.DataArray) -> xr.DataArray:
    """Similarities in layers that are nonzero at some positions."""
    is_nonzero = result.notnull().all([dim for dim in result.dims if dim != "layer"]).values
    subject.model.require(is_nonzero.any(), "layer on the grid that is nonzero at all positions")
    return result.isel(layer=is_nonzero)


def smoothing(subject: Subject) -> dict[str, Any]:
    """The options of SmoothGrad."""
    return {"samples": subject.samples, "noise": subject.noise, "seed": subject.seed}


def cells_of_fields(subject: Subject) -> dict[str, int]:
    """The positions whose receptive fields are measured, at most so many as the page can hold."""
    rows, columns = subject.model.shapes[subject.layers_of(position_attribution)[-1]][:2]
    pixels = int(np.prod(subject.images.shape[:3]))
    while rows * columns > MOST_CELLS or rows * columns * pixels > MOST_PIXELS:
        rows, columns = -(-rows // 2), -(-columns // 2)
    return {"rows": rows, "columns": columns}


def patch_lens(subject: Subject) -> xr.DataArray:
    """Class scores from the model's own head, applied to single patches of each block."""
    model, scores = subject.model, subject.model.require_scores()
    taps = subject.layers_of(logit_lens)
    last = model.shapes[taps[-1]]
    same_shape = [tap for tap in taps if model.shapes[tap] == last]
    numbers = len(subject.images) * int(np.prod(last[:-1])) * model.shapes[scores][0]
    layers = spread(same_shape, max(2, min(MOST_LAYERS, MOST_SCORES // numbers)))
    lens = token_lens(model.select(*layers, scores), subject.images, scores)
    prefix = 0 if len(last) == 3 else model.require_grid().prefix
    return lens.isel(token=slice(prefix, None))


def removals(subject: Subject) -> xr.DataArray:
    """Scores without each head, and without the branches of each block; NaN for no such head."""
    model, scores = subject.model, subject.model.require_scores()
    heads, sites = (model.find_layers(m.kind) for m in (head_ablation, skip_ablation))
    removable = {*heads, *(tap for tap in sites if tap.endswith("/branch"))}
    taps = [tap for tap in model.taps if tap in removable]
    taps = model.require(taps, "heads and branches that are known, to remove them")
    features = model.select(*taps, scores)
    cells = _removal_edits(features)

    def step(batch: tf.Tensor) -> tf.Tensor:
        edited = list(cells.values())
        _, changed = features.run_interventions(edited, scores, batch, AT_ONCE)
        return tf.transpose(tf.cast(changed, tf.float32), (1, 0, 2))

    rows = collect(step, subject.images, checked=(features,))
    blocks, parts = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    parts = sorted(parts, key=lambda name: (name == "block", len(name), name))
    table = np.full((len(rows), len(blocks), len(parts), rows.shape[-1]), np.nan, np.float32)
    for at, (block, part) in enumerate(cells):
        table[:, blocks.index(block), parts.index(part)] = rows[:, at]
    return xr.DataArray(
        table,
        {"layer": blocks, "removed": parts},
        ("example", "layer", "removed", "class"),
        name="removals",
        attrs={"long_name": "score without a head or block", "units": "score"},
    )


def _removal_edits(features: Features) -> dict[Any, Any]:
    """Dict from (block, "head 0" or "block") to the intervention."""
    cells = {}
    for tap in features.facts.layers:
        site, _, end = tap.rpartition("/")
        block = site.partition("/")[0] if site.startswith("block") else site
        if end in ("heads", "value"):
            for head in range(cast(int, features.facts.shapes[tap][1])):
                cells[block, f"head {head}"] = {tap: edits.head(head, edits.zero)}
        elif end == "branch":
            cells.setdefault((block, "block"), {})[tap] = edits.zero
    return cells


# The titles of results, and what makes each of a subject.
MEASURES: dict[str, tuple[str, Callable[[Subject], Any]]] = {
    "scores": ("The scores of classes", lambda subject: subject.scores),
    "attention": (
        "The attention of patches",
        MeasurementPanel(attention_rows, ("grid",), most_attention),
    ),
    "rollout": ("Attention rollout", MeasurementPanel(rollout_of_images, ("grid",))),
    "gradient_attention": (
        "Gradient-weighted attention",
        MeasurementPanel(gradient_attention, ("scores", "grid", "classes")),
    ),
    "input_gradients": (
        "Input gradients",
        MeasurementPanel(input_gradients, ("scores", "classes"), options=smoothing),
    ),
    "similarity": (
        "The similarity of patches",
        MeasurementPanel(
            token_similarity, ("grid",), most_similarities, complete=without_zero_layers
        ),
    ),
    "components": ("Principal components of features", lambda s: principal_components(s.tokens)),
    "logit_lens": ("Predictions by layer", MeasurementPanel(logit_lens, ("scores",))),
    "patch_lens": ("Predictions by patch", patch_lens),
    "removals": ("The effect of removing heads and blocks", removals),
    "token_norms": ("Norms of tokens", lambda s: token_norms(s.tokens, s.prefix_tokens)),
    "norms": ("Norms of skips and branches", MeasurementPanel(branch_norms)),
    "fields": (
        "Receptive fields",
        MeasurementPanel(position_attribution, options=cells_of_fields),
    ),
    "grad_cam": ("Grad-CAM", MeasurementPanel(grad_cam, ("scores", "classes"))),
}

OF_CLASSES = {"gradient_attention", "input_gradients", "logit_lens"}
OF_CLASSES |= {"patch_lens", "removals", "grad_cam"}
FLAT = "The head scores all classes equally, as one that is zero or untrained does"


def collect_results(subject: Subject) -> tuple[dict[str, Any], LeftOut]:
    """Results by name that the model has the taps for, and (what, reasons) of those left out."""
    results, left_out = {}, []
    for name, (title, measure) in MEASURES.items():
        # The scores come first, and show whether there is evidence for classes.
        if name in OF_CLASSES and is_flat(results):
            continue
        try:
            results[name] = measure(subject)
        except Exception as error:
            left_out.append((title, [explain(error, f"{title} of {subject.model.name}")]))
    if is_flat(results):
        left_out.append(("Evidence for classes", [f"{FLAT}."]))
    return results, left_out


def is_flat(results: Mapping[str, Any]) -> bool:
    """Whether the head scores all classes of all images equally."""
    return "scores" in results and not np.ptp(results["scores"].values, axis=1).any()


def principal_components(tokens: dict[str, np.ndarray]) -> dict[str, xr.DataArray]:
    """Scores of the first three principal components of the tokens of all images, by layer."""
    return {layer: _components(x.astype(np.float64)) for layer, x in tokens.items()}


def _components(x: np.ndarray) -> xr.DataArray:
    """Principal components, signed so that their scores skew right, and shares of the variance."""
    *shape, channels = x.shape
    rows = x.reshape(-1, channels)
    rows = rows - rows.mean(axis=0)
    is_wide = len(rows) < channels  # eigenvectors of the smaller of the two products
    product = rows @ rows.T if is_wide else rows.T @ rows
    largest = max(0, len(product) - COMPONENTS), len(product) - 1
    values, vectors = scipy.linalg.eigh(product, subset_by_index=largest)
    scores = vectors * np.sqrt(np.maximum(values, 0)) if is_wide else rows @ vectors
    scores, values = scores[:, ::-1][:, :COMPONENTS], values[::-1][:COMPONENTS]
    scores = scores * np.where((scores**3).sum(axis=0) < 0, -1, 1)
    total = np.square(rows).sum()
    spare = COMPONENTS - len(values)  # of a layer of fewer channels
    scores = np.pad(scores, ((0, 0), (0, spare)))
    explained = np.pad(values / total if total else 0 * values, (0, spare))
    return xr.DataArray(
        scores.reshape(*shape, COMPONENTS),
        {"explained": ("component", explained)},
        ("example", "row", "column", "component"),
        attrs={"long_name": "principal component", "units": "activation"},
    )


def token_norms(
    tokens: dict[str, np.ndarray], prefix: dict[str, np.ndarray]
) -> dict[str, xr.Dataset]:
    """Euclidean norm of every token, and of those without a position, by layer."""
    facts = {"long_name": "Euclidean norm", "units": "activation"}
    norms = {}
    for layer, x in tokens.items():
        values: dict[str, Any] = {"norm": (("example", "row", "column"), _lengths(x), facts)}
        if layer in prefix and prefix[layer].shape[1]:
            values["prefix_norm"] = (("example", "token"), _lengths(prefix[layer]), facts)
        norms[layer] = xr.Dataset(values)
    return norms


def _lengths(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x.astype(np.float64), axis=-1)
