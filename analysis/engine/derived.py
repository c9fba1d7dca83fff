"""Features computed from other features, whose forward pass they share."""

import math

import numpy as np
import tensorflow as tf

from vit_tf.names import listed

from .features import taps_of
from .results import model_name
from .tokens import require_grid


class Derived:
    """Features computed from the taps of other features.

    `one_pass` calls the other features once, however many are derived from them.

    Args:
        features: callable from images to `{tap: tensor}`.
        compute: function of that dict to another.
        token_grid: `TokenGrid` of the tokens, or None.
    """

    def __init__(self, features, compute, token_grid):
        self.name = model_name(features)
        self.token_grid = token_grid
        self.features = features
        self.compute = compute

    def __call__(self, images):
        return self.compute(self.features(images))


def choose(features, names):
    """Some of the taps of `features`, in the order of `names`.

    Statistics of different taps of one model can thus share its forward pass.

    Args:
        features: callable from images to `{tap: tensor}`.
        names: names of taps.

    Returns:
        Callable from images to `{tap: tensor}`, with the name and `token_grid` of the features.

    Raises:
        ValueError: when called, for names that the features do not have.
    """
    names = tuple(names)
    grid = getattr(features, "token_grid", None)
    return Derived(features, lambda taps: select(taps, names), grid)


def select(taps, names):
    """The entries of a dict of taps that are named, in the order of the names.

    Raises:
        ValueError: for a name that is not among the taps.
    """
    for name in names:
        if name not in taps:
            raise ValueError(f"Expected a tap {name!r}. Received: {listed(taps)}")
    return {name: taps[name] for name in names}


class Calls:
    """The taps of each features callable for one batch, computed when first asked for."""

    def __init__(self, images):
        self._images = images
        self._made = {}

    def __call__(self, features):
        key = id(features)
        if key not in self._made:
            derived = isinstance(features, Derived)
            self._made[key] = (
                features.compute(self(features.features))
                if derived
                else taps_of(features, self._images)
            )
        return self._made[key]


def match_maps(features, channels, grid=None):
    """Features whose maps have the last stage's rows and columns and about its channels.

    Each map is split into patches that are flattened, so that early layers with few channels are
    not at a disadvantage, then average-pooled (Raghu et al. 2021, appendix A, "linear probes"):

        out[r, c, (i, j, k)] = mean over u, v of map[(r a + u) p + i, (c b + v) p + j, k]

    with i, j < p and the mean over a x b whole patches. Of the sides p that divide the map so, the
    one that brings the number of channels (i, j, k) nearest to `channels`. A map that the grid does
    not divide is an error, not padded: padding would weigh the border differently in every stage.

    Args:
        features: callable from images to `{layer: tensor of shape (example, row, column,
            channel)}`.
        channels: number of channels of the last stage.
        grid: `TokenGrid` of the last stage's map; by default the features' own.

    Returns:
        Callable from images to `{layer: tensor of shape (example, grid.rows, grid.columns, about
        channels)}`.

    Raises:
        ValueError: without a grid; when called, for taps that are not maps, or whose rows and
            columns are no multiples of the grid's.
    """
    grid = require_grid(features, grid)

    def matched(taps):
        for tap, values in taps.items():
            _require_divisible(tap, values.shape, grid)
        return {
            tap: _match_map(values, grid.rows, grid.columns, channels)
            for tap, values in taps.items()
        }

    return Derived(features, matched, grid)


