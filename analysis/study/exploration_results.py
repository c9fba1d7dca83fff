"""What is measured of single images: each result that a model has the taps for, or the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import tensorflow as tf
import xarray as xr

from vit_tf import edits
from vit_tf.common.names import join_words
from vit_tf.taps.structure import spread
from vit_tf.taps.tokens import prefix_names

from ..attention.attention_distance import attention_rows
from ..attention.rollout import gradient_attention, rollout_of_images
from ..engine.failures import explain
from ..engine.pooling import pooled_tokens
from ..engine.results import provenance
from ..engine.stream import collect
from ..flow.attribution import grad_cam, input_gradients
from ..flow.logit_lens import logit_lens, token_lens
from ..flow.receptive_field import position_attribution
from ..flow.skips import branch_norms
from ..objects.keypoints import token_similarity

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

    model: object  # the `StudyModel`
    # Float32 array of shape (example, height, width, channel), values in [-1, 1].
    images: np.ndarray = field(repr=False)
    # Positions of the classes to explain; those of the highest scores if None.
    classes: tuple | None = None
    samples: int = 6  # of SmoothGrad
    noise: float = 0.1  # of SmoothGrad
    seed: int = 0  # of SmoothGrad
    foreign: bool = False  # whether its layers have no names of the tap grammar
    # Names of its prefix tokens, None where the model does not name them.
    named: tuple | None = None
    # Positions of the tokens that its head reads, None where it does not name them.
    pooled: tuple | None = None

    @property
    def prefix_names(self):
        """Names of the prefix tokens: the model's own, or CLS and registers."""
        own = prefix_names(self.model.grid.prefix if self.model.grid else 0)
        return self.named if self.named and len(self.named) == len(own) else own

    @property
    def pooled_tokens(self):
        """Positions of the tokens that the head reads: the model's own, or CLS, or all."""
        grid = self.model.grid
        return pooled_tokens(self.pooled, grid) if grid else ()

    @property
    def pooled_name(self):
        """What the head reads, in words: "CLS", or "the mean of the patches"."""
        prefix = self.model.grid.prefix if self.model.grid else 0
        named = [self.prefix_names[at] for at in self.pooled_tokens if at < prefix]
        return join_words(named) if named else "the mean of the patches"

    @property
    def scores_tap(self):
        """The tap that holds the scores of classes; a `NotApplicable` where there is none."""
        return self.model.require_scores()

    @cached_property
    def scores(self):
        """Scores of the images: DataArray of shape (example, class)."""
        tap = self.scores_tap
        features = self.model.features(tap)

        def step(images):
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
    def explained_classes(self):
        """Indices of the classes to explain for each image: those specified, or its likeliest."""
        if self.classes is not None:
            return [[int(number) for number in self.classes]] * len(self.images)
        most = TOP if len(self.images) == 1 else TOP_OF_SEVERAL
        return np.argsort(-self.scores.values, axis=1, kind="stable")[:, :most].tolist()

    def explain(self, measure):
        """The result (example, class, ...) of a measurement of each image for its own classes."""
        if len({*map(tuple, self.explained_classes)}) == 1:
            return measure(self.images, self.explained_classes[0])
        pairs = zip(self.images, self.explained_classes, strict=True)
        each = [measure(image[None], classes) for image, classes in pairs]
        every = list(dict.fromkeys(np.transpose(self.explained_classes).ravel().tolist()))
        return xr.concat(
            [result.reindex({"class": every}) for result in each],
            "example",
            combine_attrs="override",
        )

    def explained(self, result):
        """The values of a result of `explain` for the classes of each image: a list."""
        images = zip(result, self.explained_classes, strict=True)
        return [values.sel({"class": classes}).values for values, classes in images]

    @cached_property
    def tokens(self):
        """Tokens of some layers: dict from tap to array (example, row, column, channel)."""
        if self.model.has_maps:
            return self._values(self.maps)
        grid = self.model.require_grid()
        shape = (len(self.images), grid.rows, grid.columns, -1)
        return {tap: x[:, grid.prefix :].reshape(shape) for tap, x in self._placed.items()}

    @property
    def prefix_tokens(self):
        """Tokens without a position, in the same layers: arrays (example, token, channel)."""
        if self.model.has_maps:
            return {}
        return {tap: x[:, : self.model.grid.prefix] for tap, x in self._placed.items()}

    @cached_property
    def _placed(self):
        """Sequences of tokens, (example, token, channel), of some layers on the grid."""
        values = self._values(spread(self.model.layers("tokens"), MOST_LAYERS))
        return {tap: x.reshape(len(x), -1, x.shape[-1]) for tap, x in values.items()}

    def _values(self, taps):
        features = self.model.features(*taps)

        def step(images):
            held = features(images)
            return {tap: tf.cast(held[tap], tf.float32) for tap in taps}

        return collect(step, self.images, checked=(features,))

    @property
    def maps(self):
        """The last map of each size, in depth order: taps; `NotApplicable` where there are none."""
        return self.model.layers("maps")


