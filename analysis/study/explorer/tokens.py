"""What single patches of an image hold, and what its prediction loses without a head or a block."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import tensorflow as tf
import xarray as xr

from vit_tf import edits
from vit_tf.taps.editing import run_interventions

from ...engine.stream import collect

COMPONENTS = 3  # red, green and blue
AT_ONCE = 64  # runs with an intervention that share a batch


def principal_components(tokens):
    """Scores of the first three principal components of the tokens of all images.

        scores = (x - mean) V

    with `V` the eigenvectors of the covariance of the tokens of a layer, the largest eigenvalues
    first, each with the sign that makes its scores skewed to the right.

    Args:
        tokens: dict from layer to array of shape (example, row, column, channel).

    Returns:
        Dict from layer to DataArray of shape (example, row, column, component), with the share of
        the variance of each as the coordinate `explained`.
    """
    return {layer: _components(x.astype(np.float64)) for layer, x in tokens.items()}


def _components(x):
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
    """Euclidean norm of every token.

    Args:
        tokens: as for `principal_components`.
        prefix: dict from layer to array of shape (example, token, channel), of the tokens without
            a position; empty where there are none.

    Returns:
        Dict from layer to Dataset with `norm` of shape (example, row, column) and, where there is
        a prefix, `prefix_norm` of shape (example, token).
    """
    return {layer: _norms_of(x, prefix.get(layer)) for layer, x in tokens.items()}


def _norms_of(x, prefix):
    facts = {"long_name": "Euclidean norm", "units": "activation"}
    values = {"norm": (("example", "row", "column"), _lengths(x), facts)}
    if prefix is not None and prefix.shape[1]:
        values["prefix_norm"] = (("example", "token"), _lengths(prefix), facts)
    return xr.Dataset(values)


def _lengths(x):
    return np.linalg.norm(x.astype(np.float64), axis=-1)


@dataclass(frozen=True)
class Removals:
    """Scores of images without each head, and without the branches of each block."""

    features: object
    scores: str

    def cells(self):
        """Dict from (block, "head 0" or "block") to the intervention."""
        cells = {}
        for tap, x in self.features.output.items():
            site, _, end = tap.rpartition("/")
            block = site.partition("/")[0] if site.startswith("block") else site
            if end == "heads":
                for head in range(x.shape[2]):
                    cells[block, f"head {head}"] = {tap: edits.head(head, edits.zero)}
            elif end == "branch":
                cells.setdefault((block, "block"), {})[tap] = edits.zero
        return cells

    def __call__(self, images):
        """DataArray of scores (example, block, removed, class); NaN where there is no such head."""
        cells = self.cells()

        def step(batch):
            _, changed = run_interventions(
                self.features, list(cells.values()), self.scores, batch, AT_ONCE
            )
            return tf.transpose(tf.cast(changed, tf.float32), (1, 0, 2))

        rows = collect(step, images, checked=(self.features,))
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
