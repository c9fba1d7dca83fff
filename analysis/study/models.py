"""The models under study, and which of their taps serve which measurement."""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_tf.taps.submodels import block_outputs
from vit_tf.tokens import TokenGrid

MOST_PANELS = 8  # of a model whose blocks are not known, where each layer is a panel of its own

# The parts that models play in a study, in the words for what plays them.
ROLES = {
    "vit": "a ViT with a CLS token",
    "gap": "a ViT with average pooling",
    "resnet": "a ResNet",
    "mixer": "an MLP-Mixer",
    "without": "models trained without the skips of a block",
    "seed": "a model trained with another seed",
    "fraction": "models trained on fractions of the data",
    "before": "a model before fine-tuning",
    "after": "a model after fine-tuning",
    "untrained": "the untrained ViT",
    "noise": "noise instead of the ViT's features",
}
BASELINES = ("untrained", "noise")


class NotApplicable(ValueError):
    """Why a figure does not show a model, as a sentence."""


@dataclass(frozen=True)
class StudyModel:
    """A model under study."""

    name: str  # as figures and tables show it
    role: str  # of `ROLES`; or "model", one that is in every figure that it has the taps for
    key: str  # `fingerprint` of its weights and of the data
    taps: tuple[str, ...]  # in depth order
    grid: TokenGrid | None  # None where it is not known
    features: Callable[..., Any]  # from tap names or patterns to a callable from images to them
    detail: str | int | float | None = None  # the block, seed or fraction that sets it apart
    base: "StudyModel | None" = None  # what it is a variant, a further seed or a baseline of
    accuracy: tuple[float, int] | None = None  # test accuracy in [0, 1], number of test images
    # Which test images are classified correctly, of shape (test image,).
    correct: Any = field(default=None, compare=False, repr=False)
    # Of each tap without the example axis; empty where all taps are as the tap grammar says.
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    image_size: tuple[int, int] | None = None  # (height, width) in pixels, where `shapes` are known
    # Functions of nothing to what `patch_filters` and `position_similarity` take.
    patch_kernel: Callable | None = field(default=None, compare=False)
    position_embedding: Callable | None = field(default=None, compare=False)
    given_role: str | None = None  # in the scorecard, of a "model", where the user specifies it
    # JSON facts that models of other seeds share, as a scorecard keeps them.
    configuration: dict = field(default_factory=dict, compare=False)
    # Attention weights that are no taps but follow from queries and keys; or why there are none.
    computed: tuple[str, ...] = field(default=(), compare=False)
    no_attention: str = field(default="", compare=False)

    def require(self, value: Any, requirement: str) -> Any:
        """The value; where it is empty, a `NotApplicable`: this model has no `requirement`."""
        if not value:
            raise NotApplicable(f"{self.name} has no {requirement}.")
        return value

    def require_grid(self) -> TokenGrid:
        """The grid of its spatial tokens or positions; a `NotApplicable` where it is not known."""
        return self.require(
            self.grid, "grid of spatial tokens or positions that is known and tiles the images"
        )

    def require_grid_layers(self) -> list[str]:
        """The `grid_layers` taps; a `NotApplicable` where there are none."""
        self.require_grid()
        return self.require(
            self.grid_layers, "layers on the grid of its spatial tokens or positions"
        )

    def require_attention(self) -> list[str]:
        """Its attention weights over a known grid, taps or computed; a `NotApplicable` for none."""
        hidden = self.has_tokens and not self.has_sums
        within = " among its layers: a layer that has any keeps them to itself" if hidden else ""
        weights = self.weights or list(self.computed)
        self.require(weights, self.no_attention or f"attention weights{within}")
        self.require_grid()
        return weights

    @property
    def scorecard_role(self) -> str | None:
        """Its role in the scorecard: that in the study, or what it is; None if unclear."""
        if self.role != "model":
            return self.role
        if self.given_role:
            return self.given_role
        if any("/token_mixing/" in tap for tap in self.taps):
            return "mixer"
        if self.has_attention and self.has_sums and self.grid:
            return "vit" if self.has_cls else "gap"
        return "resnet" if self.has_maps else None

    @property
    def has_maps(self) -> bool:
        """Whether it has maps through its depth, as convolutions make them."""
        maps = sum(map(self.is_map, self.blocks))
        return bool(self.stages) or 2 * maps > len(self.blocks)

    @property
    def slug(self) -> str:
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def weights(self) -> list[str]:
        """The taps that hold attention weights."""
        return [tap for tap in self.taps if tap.endswith("/weights")]

    @property
    def has_attention(self) -> bool:
        """Whether the model has attention weights."""
        return bool(self.weights)

    @property
    def has_cls(self) -> bool:
        """Whether a prefix token comes first, in blocks that are known."""
        return bool(self.has_sums and self.grid and self.grid.prefix)

    @property
    def stages(self) -> list[str]:
        """Names of the stages of a ResNet, whose maps differ in size; empty for other models."""
        sites = dict.fromkeys(tap.split("/")[0] for tap in self.taps)
        if any(re.fullmatch(r"block\d+", site) for site in sites):
            return []  # a ResNet that is the stem of a ViT
        return [site for site in sites if re.fullmatch(r"stage\d+", site)]

    @property
    def has_tokens(self) -> bool:
        """Whether the shapes show sequences of tokens on its grid."""
        return any(len(self.shapes.get(tap, ())) == 2 for tap in self.on_grid(self.blocks))

    @property
    def has_sums(self) -> bool:
        """Whether the taps show where blocks end, as the tap grammar does."""
        return any(re.match(r"(block|stage)\d+/(.+/)?sum$", tap) for tap in self.taps)

    @property
    def grid_layers(self) -> list[str]:
        """The block outputs whose tokens lie on its grid; of a ResNet those of the last stage."""
        if self.stages:
            return [tap for tap in self.blocks if tap.startswith(f"{self.stages[-1]}/")]
        on_grid = self.on_grid(self.blocks)
        return on_grid if self.has_sums else spread(on_grid, MOST_PANELS)

    @property
    def blocks(self) -> list[str]:
        """The taps at the end of each block; where that is not known, all that hold tokens."""
        if self.has_sums:
            return block_outputs(self.taps)
        ranks = {tap: len(shape) for tap, shape in self.shapes.items()}
        return [t for t in representations(self.taps) if ranks.get(t, 2) in (1, 2, 3)]

    def on_grid(self, taps: Iterable[str]) -> list[str]:
        """Those of `taps` with one token for each of the grid's; all if no shapes are known."""
        if not self.shapes or self.stages:  # stages of a ResNet have a grid each
            return list(taps)
        return [tap for tap in taps if self.grid is not None and self._fits(self.shapes[tap])]

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if len(shape) == 3:
            return not self.grid.prefix and shape[:2] == (self.grid.rows, self.grid.columns)
        return len(shape) == 2 and shape[0] == self.grid.num_tokens

    def with_positions(self, taps: Iterable[str]) -> list[str]:
        """Those of `taps` that are maps, in the proportions of the image, or lie on the grid."""
        grid = set(self.on_grid(taps))
        return [tap for tap in taps if tap in grid or self.is_map(tap)]

    def is_map(self, tap: str) -> bool:
        """Whether a tap of known shape is a map in the proportions of the image."""
        shape = self.shapes.get(tap, ())
        if len(shape) != 3 or shape[0] * shape[1] == 1:
            return False
        height, width = self.image_size
        return shape[0] * width == shape[1] * height


