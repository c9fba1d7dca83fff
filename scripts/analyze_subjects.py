"""What is read of a model under analysis: its layers, their shapes and where its tokens lie."""

from dataclasses import replace
from functools import partial

import numpy as np
import reporting
import xarray as xr
from image_values import values_of, variation

import vit_tf
from vit_tf import TokenGrid
from vit_tf.analysis.store import fingerprint, keep, load
from vit_tf.analysis.subjects import Subject, representations, spread
from vit_tf.evaluation import match_classes, top_k_accuracy

MOST_TAPS = 40  # of a model whose layers were not chosen
PROBES = 3  # images to read the shapes of taps on, not one, as an axis that broadcasts has
CONSTANT = 1e-6  # share of the squares that is left around the mean, as for CKA


class Normalised:
    """Features of a model that expects other values than [-1, 1], for images in [-1, 1].

    Args:
        features: callable from images to taps.
        preprocessing: the `Preprocessing` that the model expects.
    """

    def __init__(self, features, preprocessing):
        self.name, self.token_grid = features.name, features.token_grid
        self._features = features
        mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
        self._scale, self._shift = np.float32(0.5 / std), np.float32((0.5 - mean) / std)
        self._turned = preprocessing.channel_order == "bgr"

    def __call__(self, images):
        images = images[..., ::-1] if self._turned else images
        return self._features(images * self._scale + self._shift)


def subject_of(opened, images, options):
    """The `Subject` of an opened model, names of constant layers, and how far the others move.

    Args:
        opened: the `Opened`.
        images: array of a few of the images that are measured.
        options: of the command line: `taps`, `patch_size` and `prefix`.

    Returns:
        The subject, the names of the layers that do not vary between images, and the `variation` of
        the last that does.
    """
    size = images.shape[1:3]
    shapes, constant, moves = chosen_shapes(opened, images, options)
    grid = grid_of(opened, shapes, size, options)
    subject = Subject(
        opened.name,
        "model",
        fingerprint(opened.digest, list(shapes), grid and vars(grid), *special_values(opened)),
        tuple(shapes),
        grid,
        partial(features_of, opened, grid),
        shapes=shapes,
        image_size=size,
        **embeddings_of(opened.model),
    )
    return subject, constant, moves


def special_values(opened):
    """What a result depends on where a model takes other values than [-1, 1]: list of facts."""
    return [] if plain(opened) else [opened.expects[0].to_config()]


def embeddings_of(model):
    """The fields of a `Subject` for the first layer of a model, as far as it has them."""
    names = ("patch_kernel", "position_embedding")
    known = {name: getattr(model, name, None) for name in names}
    return {name: partial(getattr, model, name) for name in names if known[name] is not None}


def baselines_of(opened, subject, seed):
    """The random baselines of an opened model; of a SavedModel noise alone."""

    def fresh():
        copy = replace(opened, model=vit_tf.fresh_copy(opened.model, seed))
        return partial(features_of, copy, subject.grid)

    return reporting.baselines(subject, None if opened.is_saved_model else fresh)


def features_of(opened, grid, *patterns):
    """The taps that fit the patterns, as a callable from images in [-1, 1] that knows the grid."""
    found = opened.features(*patterns)
    found.token_grid = grid
    if not plain(opened):
        return Normalised(found, opened.expects[0])
    found.preprocessing = opened.expects[0]
    return found


def plain(opened):
    """Whether a model takes values in [-1, 1]."""
    wanted, _ = opened.expects
    return {*wanted.mean, *wanted.std} == {0.5} and wanted.channel_order == "rgb"


def chosen_shapes(opened, images, options):
    """The taps to read, as a dict to their shapes without the example axis, and those left out.

    Of a model whose layers have no names of ours, those that hold floating values for each example,
    and do not repeat the layer before: at most 40 of them, unless `--taps` chooses. Left out are
    layers that do not vary between the images, as nothing can be compared with them. Third comes
    the `variation` of the last of the others that is not a
    constant, as the logits of a head of zeros are.
    """
    patterns = options.taps if opened.is_foreign and options.taps else ["*"]
    values = {
        tap: np.asarray(value, np.float32)
        for tap, value in features_of(opened, None, *patterns)(images).items()
        if value.dtype.is_floating and len(value.shape) > 1 and len(value) == len(images)
    }
    constant = [t for t, value in values.items() if opened.is_foreign and is_constant(value)]
    taps = [tap for tap in values if tap not in constant]
    if not taps:
        raise ValueError(
            "Expected layers with floating values that vary between images. "
            f"Received: {opened.source} with none"
        )
    if opened.is_foreign and not options.taps:
        taps = spread(without_repeats({tap: values[tap] for tap in taps}), MOST_TAPS)
    moves = [variation(values[tap]) for tap in taps]
    last = next((share for share in reversed(moves) if share), 0.0)
    return {tap: values[tap].shape[1:] for tap in taps}, constant, last


