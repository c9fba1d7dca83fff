"""The models under study, and which of their taps serve which measurement."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_tf.taps.submodels import block_outputs

MOST_PANELS = 8  # of a model whose blocks are not known, where each layer is a panel of its own


# The parts that models play in a study, in the words for what plays them.
ROLES = {
    "vit": "a ViT with a CLS token",
    "gap": "a ViT with average pooling",
    "resnet": "a ResNet",
    "mixer": "an MLP-Mixer",
    "without": "models trained without the skips of a block",
    "seed": "a second run with another seed",
    "fraction": "models trained on fractions of the data",
    "before": "a model before fine-tuning",
    "after": "a model after fine-tuning",
    "fresh": "the untrained ViT",
    "noise": "noise instead of the ViT's features",
}
BASELINES = ("fresh", "noise")


class Lacking(ValueError):
    """Why a figure does not show a model, as a sentence."""


@dataclass(frozen=True)
class StudyModel:
    """A model under study.

    Attributes:
        name: as figures and tables show it.
        role: its part in the figures: a key of `ROLES`; or `"model"`, one that is in every figure
            that it has the taps for.
        key: `fingerprint` of its weights and of the data.
        taps: names of all its taps, in depth order.
        grid: its `TokenGrid`, or None where it is not known.
        features: function from tap names or patterns to a callable from images to those taps.
        detail: what sets it apart from others of its role: the block, the seed, the fraction.
        of: the model that it is a variant, a further training or a baseline of.
        accuracy: pair of test accuracy in [0, 1] and number of test images, where known.
        correct: truth values of shape (test image,), which are classified correctly, where known.
        shapes: dict from tap to its shape without the example axis; empty where all taps are as
            the tap grammar says.
        image_size: (height, width) of the images in pixels, where `shapes` are known.
        patch_kernel: function of nothing to the kernel of its patch embedding, as `patch_filters`
            takes it; None where it has none.
        position_embedding: the same of its position embedding, as `position_similarity` takes it.
        told: the part of `ROLES` that a `"model"` plays in the scorecard, where the user says.
        configuration: JSON facts that models of other seeds share, as a scorecard keeps them.
        computed: names of attention weights that are no taps but follow from queries and keys.
        unattended: why a model with attention has none of them over its grid, as `lacks` takes it.
    """

    name: str
    role: str
    key: str
    taps: tuple[str, ...]
    grid: Any
    features: Callable[..., Any]
    detail: str | int | float | None = None
    of: "StudyModel | None" = None
    accuracy: tuple[float, int] | None = None
    correct: Any = field(default=None, compare=False, repr=False)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    image_size: tuple[int, int] | None = None
    patch_kernel: Callable | None = field(default=None, compare=False)
    position_embedding: Callable | None = field(default=None, compare=False)
    told: str | None = None
    configuration: dict = field(default_factory=dict, compare=False)
    computed: tuple[str, ...] = field(default=(), compare=False)
    unattended: str = field(default="", compare=False)

    def lacks(self, what):
        """Raises a `Lacking`: a figure does not show this model, as it has no `what`."""
        raise Lacking(f"{self.name} has no {what}.")

    def require_grid(self):
        """The grid of its spatial tokens or positions; a `Lacking` where it is not known."""
        return self.grid or self.lacks(
            "grid of spatial tokens or positions that is known and tiles the images"
        )

    def require_placed(self):
        """The `placed` taps; a `Lacking` where there are none."""
        self.require_grid()
        return self.placed or self.lacks("layers on the grid of its spatial tokens or positions")

    def require_attention(self):
        """The names of its attention weights, taps or computed; a `Lacking` where there are none.

        The grid of its tokens is required too.
        """
        hidden = self.has_tokens and not self.has_sums
        within = " among its layers: a layer that has any keeps them to itself" if hidden else ""
        weights = self.weights or list(self.computed)
        weights = weights or self.lacks(self.unattended or f"attention weights{within}")
        self.require_grid()
        return weights

    @property
    def part(self):
        """The part that it plays in the scorecard: its role, or what it is; None if unclear."""
        if self.role != "model":
            return self.role
        if self.told:
            return self.told
        if any("/token_mixing/" in tap for tap in self.taps):
            return "mixer"
        if self.has_attention and self.has_sums and self.grid:
            return "vit" if self.has_cls else "gap"
        return "resnet" if self.has_maps else None

    @property
    def has_maps(self):
        """Whether it has maps through its depth, as convolutions make them."""
        maps = sum(map(self.is_map, self.blocks))
        return bool(self.stages) or 2 * maps > len(self.blocks)

    @property
    def slug(self):
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def weights(self):
        """The taps that hold attention weights."""
        return [tap for tap in self.taps if tap.endswith("/weights")]

    @property
    def has_attention(self):
        """Whether the model has attention weights."""
        return bool(self.weights)

    @property
    def has_cls(self):
        """Whether a prefix token comes first, in blocks that are known."""
        return bool(self.has_sums and self.grid and self.grid.prefix)

    @property
    def stages(self):
        """Names of the stages of a ResNet, whose maps differ in size; empty for other models."""
        sites = dict.fromkeys(tap.split("/")[0] for tap in self.taps)
        if any(re.fullmatch(r"block\d+", site) for site in sites):
            return []  # a ResNet that is the stem of a ViT
        return [site for site in sites if re.fullmatch(r"stage\d+", site)]

    @property
    def has_tokens(self):
        """Whether the shapes show sequences of tokens on its grid."""
        return any(len(self.shapes.get(tap, ())) == 2 for tap in self.on_grid(self.blocks))

    @property
    def has_sums(self):
        """Whether the taps show where blocks end, as the tap grammar does."""
        return any(re.match(r"(block|stage)\d+/(.+/)?sum$", tap) for tap in self.taps)

    @property
    def placed(self):
        """The block outputs whose tokens lie on its grid; of a ResNet those of the last stage."""
        if self.stages:
            return [tap for tap in self.blocks if tap.startswith(f"{self.stages[-1]}/")]
        found = self.on_grid(self.blocks)
        return found if self.has_sums else spread(found, MOST_PANELS)

    @property
    def blocks(self):
        """The taps at the end of each block; where that is not known, all that hold tokens."""
        if self.has_sums:
            return block_outputs(self.taps)
        ranks = {tap: len(shape) for tap, shape in self.shapes.items()}
        return [t for t in representations(self.taps) if ranks.get(t, 2) in (1, 2, 3)]

    def on_grid(self, taps):
        """Those of `taps` that have one token for each of the grid's; all if no shapes are known.

        A ResNet's stages have a grid each: all of their taps have their places.
        """
        if not self.shapes or self.stages:
            return list(taps)
        return [tap for tap in taps if self.grid is not None and self._fits(self.shapes[tap])]

    def _fits(self, shape):
        if len(shape) == 3:
            return not self.grid.prefix and shape[:2] == (self.grid.rows, self.grid.columns)
        return len(shape) == 2 and shape[0] == self.grid.num_tokens

    def with_places(self, taps):
        """Those of `taps` that are maps, in the proportions of the image, or lie on the grid."""
        grid = set(self.on_grid(taps))
        return [tap for tap in taps if tap in grid or self.is_map(tap)]

    def is_map(self, tap):
        """Whether a tap of known shape is a map in the proportions of the image."""
        shape = self.shapes.get(tap, ())
        if len(shape) != 3 or shape[0] * shape[1] == 1:
            return False
        height, width = self.image_size
        return shape[0] * width == shape[1] * height


def slug(name):
    """A model's name as a part of file names: `"ViT-B/16"` becomes `"vit-b-16"`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def distinct(name, taken):
    """A name whose slug is none of those `taken`: `"vit (2)"` for a second `"vit"`."""
    require_slug(name)
    number, found = 1, name
    while slug(found) in taken:
        number += 1
        found = f"{name} ({number})"
    return found


