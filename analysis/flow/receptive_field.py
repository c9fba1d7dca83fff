"""Effective receptive fields: which pixels change the activations at a position of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps, layers_of_examples
from vit_tf.features.layers import Detail
from vit_tf.features.noise import PRIME, draw_for_images
from vit_tf.features.preprocessed import to_own_units
from vit_tf.features.tokens import as_grid

from ..engine.class_scores import require_float_input
from ..engine.measurements import measurement
from ..engine.pooling import PartialGrid, as_tokens, grid_of
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import array_of, facts_of, provenance, stack_layers
from ..engine.stream import Statistic, Totals, evaluate, first_batch, row_statistic
from ..engine.traces import reusable

UNITS = "activation per unit of the image"
PIXELS_AT_ONCE = 2**18  # of copies of an image that share a batch
ONE_BY_ONE = {"parallel_iterations": 1, "fn_output_signature": tf.float32}


# From a tap and its value to the activations (example, channel) that are differentiated.
Target: TypeAlias = Callable[[str, tf.Tensor], tf.Tensor]


@measurement()
def receptive_field(
    model: ModelLike,
    images: ImagesLike,
    channels: str | int = "sum",
    grid: PartialGrid = None,
    seed: int = 0,
    token: str = "centre",
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Mean absolute gradient of the centre of each layer with respect to the image.

        field(row, column) = mean over examples of sum over image channels of
                             |d layer[centre] / d image[row, column]|

    The result is the effective receptive field (Luo et al. 2017; Raghu et al. 2021, section 5,
    figures 6 and C.1 to C.4). The centre is the token or position at `(rows // 2, columns // 2)`. A
    layer of shape (example, channel) has no positions, so the whole vector is differentiated. The
    CLS token has no position on the grid and is never the centre; `token="cls"` returns its
    receptive field.

    Args:
        model: a model, or a callable that maps images to a dict of layers of shape (example,
            token, channel), (example, row, column, channel) or (example, channel).
        images: as in `vit_tf.analysis`.
        channels: how the channels of the layer are combined. `"sum"` is the gradient of the sum
            over channels, which is fast. `"all"` is the mean of the absolute gradients of all
            channels, as in the paper. An integer n is the mean of the absolute gradients of n
            channels, sampled for each image separately.
        grid: `TokenGrid` of layers of shape (example, token, channel), or a pair (rows, columns);
            by default the grid of the model.
        seed: seed of the sampled channels.
        token: `"centre"` for the centre, or `"cls"` for the first prefix token. With `"cls"`, use
            only layers in which this token depends on the image, that is, layers from the first
            attention on.

    Returns:
        DataArray of shape (layer, row, column), with one value for each pixel, in units of the
        activation per unit of pixel value.

        * `size`, a coordinate of shape (layer,): the standard deviation of pixel position, weighted
          by the field and divided by its value for a uniform field. It is 1 if all pixels have
          equal influence, and NaN for a field of zeros.
        * `centre_share`, a coordinate of shape (layer,): the share of the centre patch in the sum
          of the field; NaN for a model without a known grid.
        * `leave_one_out`, an attribute if there are several batches: `size` and `centre_share`
          without each batch in turn, as a flat array of shape (batch, 2, layer). It allows paired
          comparisons of models that are measured on the same batches.

    Raises:
        ValueError: if `channels` or `token` is unknown, if `token` is `"cls"` and the grid has no
            prefix tokens, or if the grid of a layer of tokens is unknown.
        ValueError: if a layer does not depend on the image, or if gradients are not finite; the
            message names the layer.

    Examples:
        >>> field = analysis.receptive_field(vit, images)
        >>> field.dims
        ('layer', 'row', 'column')
        >>> field.shape[1:]
        (32, 32)
        >>> ax = analysis.plot(field)

    See also:
        `plots.plot_receptive_field`, `position_attribution`, `input_gradients`; page
        measurements/flow/receptive-field.md.
    """
    features, images = prepare(model, images, layers=layers, detail=detail)
    is_count = isinstance(channels, int) and not isinstance(channels, bool) and channels >= 1
    if channels not in ("sum", "all") and not is_count:
        raise ValueError(
            "Expected channels to be 'sum', 'all' or a number of channels to sample. "
            f"Received: channels={channels!r}"
        )
    if token not in ("centre", "cls"):
        raise ValueError(f"Expected token to be 'centre' or 'cls'. Received: token={token!r}")
    # One pass sums the absolute gradients of all layers with respect to the images.
    grid = grid_of(features, grid)
    patch = features.facts.grid.stride if features.facts.grid else 0
    sums = evaluate(
        _field_statistic(features, channels, grid, seed, token, patch),
        images,
        description="receptive fields",
        checked=(features,),
    )
    names, summed = stack_layers("receptive fields", sums["field"])
    _require_gradients(
        features, images, partial(_select_centre, grid=grid, token=token), sums["field"]
    )
    # Two numbers of each field, also without each batch in turn.
    batches = np.stack(list(sums["rows"].values()), axis=1).astype(np.float64)
    total = batches.sum(axis=0)
    size, centre_share = _field_numbers(total, *summed.shape[1:])
    facts = facts_of(
        features,
        sums,
        "mean absolute gradient, summed over image channels",
        channels=channels,
        seed=seed,
    )
    if len(batches) > 1:
        rest = _field_numbers(total - batches, *summed.shape[1:])
        facts["leave_one_out"] = np.stack(rest, axis=1).ravel()
    place = "centre" if token == "centre" else "class token"
    return array_of(
        "receptive_field",
        summed / sums["examples"],
        ("layer", "row", "column"),
        (f"effective receptive field of the {place}", UNITS),
        facts,
        layer=names,
        size=("layer", size),
        centre_share=("layer", centre_share),
    )