def slug(name: str) -> str:
    """A model's name as a part of file names: `"ViT-B/16"` becomes `"vit-b-16"`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def distinct(name: str, taken: Container[str]) -> str:
    """A name whose slug is none of those `taken`: `"vit (2)"` for a second `"vit"`."""
    require_slug(name)
    number, candidate = 1, name
    while slug(candidate) in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def require_slug(name: Any) -> None:
    """Raises a `ValueError` for a name that files cannot be called after."""
    if not isinstance(name, str) or not slug(name):
        raise ValueError(
            f"Expected names of models (--names) with Latin letters or digits. Received: {name!r}"
        )


def require_distinct(names: Iterable[str]) -> None:
    """Raises a `ValueError` for names of models of which results would have the same names."""
    first = {}
    for name in names:
        require_slug(name)
        if slug(name) in first:
            raise ValueError(
                f"Expected names of models that differ in more than case and punctuation, as "
                f"they are used in file names. Received: {first[slug(name)]!r} and {name!r}"
            )
        first[slug(name)] = name


def spread(items: Sequence, most: int) -> list:
    """At most `most` of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def attended(weights: dict[str, tuple], grid: TokenGrid | None) -> tuple[list[str], str]:
    """Names of attention weights over a grid of tokens; otherwise words for `StudyModel.require`.

    `weights` is a dict from name to shape (head, query, key); all fit an unknown grid.
    """
    over = grid and (grid.num_tokens,) * 2
    fit = [name for name, shape in weights.items() if not grid or shape[1:] == over]
    if not fit:
        name, (_, queries, keys) = next(iter(weights.items()))
        counts = f"{name} has {queries} queries and {keys} keys"
        return [], f"attention over the {grid.num_tokens} tokens of its grid: {counts}"
    if len({weights[name][0] for name in fit}) > 1:
        return [], "equally many heads in all its layers of attention"
    return fit, ""


def without_repeats(values: dict[str, np.ndarray]) -> list[str]:
    """Names of the layers that differ from the one before, as a dropout does not when it is off."""
    names = []
    for tap, value in values.items():
        if names and np.array_equal(values[names[-1]], value):
            names[-1] = min(names[-1], tap, key=lambda name: name.count("/"))
        else:
            names.append(tap)
    return names


def representations(taps: Iterable[str]) -> list[str]:
    """The taps that hold representations of images, without skips: each is the sum before it."""
    return [t for t in taps if t.rpartition("/")[2] not in ("weights", "heads", "skip", "logits")]


def describe_model(loaded: Any, model: StudyModel) -> dict[str, Any]:
    """The row of a loaded model in the report's table."""
    grid = model.grid
    prefix = f"{grid.prefix} + " if grid and grid.prefix else ""
    kind = type(loaded.model).__name__ if loaded.is_keras else "features"
    return {
        "model": loaded.name,
        "kind": "SavedModel" if kind == "features" and loaded.source else kind,
        "parameters": loaded.model.count_params() if loaded.is_keras else None,
        "layers read": len(model.taps),
        "tokens or positions": f"{prefix}{grid.rows} x {grid.columns}" if grid else "not known",
    }