def _match_map(values, rows, columns, channels):
    """One map, patched and pooled: tensor of shape (example, rows, columns, side side depth)."""
    height, width, depth = values.shape[1:]
    side = _patch_side(height // rows, width // columns, depth, channels)
    pooled = (height // rows // side, width // columns // side)
    shape = (-1, rows, pooled[0], side, columns, pooled[1], side, depth)
    mean = tf.reduce_mean(tf.reshape(values, shape), axis=(2, 5))
    patches = tf.transpose(mean, (0, 1, 3, 2, 4, 5))
    return tf.reshape(patches, (-1, rows, columns, side * side * depth))


def _patch_side(height, width, depth, channels):
    """Side of square patches that tile height x width places; of equally near ones the smaller."""
    common = math.gcd(height, width)
    sides = [side for side in range(1, common + 1) if common % side == 0]
    return min(sides, key=lambda side: abs(side * side * depth - channels))


def _require_divisible(tap, shape, grid):
    """Raises a `ValueError` unless the shape is that of a map that the grid divides."""
    if shape.rank != 4 or shape[1] % grid.rows or shape[2] % grid.columns:
        raise ValueError(
            "Expected maps of shape (example, row, column, channel) with rows a multiple of "
            f"{grid.rows} and columns of {grid.columns}. Received: {tap!r} of shape {tuple(shape)}"
        )


PRIME = 2**31 - 1


def gaussian_like(features, seed=0):
    """Features of the shapes of others, filled with Gaussian noise.

    Every value is drawn from a normal distribution of mean 0 and variance 1, independently across
    examples, taps, tokens and channels (Walmer et al. 2023, section B.3). The noise of an image is
    a function of its values and of the seed, so that batches, order and repetition do not matter;
    equal images have equal noise. For attention weights, which are shares, compare with a freshly
    initialised model in its place.

    Args:
        features: callable from images to `{tap: tensor}`, which is traced for the shapes, not run.
        seed: of the noise.

    Returns:
        Callable from images to `{tap: float32 tensor}`, with the `token_grid` of the features.

    Raises:
        ValueError: when called, for a tap whose shape is not known without its example axis.
    """
    return _Noise(features, seed)


class _Noise:
    """The callable of `gaussian_like`."""

    def __init__(self, features, seed):
        self.name = f"{model_name(features)} as noise"
        self.token_grid = getattr(features, "token_grid", None)
        self.features, self._seed = features, seed

    def __call__(self, images):
        images = tf.convert_to_tensor(images)
        shapes = _shapes(self.features, images)
        size = 2 * int(np.prod(images.shape[1:]))
        factors = np.random.default_rng(self._seed).integers(1, PRIME, (size, 2))

        def noise(image):
            key = content_key(image, factors)
            return {
                tap: tf.random.stateless_normal(
                    shape, tf.random.experimental.stateless_fold_in(key, number)
                )
                for number, (tap, shape) in enumerate(shapes.items())
            }

        spec = {tap: tf.TensorSpec(shape, tf.float32) for tap, shape in shapes.items()}
        return tf.map_fn(noise, images, fn_output_signature=spec)


def content_key(image, factors):
    """A hash of an image's values; two images collide in one of 2^62 draws of `factors`.

        key = sum over the 16-bit halves of the values of half * factor, modulo a prime

    Args:
        image: tensor of shape (height, width, channel).
        factors: int array of shape (2 * height * width * channel, 2), from 1 to `PRIME` - 1.

    Returns:
        int64 tensor of shape (2,).
    """
    values = tf.cast(image, tf.float32) + 0.0  # -0 and 0 are equal
    halves = tf.reshape(tf.cast(tf.bitcast(values, tf.uint16), tf.int64), (-1, 1))
    terms = tf.math.floormod(halves * tf.constant(factors, tf.int64), PRIME)
    return tf.math.floormod(tf.reduce_sum(terms, axis=0), PRIME)


def _shapes(features, images):
    """Shapes of the taps without their example axis: dict from tap to tuple."""
    spec = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    traced = tf.function(
        lambda images: taps_of(features, images), input_signature=[spec], autograph=False
    )
    taps = traced.get_concrete_function().structured_outputs
    shapes = {tap: tuple(x.shape[1:]) for tap, x in taps.items()}
    unknown = [tap for tap, shape in shapes.items() if None in shape]
    if unknown:
        raise ValueError(
            f"Expected taps of known shapes, to fill them with noise. Received: {listed(unknown)}"
        )
    return shapes


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
        if hasattr(features, "segments"):
            self.segments, self.taps, self.output = self._segments, features.taps, features.output

    def __call__(self, images):
        return self._features(self.prepared(images))

    def _segments(self):
        """Those of the features, of which the first takes images in [-1, 1]."""
        first, *others = self._features.segments()
        return [first.prepared_by(self.prepared), *others]

    def prepared(self, images):
        """Images in [-1, 1] as the model expects them."""
        images = images[..., ::-1] if self._turned else images
        return images * self._scale + self._shift