def attention(subject):
    """Attention of every query, of at most so many layers as a page can hold."""
    model = subject.model
    weights = model.require_attention()
    numbers = len(subject.images) * model.shapes[weights[0]][0] * model.grid.num_tokens**2
    taps = spread(weights, max(1, MOST_WEIGHTS // numbers))
    result = attention_rows(model.features(*taps), subject.images, model.grid)
    if model.weights:
        return result
    return result.assign_attrs(weights="computed from the queries and keys of each layer")


def rollout(subject):
    """Attention followed through all layers."""
    model = subject.model
    taps = model.layers("rollout")
    return rollout_of_images(model.features(*taps), subject.images, model.require_grid())


def relevance(subject):
    """Gradient-weighted attention of each class that is explained."""
    model, scores = subject.model, subject.scores_tap
    weights = model.layers("class_attention")
    features = model.features(*weights, scores)
    grid = model.require_grid()
    return subject.explain(
        lambda images, classes: gradient_attention(features, images, classes, grid, scores)
    )


def gradients(subject):
    """Input gradients of each class that is explained, with SmoothGrad."""
    scores = subject.scores_tap
    features = subject.model.features(scores)
    options = subject.samples, subject.noise, subject.seed, scores
    return subject.explain(
        lambda images, classes: input_gradients(features, images, classes, *options)
    )


def similarity(subject):
    """Cosine similarity of tokens, within each image and between them."""
    model = subject.model
    pairs = (len(subject.images) * model.require_grid().num_spatial) ** 2
    most = max(2, min(MOST_LAYERS, MOST_COSINES // pairs))
    taps = spread(model.layers("tokens"), most)
    result = token_similarity(model.features(*taps), subject.images, model.grid)
    is_nonzero = result.notnull().all([dim for dim in result.dims if dim != "layer"]).values
    model.require(is_nonzero.any(), "layer on the grid that is nonzero at all positions")
    return result.isel(layer=is_nonzero)


def lens(subject):
    """Class scores from the model's own head, applied to each block."""
    model, scores = subject.model, subject.scores_tap
    return logit_lens(model.features(*model.layers("lens"), scores), subject.images, scores)


def patch_lens(subject):
    """Class scores from the model's own head, applied to single patches of each block."""
    model, scores = subject.model, subject.scores_tap
    taps = model.layers("lens")
    last = model.shapes[taps[-1]]
    same_shape = [tap for tap in taps if model.shapes[tap] == last]
    numbers = len(subject.images) * int(np.prod(last[:-1])) * model.shapes[scores][0]
    layers = spread(same_shape, max(2, min(MOST_LAYERS, MOST_SCORES // numbers)))
    lens = token_lens(model.features(*layers, scores), subject.images, scores)
    prefix = 0 if len(last) == 3 else model.require_grid().prefix
    return lens.isel(token=slice(prefix, None))


def removals(subject):
    """Scores without each head, and without the branches of each block; NaN for no such head."""
    model, scores = subject.model, subject.scores_tap
    taps = [tap for tap in model.taps if tap.endswith(("/heads", "/branch"))]
    taps = model.require(taps, "heads and branches that are known, to remove them")
    features = model.features(*taps, scores)
    cells = _removal_edits(features)

    def step(batch):
        edited = list(cells.values())
        _, changed = edits.run_interventions(features, edited, scores, batch, AT_ONCE)
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


def _removal_edits(features):
    """Dict from (block, "head 0" or "block") to the intervention."""
    cells = {}
    for tap, x in features.output.items():
        site, _, end = tap.rpartition("/")
        block = site.partition("/")[0] if site.startswith("block") else site
        if end == "heads":
            for head in range(x.shape[2]):
                cells[block, f"head {head}"] = {tap: edits.head(head, edits.zero)}
        elif end == "branch":
            cells.setdefault((block, "block"), {})[tap] = edits.zero
    return cells


def norms(subject):
    """Norms of skip and branch at each sum."""
    model = subject.model
    return branch_norms(model.features(*model.layers("skips")), subject.images)


def fields(subject):
    """Effective receptive field of each place of the last map, in each stage."""
    taps = subject.maps
    rows, columns = subject.model.shapes[taps[-1]][:2]
    pixels = int(np.prod(subject.images.shape[:3]))
    while rows * columns > MOST_CELLS or rows * columns * pixels > MOST_PIXELS:
        rows, columns = -(-rows // 2), -(-columns // 2)
    return position_attribution(subject.model.features(*taps), subject.images, rows, columns)


def cam(subject):
    """Grad-CAM of each class that is explained, in each stage."""
    scores = subject.scores_tap
    features = subject.model.features(*subject.maps, scores)
    return subject.explain(lambda images, classes: grad_cam(features, images, classes, scores))


MEASURES = {
    "scores": ("the scores of classes", lambda subject: subject.scores),
    "attention": ("the attention of patches", attention),
    "rollout": ("attention rollout", rollout),
    "gradient_attention": ("gradient-weighted attention", relevance),
    "input_gradients": ("input gradients", gradients),
    "similarity": ("the similarity of patches", similarity),
    "components": ("principal components of features", lambda s: principal_components(s.tokens)),
    "logit_lens": ("predictions by layer", lens),
    "patch_lens": ("predictions by patch", patch_lens),
    "removals": ("the effect of removing heads and blocks", removals),
    "token_norms": ("norms of tokens", lambda s: token_norms(s.tokens, s.prefix_tokens)),
    "norms": ("norms of skips and branches", norms),
    "fields": ("receptive fields", fields),
    "grad_cam": ("Grad-CAM", cam),
}

OF_CLASSES = {"gradient_attention", "input_gradients", "logit_lens"}
OF_CLASSES |= {"patch_lens", "removals", "grad_cam"}
FLAT = "The head scores all classes equally, as one that is zero or untrained does"


def collect_results(subject):
    """Results by name that the model has the taps for, and (what, reasons) of those left out."""
    results, left_out, model_name = {}, [], subject.model.name
    for name, (words, measure) in MEASURES.items():
        if name in OF_CLASSES and is_flat(results):
            continue
        try:
            results[name] = measure(subject)
        except Exception as error:
            left_out.append((_title(words), [explain(error, f"{_title(words)} of {model_name}")]))
    if is_flat(results):
        left_out.append(("Evidence for classes", [f"{FLAT}."]))
    return results, left_out


def _title(words: str) -> str:
    """Words as the title of what is not shown."""
    return words[0].upper() + words[1:]


def keep_possible(
    results: dict[str, Any], function: Callable[[str], Any], model_name: str
) -> tuple[dict[str, Any], list[tuple[str, list[str]]]]:
    """What a function returns by name of a result; those that it fails for are removed."""
    values, left_out = {}, []
    for name in list(results):
        title = _title(MEASURES[name][0])
        try:
            values[name] = function(name)
        except Exception as error:
            left_out.append((title, [explain(error, f"{title} of {model_name}")]))
            del results[name]
    return values, left_out


def is_flat(results):
    """Whether the head scores all classes of all images equally."""
    return "scores" in results and not np.ptp(results["scores"].values, axis=1).any()


def principal_components(tokens):
    """Scores of the first three principal components of the tokens of all images, by layer."""
    return {layer: _components(x.astype(np.float64)) for layer, x in tokens.items()}


def _components(x):
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


def token_norms(tokens, prefix):
    """Euclidean norm of every token, and of those without a position, by layer."""
    return {layer: _norms_of(x, prefix.get(layer)) for layer, x in tokens.items()}


def _norms_of(x, prefix):
    facts = {"long_name": "Euclidean norm", "units": "activation"}
    values = {"norm": (("example", "row", "column"), _lengths(x), facts)}
    if prefix is not None and prefix.shape[1]:
        values["prefix_norm"] = (("example", "token"), _lengths(prefix), facts)
    return xr.Dataset(values)


def _lengths(x):
    return np.linalg.norm(x.astype(np.float64), axis=-1)