def is_constant(value):
    """Whether examples differ by no more than rounding, in an array of shape (example, ...)."""
    return variation(value) <= CONSTANT


def without_repeats(values):
    """Names of the layers that differ from the one before, as a dropout does not when it is off.

    Of layers alike it is the outermost, such as `"block_1/mlp"` of `"block_1/mlp/dense_2"`.
    """
    kept = []
    for tap, value in values.items():
        if kept and np.array_equal(values[kept[-1]], value):
            kept[-1] = min(kept[-1], tap, key=lambda name: name.count("/"))
        else:
            kept.append(tap)
    return kept


def grid_of(opened, shapes, size, options):
    """Where the tokens or places of a model lie, or None where that is not known.

    As the model tells; else that of its last maps, or of `--patch-size` for its last tokens.
    """
    own = getattr(opened.model, "token_grid", None)
    held = [shapes[tap] for tap in representations(tuple(shapes))]
    placed = [shape for shape in held if len(shape) in (2, 3) and np.prod(shape[:-1]) > 1]
    if own is not None or not placed:
        return own
    counts = [shape[0] for shape in placed if len(shape) == 2]
    if options.patch_size and counts:
        return _told_grid(opened, counts, size, options)
    last = placed[-1]
    if len(last) == 2:
        return None
    stride = size[0] // last[0]
    tiles = (last[0] * stride, last[1] * stride) == tuple(size)
    return TokenGrid(last[0], last[1], 0, stride) if tiles else None


def _told_grid(opened, counts, size, options):
    """The grid of `--patch-size`, of the last layer that has tokens enough for it.

    Later ones may hold what a pooling made of them: queries, or the values of attention heads.
    """
    grid = TokenGrid.of_patches(size, options.patch_size)
    enough = [count for count in counts if count >= grid.num_spatial]
    count = (enough or counts)[-1]
    prefix = count - grid.num_spatial if options.prefix is None else options.prefix
    if prefix < 0 or prefix + grid.num_spatial != count:
        raise ValueError(
            f"Expected --patch-size and --prefix that give the {count} tokens of {opened.name}. "
            f"Received: {max(prefix, 0)} + {grid.rows} x {grid.columns}"
        )
    return TokenGrid.of_patches(size, options.patch_size, prefix)


def accuracy_of(opened, subject, data, class_names, folder):
    """Share of the test images that a model's own head gets right, kept in a folder of results.

    Returns:
        A float; None for a model whose last layer does not hold a number for each of these classes.
    """
    tap = subject.taps[-1]
    if opened.is_saved_model or len(subject.shapes[tap]) != 1:
        return None
    try:
        match_classes(getattr(opened.model, "class_names", None), *subject.shapes[tap], class_names)
    except ValueError:
        return None
    path = folder / f"accuracy.{subject.slug}.nc"
    key = fingerprint("accuracy", subject.key, data.facts, list(class_names))
    result = load(path, key)
    if result is None:
        head = subject.features(tap)
        share = top_k_accuracy(lambda images: head(images)[tap], data.test, ks=(1,))[1]
        result = keep(xr.DataArray(share, name="accuracy"), path, key, {"model": subject.name})
    return float(result)


def describe(opened, subject):
    """The row of a model in the report's table."""
    grid = subject.grid
    prefix = f"{grid.prefix} + " if grid and grid.prefix else ""
    return {
        "model": opened.name,
        "kind": "SavedModel" if opened.is_saved_model else type(opened.model).__name__,
        "parameters": None if opened.is_saved_model else opened.model.count_params(),
        "layers read": len(subject.taps),
        "tokens or places": f"{prefix}{grid.rows} x {grid.columns}" if grid else "not known",
        "images": values_of(*opened.expects),
        "file": opened.source,
    }