def require_slug(name):
    """Raises a `ValueError` for a name that files cannot be called after."""
    if not isinstance(name, str) or not slug(name):
        raise ValueError(
            f"Expected names of models (--names) with Latin letters or digits. Received: {name!r}"
        )


def require_distinct(names):
    """Raises a `ValueError` for names of models of which results would have the same names."""
    first = {}
    for name in names:
        require_slug(name)
        if slug(name) in first:
            raise ValueError(
                "Expected names of models that differ in more than case and punctuation, as files "
                f"are called after them. Received: {first[slug(name)]!r} and {name!r}"
            )
        first[slug(name)] = name


def spread(items, most):
    """At most `most` of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def attended(weights, grid):
    """Those of attention weights that are over a grid of tokens, and otherwise why there are none.

    Args:
        weights: dict from name to shape (head, query, key).
        grid: the `TokenGrid`; None, where it is not known, leaves out none.

    Returns:
        A list of names, and words for `StudyModel.lacks`, of which one is empty.
    """
    over = grid and (grid.num_tokens,) * 2
    fit = [name for name, shape in weights.items() if not grid or shape[1:] == over]
    if not fit:
        name, (_, queries, keys) = next(iter(weights.items()))
        told = f"{name} has {queries} queries and {keys} keys"
        return [], f"attention over the {grid.num_tokens} tokens of its grid: {told}"
    if len({weights[name][0] for name in fit}) > 1:
        return [], "equally many heads in all its layers of attention"
    return fit, ""


def without_repeats(values):
    """Names of the layers that differ from the one before, as a dropout does not when it is off.

    Of equal layers the outermost is kept, such as `"block_1/mlp"` of `"block_1/mlp/dense_2"`.
    """
    kept = []
    for tap, value in values.items():
        if kept and np.array_equal(values[kept[-1]], value):
            kept[-1] = min(kept[-1], tap, key=lambda name: name.count("/"))
        else:
            kept.append(tap)
    return kept


def representations(taps):
    """The taps that hold representations of images: no attention weights, heads or logits.

    The skips are left out too: each is the sum of the site before it.
    """
    return [t for t in taps if t.rpartition("/")[2] not in ("weights", "heads", "skip", "logits")]


def describe_model(opened, model):
    """The row of a model in the report's table."""
    grid = model.grid
    prefix = f"{grid.prefix} + " if grid and grid.prefix else ""
    kind = type(opened.model).__name__ if opened.is_keras else "features"
    return {
        "model": opened.name,
        "kind": "SavedModel" if kind == "features" and opened.source else kind,
        "parameters": opened.model.count_params() if opened.is_keras else None,
        "layers read": len(model.taps),
        "tokens or positions": f"{prefix}{grid.rows} x {grid.columns}" if grid else "not known",
    }