@reusable
def _field_statistic(
    features: Features, channels: str | int, grid: PartialGrid, seed: int, token: str, patch: int
) -> Statistic[Totals]:
    """`Statistic` over images with the sum of the fields (row, column) of each layer.

    Its rows are the `_field_sums` of each batch.
    """

    def step(batch: tf.Tensor) -> dict[str, Any]:
        own, batch, levels = to_own_units(features, tf.cast(batch, tf.float32))
        pieces = run_pieces(own, batch, _select_centre(batch, grid, token))
        fields = absolute_gradients(pieces, channels, seed, levels)
        layers = [tap for tap in (features.facts.layers or fields) if tap in fields]
        return {
            "field": {tap: fields[tap] for tap in layers},
            "rows": {tap: _field_sums(fields[tap], patch)[None] for tap in layers},
            "examples": tf.shape(batch)[0],
            "batches": 1,
        }

    return Statistic(step, lambda totals: totals)


def _field_sums(field: tf.Tensor, patch: int) -> tf.Tensor:
    """The sums of the rows, of the columns and of the centre patch of a field (row, column).

    The sum of the centre patch is NaN if the size of a patch is not known, which is then 0.
    """
    if patch:
        row, column = (size // patch // 2 * patch for size in field.shape)
        centre = tf.reduce_sum(field[row : row + patch, column : column + patch])
    else:
        centre = tf.constant(np.nan, field.dtype)
    return tf.concat([tf.reduce_sum(field, 1), tf.reduce_sum(field, 0), centre[None]], axis=0)


def _select_centre(images: tf.Tensor, grid: PartialGrid, token: str) -> Target:
    """The function of a layer of images to its activations at the centre, or those of CLS."""

    def target(tap: str, values: tf.Tensor) -> tf.Tensor:
        rank, tokens = values.shape.rank, as_tokens(tap, values)
        if rank == 2:
            return tokens[:, 0]
        if rank == 4:
            rows, columns = values.shape[1:3]
            return tokens[:, (rows // 2) * columns + columns // 2]
        token_grid = grid and as_grid(grid, tokens.shape[1], images.shape[1:3])
        if token_grid is None or tokens.shape[1] != token_grid.num_tokens:
            raise ValueError(
                f"Expected a TokenGrid of the {tokens.shape[1]} tokens of {tap!r}. "
                f"Received: grid={token_grid}"
            )
        if token == "centre":
            return tokens[:, token_grid.center]
        if not token_grid.prefix:
            raise ValueError(
                f"Expected a grid with prefix tokens, for token='cls'. Received: {token_grid}"
            )
        return tokens[:, 0]

    return target


def _field_numbers(sums: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Size and centre share of fields from their `_field_sums` (..., number)."""
    row_sums, column_sums, centre = np.split(sums, [height, height + width], axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):  # of fields of zeros
        return field_size(row_sums, column_sums), centre[..., 0] / row_sums.sum(axis=-1)


def field_size(row_sums: np.ndarray, column_sums: np.ndarray) -> np.ndarray:
    """Standard deviation of position in fields, relative to uniform ones, from sums (..., pixel).

    They are summed over the columns of each row, and over the rows of each column.
    """
    variance, uniform = 0.0, 0.0
    for margin in (row_sums, column_sums):
        weights, pixels = margin / margin.sum(axis=-1, keepdims=True), np.arange(margin.shape[-1])
        offset = pixels - (weights @ pixels)[..., None]
        variance = variance + (weights * offset**2).sum(axis=-1)
        uniform += pixels.var()
    return np.sqrt(variance / uniform)


def select_fields(fields: xr.DataArray, layers: Sequence[str]) -> xr.DataArray:
    """The fields of some layers, with what their attribute `leave_one_out` has of these layers."""
    selected = fields.sel(layer=list(layers))
    if "leave_one_out" not in fields.attrs:
        return selected
    at = fields.get_index("layer").get_indexer(list(layers))
    rest = np.reshape(fields.attrs["leave_one_out"], (-1, 2, fields.sizes["layer"]))
    return selected.assign_attrs(leave_one_out=rest[..., at].ravel())


@measurement("maps")
def position_attribution(
    model: ModelLike,
    images: ImagesLike,
    rows: int,
    columns: int,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Absolute gradient of each position of every feature map with respect to the pixels.

        field(row, column) = sum over image channels of |d sum_k A_k(p) / d x(row, column)|

    A_k is channel k of a feature map, and x is the image. The image is divided into a grid of
    cells, and p is the position of the map under a cell (Luo et al. 2017,
    https://arxiv.org/abs/1701.04128, section 3). If the map has more positions than there are
    cells, p is the position under the middle of the cell. `receptive_field` with `channels="sum"`
    is the same quantity for the centre of the map, averaged over examples.

    Args:
        model: a model, or a callable that maps images to a dict of feature maps of shape (example,
            row, column, channel).
        images: as in `vit_tf.analysis`.
        rows, columns: number of rows and columns of cells, for example those of the last map.

    Returns:
        DataArray of shape (example, layer, place, row, column). The dim `place` lists the cells row
        by row.

    Raises:
        ValueError: if the grid has no cells, if a layer is not a feature map, if TensorFlow finds
            that a layer does not depend on the image, or if gradients are not finite.

    Examples:
        >>> fields = analysis.position_attribution(bit, images[:2], rows=2, columns=2)
        >>> fields.dims
        ('example', 'layer', 'place', 'row', 'column')

    See also:
        `plots.plot_position_attribution`, `receptive_field`; page guides/one-image.md.
    """
    features, images = prepare(
        model, images, kind="maps", layers=layers, detail=detail, keep_order=True
    )
    if not (rows >= 1 and columns >= 1):
        raise ValueError(
            f"Expected rows and columns to be at least 1. Received: {rows} x {columns}"
        )
    shapes = features.facts.shapes
    for layer in features.facts.layers:  # an error in `map_fn` would stay in TensorFlow's state
        if layer in shapes:
            _require_map(layer, tf.TensorShape([None, *shapes[layer]]))
    by_layer = evaluate(
        _attribution_statistic(features, rows, columns),
        images,
        description="receptive fields",
        checked=(features,),
    )
    names, fields = stack_layers("receptive fields", by_layer, axis=1)
    _require_gradients(
        features,
        images,
        lambda batch: _select_cells((rows, columns), tf.zeros(tf.shape(batch)[:1], tf.int32)),
        by_layer,
    )
    return array_of(
        "position_attribution",
        fields,
        ("example", "layer", "place", "row", "column"),
        ("effective receptive field", UNITS),
        provenance(
            features,
            len(fields),
            1,
            estimator="absolute gradient of the sum of channels, summed over image channels",
            rows=rows,
            columns=columns,
        ),
        layer=names,
    )


@reusable
def _attribution_statistic(
    features: Features, rows: int, columns: int
) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the fields (example, cell, row, column) of each layer."""
    count = rows * columns

    def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        own, batch, _ = to_own_units(features, tf.cast(batch, tf.float32))
        layers: list[str] = []  # as the inner loop finds them
        height, width = batch.shape[1:3]
        together = min(count, max(1, PIXELS_AT_ONCE // (height * width)))
        cells = tf.range(-(-count // together) * together) % count  # the last chunk is filled up
        chunks = tf.reshape(cells, (-1, together))

        def fields_of_cells(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            image, cells = pair
            repeated = tf.repeat(image[None], together, axis=0)
            pieces = run_pieces(own, repeated, _select_cells((rows, columns), cells))
            ones = {tap: 1.0 for piece in pieces for tap in piece.targets}
            passed = propagated(pieces)
            names = names_of(passed)
            stack = _weighted_gradients(pieces, passed, ones, None, _sum_channels)
            layers[:] = [tap for tap in (features.facts.layers or names) if tap in names]
            return tf.gather(stack, [names.index(tap) for tap in layers])

        def fields_of_image(image: tf.Tensor) -> tf.Tensor:
            images = tf.repeat(image[None], tf.shape(chunks)[0], axis=0)
            fields = tf.map_fn(fields_of_cells, (images, chunks), **ONE_BY_ONE)
            fields = tf.transpose(fields, (1, 0, 2, 3, 4))  # (layer, chunk, cell, row, column)
            return tf.reshape(fields, (len(layers), -1, height, width))[:, :count]

        fields = tf.map_fn(fields_of_image, batch, **ONE_BY_ONE)
        return dict(zip(layers, tf.unstack(fields, len(layers), axis=1), strict=True))

    return row_statistic(step)


def _require_map(tap: str, shape: tf.TensorShape) -> None:
    if len(shape) != 4:
        raise ValueError(
            "Expected maps of shape (example, row, column, channel). "
            f"Received: {tap!r} of shape {tuple(shape)}"
        )


def _select_cells(grid: tuple[int, int], cells: tf.Tensor) -> Target:
    """The function of maps to their activations under the middle of a cell of `grid` each."""

    def target(tap: str, maps: tf.Tensor) -> tf.Tensor:
        _require_map(tap, maps.shape)
        ends = zip((cells // grid[1], cells % grid[1]), maps.shape[1:3], grid, strict=True)
        at = [(2 * cell + 1) * length // (2 * cuts) for cell, length, cuts in ends]
        return tf.gather_nd(maps, tf.stack(at, axis=1), batch_dims=1)

    return target


def _require_gradients(
    features: Features,
    images: ImagesLike,
    target_of: Callable[[tf.Tensor], Target],
    fields: Mapping[str, np.ndarray],
) -> None:
    """Raises a `ValueError` for a layer that has zero fields since it has no gradient.

    A pass does not find these layers, as it adds up the gradients of several.
    """
    unmoved = [layer for layer, field in fields.items() if not field.any()]

    def step(batch: tf.Tensor) -> None:
        own, batch, _ = to_own_units(features, tf.cast(batch, tf.float32))
        for piece in run_pieces(own, batch, target_of(batch), separate=True):
            for tap in piece.targets.keys() & unmoved:
                target = piece.targets[tap]
                piece.gradient([target], [tf.ones_like(target)], tap)

    if unmoved:
        tf.function(step, autograph=False).get_concrete_function(first_batch(images))


@dataclass(frozen=True)
class Piece:
    """A segment of a model, run on the output of the one before, and the tape of its operations."""

    tape: tf.GradientTape
    source: tf.Tensor
    end: tf.Tensor | None
    targets: dict[str, tf.Tensor]  # by tap, tensors (example, channel) that are differentiated
    at_end: tuple[str, ...]  # the taps that are its output
    sums: dict[str, tuple[str, str]]  # as `_find_sums` returns them

    @property
    def taps(self) -> list[str]:
        """All its taps, those that are its output last."""
        return [*(tap for tap in self.targets if tap not in self.at_end), *self.at_end]

    def gradient(
        self, targets: Sequence[tf.Tensor], upstreams: Sequence[tf.Tensor], tap: str
    ) -> tf.Tensor:
        """Float32 gradient of targets, weighted by `upstreams`, with respect to the source."""
        # A layer of mixed precision has targets of its own dtype, and their weights are float32.
        weights = [tf.cast(x, target.dtype) for x, target in zip(upstreams, targets, strict=True)]
        gradient = self.tape.gradient(list(targets), self.source, output_gradients=weights)
        if gradient is None:
            raise ValueError(
                f"{tap!r} has no gradient with respect to the images. A function must compute "
                "its layers with TensorFlow, not with NumPy or PyTorch."
            )
        return tf.cast(gradient, tf.float32)


def run_pieces(
    features: Features, images: tf.Tensor, target: Target, separate: bool = False
) -> list[Piece]:
    """The pieces of a pass; `target` is a function of a tap and its value to (example, channel).

    Except for the last one, the gradient of a piece can be taken only once in a graph, unless the
    gradients are `separate`.
    """
    features.require_shape(images.shape)
    require_float_input(features)
    segments = features.segments()
    pieces, source, before = [], images, {}
    for segment in segments:
        is_last = segment is segments[-1]
        # A persistent tape also differentiates the intermediates of the functions that compute
        # norms, for derivatives of higher order, which takes half of the time of a ResNet.
        is_persistent = is_last or separate or tf.executing_eagerly()
        with tf.GradientTape(is_persistent, watch_accessed_variables=False) as tape:
            tape.watch(source)
            taps, end = segment(source)
            taps = layers_of_examples(taps, images, features.name)
            targets = {tap: target(tap, value) for tap, value in taps.items()}
        at_end = tuple(tap for tap, value in taps.items() if value is end)
        sums = _find_sums(taps, before)
        pieces.append(Piece(tape, source, end, targets, at_end, sums))
        source = cast(tf.Tensor, end)  # which only the last piece lacks
        before = {tap: taps[tap] for tap in at_end}
    return pieces


def absolute_gradients(
    pieces: list[Piece], channels: str | int, seed: int, levels: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Mean over channels of absolute gradients, summed over examples, by tap: (row, column).

    Sampled channels follow from the levels of the images.
    """
    rows = propagated(pieces)
    widths = {tap: t.shape[1] for piece in pieces for tap, t in piece.targets.items()}
    of_width = _weights(levels, {widths[row.tap] for row in rows}, channels, seed)
    weights = {row.tap: of_width[widths[row.tap]] for row in rows}
    # Layers of fewer channels take part in fewer rounds of the loop.
    counts = np.array([rows_of_tap.shape[0] for rows_of_tap in weights.values()])
    rounds = int(counts.max())
    padded = {
        tap: tf.pad(w, ((0, rounds - count), (0, 0), (0, 0)))
        for (tap, w), count in zip(weights.items(), counts, strict=True)
    }
    needed = tf.constant(np.arange(rounds)[:, None] < counts)
    names = names_of(rows)

    def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        weights = {tap: w[index] for tap, w in padded.items()}
        some = None if counts.min() == rounds else needed[index]
        fields = _weighted_gradients(
            pieces, rows, weights, some, lambda x: tf.reduce_sum(_sum_channels(x), axis=0)
        )
        return index + 1, total + fields

    images = pieces[0].source
    shape = tf.TensorShape([len(names), *images.shape[1:3]])
    start = tf.zeros(tf.concat([[len(names)], tf.shape(images)[1:3]], axis=0))
    _, total = tf.while_loop(
        lambda index, total: index < rounds,
        add,
        (tf.constant(0), tf.ensure_shape(start, shape)),
        parallel_iterations=1,
    )
    # The mean over the channels of each layer.
    by_tap = [count for row, count in zip(rows, counts, strict=True) for _ in names_of([row])]
    mean = total / tf.constant(np.array(by_tap)[:, None, None], tf.float32)
    return dict(zip(names, tf.unstack(mean), strict=True))


def names_of(rows: Sequence[Propagated]) -> list[str]:
    """The taps whose gradients `_weighted_gradients` returns, in its order."""
    return [tap for row in rows for tap in (row.tap, row.total) if tap]


def _weights(
    images: tf.Tensor, widths: set[int], channels: str | int, seed: int
) -> dict[int, tf.Tensor]:
    """Weights of channels in each gradient that is taken, by number of channels of a layer.

    The weights have shape (gradient, example or 1, channel).
    """
    if channels == "sum":
        return {width: tf.ones((1, 1, width)) for width in widths}
    if channels == "all":
        return {width: tf.eye(width)[:, None] for width in widths}
    # Each image has channels of its own, whatever its batch: at the same cost, the mean over images
    # has a smaller error than with the same few channels for all of them.
    # Channels are ordered by a hash in integers: random numbers of XLA and of TensorFlow differ.
    factors_of_widths = {
        width: np.random.default_rng((seed, width)).integers(1, PRIME, (width, 2))
        for width in widths
    }

    def sampled(key: tf.Tensor) -> dict[int, tf.Tensor]:
        drawn = {}
        for width, factors_of_channels in factors_of_widths.items():
            hashes = tf.reduce_sum(key * tf.constant(factors_of_channels, tf.int64), axis=1)
            order = tf.argsort(tf.math.floormod(hashes, PRIME))
            drawn[width] = tf.one_hot(order[:channels], width)
        return drawn

    spec = {width: tf.TensorSpec((min(channels, width), width)) for width in widths}
    of_images = draw_for_images(images, seed, sampled, spec)
    return {width: tf.transpose(x, (1, 0, 2)) for width, x in of_images.items()}


def _weighted_gradients(
    pieces: Sequence[Piece],
    rows: Sequence[Propagated],
    weights: dict[str, Any],
    needed: tf.Tensor | None,
    reduce: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Reduced gradients (tap, ...) of `names_of(rows)`; those of rows not `needed` are zero."""
    images = pieces[0].source
    adds, kinds = any(row.total for row in rows), tf.constant([row.kind for row in rows])

    def write(
        place: tf.Tensor, fields: tf.TensorArray, running: tf.Tensor
    ) -> tuple[tf.Tensor, tf.TensorArray, tf.Tensor]:
        if needed is None:
            gradient = _gradient_of_row(pieces, rows, weights, place)
        else:
            gradient = tf.cond(
                needed[place],
                lambda: _gradient_of_row(pieces, rows, weights, place),
                lambda: tf.zeros_like(images, tf.float32),
            )
        if adds:
            kept = tf.where(kinds[place] == STARTS, gradient, running)
            running = tf.where(kinds[place] == ADDS, running + gradient, kept)
        both = [gradient, running] if adds else [gradient]
        fields = fields.write(place, tf.stack([reduce(each) for each in both]))
        return place + 1, fields, tf.ensure_shape(running, images.shape)

    _, fields, _ = tf.while_loop(
        lambda place, *_: place < len(rows),
        write,
        (tf.constant(0), tf.TensorArray(tf.float32, len(rows)), tf.zeros_like(images)),
        parallel_iterations=1,  # all at once fill the memory
    )
    every = fields.stack()
    pairs = [every[place, i] for place, row in enumerate(rows) for i in range(len(names_of([row])))]
    return tf.stack(pairs)


def _gradient_of_row(
    pieces: Sequence[Piece],
    rows: Sequence[Propagated],
    weights: dict[str, Any],
    place: tf.Tensor,
) -> tf.Tensor:
    """The gradient of the row at `place` with respect to the images.

    It goes down from piece to piece. One backward pass is traced for each piece and serves all
    rows: the weights of taps of other rows are zero. Pieces above a row are skipped.
    """
    gradient, number = None, len(rows)
    for piece in reversed(pieces):
        names = [row.tap for row in rows if row.tap in piece.targets]
        number -= len(names)  # of rows in the pieces below
        if gradient is None and not names:
            continue
        targets = [piece.targets[tap] for tap in names]
        upstreams = [tf.broadcast_to(weights[tap], tf.shape(piece.targets[tap])) for tap in names]
        if piece.end is None:
            # No other gradient goes through the last piece, which is the whole model of a function:
            # each of its taps has a backward pass of its own, which starts at the tap.
            passes = [
                partial(piece.gradient, [target], [upstream], tap)
                for tap, target, upstream in zip(names, targets, upstreams, strict=True)
            ]
            passed = partial(tf.switch_case, place - number, passes) if passes[1:] else passes[0]
        else:
            upstreams = [tf.where(place == number + i, x, 0.0) for i, x in enumerate(upstreams)]
            if gradient is not None:
                targets, upstreams = [piece.end, *targets], [gradient, *upstreams]
            passed = partial(piece.gradient, targets, upstreams, rows[-1].tap)
        nothing = partial(tf.zeros_like, piece.source, tf.float32)
        gradient = tf.cond(place >= number, passed, nothing) if number else passed()
        gradient = tf.ensure_shape(gradient, piece.source.shape)
    return cast(tf.Tensor, gradient)


def _sum_channels(gradient: tf.Tensor) -> tf.Tensor:
    """Absolute gradients of images, summed over their channels: (example, row, column)."""
    return tf.reduce_sum(tf.abs(gradient), axis=3)


# What the gradient of a tap does to the running one: nothing, takes its place, or is added to it.
LEAVES, STARTS, ADDS = range(3)


@dataclass
class Propagated:
    """A tap whose gradient goes down to the images, to which the running one is added or not."""

    tap: str
    kind: int
    total: str | None = None  # the tap whose gradient that sum is


def propagated(pieces: Sequence[Piece]) -> list[Propagated]:
    """The taps that go down to the images, lowest first; gradients of sums follow from these."""
    skips = {skip for piece in pieces for _, skip in piece.sums.values()}
    rows, running = [], None
    for piece in pieces:
        for tap in piece.taps:
            branch, skip = piece.sums.get(tap, (None, None))
            if branch and skip == running and rows[-1].tap == branch:
                rows[-1], running = Propagated(branch, ADDS, tap), tap
            elif tap in skips:
                rows, running = [*rows, Propagated(tap, STARTS)], tap
            else:
                rows.append(Propagated(tap, LEAVES))
    return rows


def _find_sums(taps: Taps, before: Taps) -> dict[str, tuple[str, str]]:
    """Taps that the graph adds up of two taps of their shape: dict from sum to (branch, skip)."""
    if tf.executing_eagerly():
        return {}  # there is no graph that shows them
    every, sums = {**before, **taps}, {}
    names = {value.ref(): tap for tap, value in every.items()}
    for tap, value in taps.items():
        terms = list(value.op.inputs) if value.op.type in ("AddV2", "Add") else []
        added = [names.get(term.ref()) for term in terms]
        if terms and None not in added and len({tuple(x.shape) for x in (value, *terms)}) == 1:
            skip, branch = sorted(cast(list[str], added), key=[*every].index)
            sums[tap] = branch, skip
    return sums
