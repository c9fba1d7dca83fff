"""Receptive fields beside gradients taken one by one, and where they are known."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize
from study_parts import field_result

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.stream import eager_steps
from vit_tf.analysis.flow import receptive_field
from vit_tf.analysis.flow.receptive_field import field_size, propagated, select_fields


def test_a_convolution_gives_exactly_its_support(rng):
    conv = keras.layers.Conv2D(2, (3, 5), padding="same", activation="relu", use_bias=False)
    conv.build((None, 9, 11, 3))
    kernel = np.abs(rng.normal(size=conv.kernel.shape)).astype("float32")
    conv.kernel.assign(kernel)
    images = np.abs(rng.normal(size=(4, 9, 11, 3))).astype("float32")
    result = analysis.receptive_field(lambda x: {"conv": conv(x)}, images)
    expected = np.zeros((9, 11))
    expected[3:6, 3:8] = kernel.sum(axis=(2, 3))
    np.testing.assert_allclose(result.sel(layer="conv"), expected, rtol=1e-5)


def test_size_of_an_even_field_is_one_wherever_a_narrow_one_lies():
    def size(fields):
        return field_size(fields.sum(axis=2), fields.sum(axis=1))

    np.testing.assert_allclose(size(np.ones((1, 8, 12))), 1)
    spots = np.zeros((2, 8, 12))
    spots[0, 2:4, 3] = spots[1, 5:7, 10] = 1
    np.testing.assert_allclose(size(spots), 0.5 / np.sqrt((63 + 143) / 12))


@pytest.mark.usefixtures("without_graphs")
def test_numbers_without_each_batch_are_those_of_the_other_images(vit, rng):
    images = rng.normal(size=(7, 16, 24, 3)).astype("float32")
    tap, features = "block01/mlp/sum", vit_tf.submodel(vit, "embedding", "block01/mlp/sum")
    data = tf.data.Dataset.from_tensor_slices(images).batch(3)
    result = analysis.receptive_field(features, data, channels="all")
    chosen = select_fields(result, [tap])
    fields = fields_of_channels(vit, tap, 1 + 1 * 3 + 1, images).mean(axis=0)
    rest = np.reshape(chosen.attrs["leave_one_out"], (3, 2))
    for start, values in zip((None, 0, 3, 6), (None, *rest), strict=True):
        is_used = np.ones(7, bool)
        if start is not None:
            is_used[start : start + 3] = False
        expected = field_result([fields[is_used].mean(axis=0)], patch=8)
        if values is None:
            values = [chosen["size"].item(), chosen["centre_share"].item()]
        numbers = expected["size"].item(), expected["centre_share"].item()
        np.testing.assert_allclose(values, numbers, rtol=1e-4)
    assert np.size(result.attrs["leave_one_out"]) == 3 * 2 * 2


@pytest.fixture(scope="module")
def vit():
    keras.utils.set_random_seed(1)
    return vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 16, 5)


def fields_of_channels(model, tap, token, images):
    """Absolute gradients (channel, example, row, column) of each channel at a token, eagerly."""
    images = tf.constant(images)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        channels = tf.unstack(model.intermediates(images)[tap][:, token], axis=-1)
    gradients = [tape.gradient(channel, images).numpy() for channel in channels]
    return np.abs(gradients).sum(-1)


@pytest.mark.slow
def test_all_channels_are_the_mean_of_single_channel_gradients(vit, rng):
    images = rng.normal(size=(3, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(vit, "block0*/attention/sum")
    data = tf.data.Dataset.from_tensor_slices(images).batch(2)
    result = analysis.receptive_field(features, data, channels="all")
    centre = 1 + 1 * 3 + 1
    for tap in features.taps:
        expected = fields_of_channels(vit, tap, centre, images).mean((0, 1))
        np.testing.assert_allclose(result.sel(layer=tap), expected, rtol=1e-4, atol=1e-7)
    sampled = analysis.receptive_field(features, data, channels=8)
    np.testing.assert_allclose(sampled, result, rtol=1e-5)


@pytest.mark.slow
def test_each_image_has_a_channel_of_its_own_whatever_its_batch(vit, rng):
    images = rng.normal(size=(6, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(vit, "block01/attention/sum")

    def fields(images):
        data = tf.data.Dataset.from_tensor_slices(images).batch(2)
        return analysis.receptive_field(features, data, channels=1, seed=3).values[0]

    of_images = [fields(np.repeat(image[None], 2, axis=0)) for image in images]
    of_channels = fields_of_channels(vit, features.taps[0], 5, images)
    channels = []
    for field, candidates in zip(of_images, np.moveaxis(of_channels, 1, 0), strict=True):
        matches = [np.allclose(field, c, rtol=1e-4, atol=1e-7) for c in candidates]
        assert sum(matches) == 1
        channels.append(matches.index(True))
    assert len(set(channels)) > 1
    np.testing.assert_allclose(fields(images), np.mean(of_images, axis=0), rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "taps", "totals", "others"),
    [
        (
            lambda: vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, 5),
            ["*/branch", "*/sum"],
            ["block00/mlp/sum", "block01/attention/sum", "block01/mlp/sum"],
            [],
        ),
        (
            lambda: vit_tf.BiT((8, 8, 3), (1, 2), 0.5, 5),
            ["*"],
            ["stage1/unit01/sum", "stage2/unit01/sum", "stage2/unit02/sum"],
            ["stage1/unit01/conv1", "stage2/unit01/norm2", "stage2/unit02/branch", "norm"],
        ),
    ],
    ids=["ViT", "BiT"],
)
def test_taps_share_backward_passes_and_their_sums_need_none(
    make, taps, totals, others, rng, monkeypatch
):
    """They have the fields that each has by an eager backward pass of its own."""
    model, rows = make(), []
    randomize(model)
    images = rng.uniform(-1, 1, size=(2, 8, 8, 3)).astype("float32")
    features = vit_tf.submodel(model, *taps)

    def note(pieces):
        rows[:] = propagated(pieces)
        return rows

    monkeypatch.setattr(receptive_field, "propagated", note)
    together = analysis.receptive_field(features, images, channels=2)
    assert [row.total for row in rows if row.total] == totals
    assert together.layer.values.tolist() == list(features.taps)
    some = vit_tf.submodel(model, totals[-1], *others)
    with eager_steps():  # in which no sum is found
        apart = analysis.receptive_field(some, images, channels=2)
    assert not [row.total for row in rows if row.total]
    for tap in some.taps:
        expected = apart.sel(layer=tap)
        atol = 1e-6 * float(expected.max())
        np.testing.assert_allclose(together.sel(layer=tap), expected, rtol=1e-5, atol=atol)


def test_a_function_of_several_taps_has_the_same_fields_without_graphs(rng):
    kernels = rng.normal(size=(2, 3, 3, 3, 3)).astype("float32")

    def features(images):
        first = tf.nn.relu(tf.nn.conv2d(images, kernels[0], 1, "SAME"))
        return {"first": first, "second": tf.nn.conv2d(first, kernels[1], 1, "SAME")}

    features.token_grid = vit_tf.TokenGrid(4, 4, 0, 1)
    images = rng.uniform(size=(2, 4, 4, 3)).astype("float32")
    in_graph = analysis.receptive_field(features, images)
    with eager_steps():
        eagerly = analysis.receptive_field(features, images)
    assert float(in_graph.min()) >= 0 and float(in_graph.max()) > 0
    np.testing.assert_allclose(eagerly, in_graph, rtol=1e-5)


@pytest.mark.slow
def test_a_tap_without_a_gradient_is_named_among_others():
    image = keras.Input((4, 4, 1))
    first = keras.layers.ReLU(name="first")(image)
    stopped = keras.layers.Lambda(keras.ops.stop_gradient, name="stopped")(first)
    joined = keras.layers.Add(name="joined")([first, stopped])
    last = keras.layers.ReLU(name="last")(joined)
    features = vit_tf.submodel(keras.Model(image, last), "first", "stopped", "joined", "last")
    with pytest.raises(ValueError, match="'stopped' has no gradient"):
        analysis.receptive_field(features, np.ones((1, 4, 4, 1), "float32"))
    with pytest.raises(ValueError, match="'stopped' has no gradient"):
        analysis.position_attribution(features, np.ones((1, 4, 4, 1), "float32"), 2, 2)


def test_two_branches_of_one_skip_are_not_added_up():
    def features(images):
        skip, one, two = 2 * images, 3 * images, 5 * images
        return {"skip": skip, "one": one, "first": skip + one, "two": two, "second": skip + two}

    result = analysis.receptive_field(features, np.ones((1, 3, 3, 1), "float32"))
    assert result[:, 1, 1].values.tolist() == [2, 3, 5, 5, 7]


def test_vectors_and_maps_have_their_own_centre(rng):
    images = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    result = analysis.receptive_field(
        lambda x: {"map": 2 * x, "vector": tf.reduce_sum(x, axis=(1, 2))}, images
    )
    expected = np.zeros((4, 4))
    expected[2, 2] = 6
    np.testing.assert_array_equal(result.sel(layer="map"), expected)
    np.testing.assert_array_equal(result.sel(layer="vector"), np.full((4, 4), 3.0))


@pytest.mark.parametrize(
    ("features", "options", "words"),
    [
        (lambda vit: vit_tf.submodel(vit, "block00/mlp/sum"), {"channels": "mean"}, "'mean'"),
        (lambda vit: lambda x: vit_tf.submodel(vit, "norm")(x), {}, "TokenGrid of the 7 tokens"),
        (lambda vit: vit_tf.submodel(vit, "block00/*/weights"), {}, "block00/attention/weights"),
        (lambda vit: lambda x: {"constant": tf.ones((2, 3))}, {}, r"'constant' has no gradient"),
    ],
)
def test_errors(vit, features, options, words):
    with pytest.raises(ValueError, match=words):
        analysis.receptive_field(features(vit), np.zeros((2, 16, 24, 3), "float32"), **options)


@pytest.mark.slow
def test_the_field_of_the_centre_is_the_receptive_field(rng):
    bit = vit_tf.BiT((16, 24, 3), units=(1, 1), num_classes=5, stem="small", width_factor=0.5)
    randomize(bit)
    images = rng.uniform(-1, 1, size=(2, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(bit, "stage*/unit01/sum")
    rows, columns = bit.token_grid.rows, bit.token_grid.columns
    result = analysis.position_attribution(features, images, rows, columns)
    assert result.shape == (2, 2, rows * columns, 16, 24)
    centre = (rows // 2) * columns + columns // 2
    expected = analysis.receptive_field(features, images).sel(layer="stage2/unit01/sum")
    found = result.sel(layer="stage2/unit01/sum", place=centre).mean("example")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_convolution_of_ones_is_moved_by_its_window():
    images = keras.Input((6, 8, 1))
    layer = keras.layers.Conv2D(1, 3, padding="same", kernel_initializer="ones", name="conv")
    model = keras.Model(images, layer(images))
    result = analysis.position_attribution(
        vit_tf.submodel(model, "conv"), np.zeros((1, 6, 8, 1)), 3, 4
    )
    for place in range(12):
        row, column = 2 * (place // 4) + 1, 2 * (place % 4) + 1  # under the middle of the cell
        expected = np.zeros((6, 8))
        expected[row - 1 : row + 2, max(column - 1, 0) : column + 2] = 1
        np.testing.assert_array_equal(result[0, 0, place], expected)


def test_each_image_has_a_field_of_its_own(rng):
    x = images = keras.Input((4, 4, 1))
    x = keras.layers.ReLU(name="map")(x)
    features = vit_tf.submodel(keras.Model(images, x), "map")
    batch = np.stack([np.ones((4, 4, 1)), -np.ones((4, 4, 1))]).astype("float32")
    result = analysis.position_attribution(features, batch, 4, 4)
    np.testing.assert_array_equal(result[0, 0].values.reshape(16, 16), np.eye(16))
    assert not result[1].any()


def test_what_has_no_places_is_told():
    vit = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 5)
    images = np.zeros((1, 8, 8, 3), "float32")
    with pytest.raises(ValueError, match="Received: 'embedding' of shape"):
        analysis.position_attribution(vit_tf.submodel(vit, "embedding"), images, 2, 2)
    with pytest.raises(ValueError, match="Received: 0 x 2"):
        analysis.position_attribution(vit_tf.submodel(vit, "embedding"), images, 0, 2)


@pytest.mark.slow
def test_cells_that_share_a_batch_have_the_fields_of_single_ones(rng, monkeypatch):
    x = pixels = keras.Input((8, 12, 3))
    x = keras.layers.Conv2D(4, 3, activation="gelu", padding="same", name="first")(x)
    x = keras.layers.Conv2D(4, 3, 2, activation="gelu", padding="same", name="second")(x)
    model = keras.Model(pixels, x)
    images = rng.uniform(-1, 1, size=(2, 8, 12, 3)).astype("float32")

    def fields():
        # Features of their own: those of an earlier call keep its graph, with its number of cells.
        return analysis.position_attribution(
            vit_tf.submodel(model, "first", "second"), images, 2, 3
        )

    together = fields()
    for cells in (1, 4):  # of which the second chunk is not full
        monkeypatch.setattr(receptive_field, "PIXELS_AT_ONCE", cells * 8 * 12)
        np.testing.assert_allclose(together, fields(), rtol=1e-4, atol=1e-7)


@pytest.mark.usefixtures("without_graphs")
def test_the_field_of_the_class_token_is_its_own_gradient(vit, rng):
    images = rng.normal(size=(3, 16, 24, 3)).astype("float32")
    tap = "block01/attention/sum"
    features = vit_tf.submodel(vit, tap)
    field = analysis.receptive_field(features, images, token="cls")
    with tf.GradientTape() as tape:
        pixels = tf.constant(images)
        tape.watch(pixels)
        value = tf.reduce_sum(vit.intermediates(pixels)[tap][:, 0])
    expected = np.abs(tape.gradient(value, pixels)).sum(-1).mean(0)
    np.testing.assert_allclose(field.isel(layer=0), expected, rtol=1e-4, atol=1e-7)
    assert not np.allclose(field, analysis.receptive_field(features, images), rtol=1e-2)
    for arguments in ({"token": "clss"}, {"token": "cls", "grid": vit_tf.TokenGrid(1, 7, 0, 8)}):
        with pytest.raises(ValueError, match="Expected"):
            analysis.receptive_field(features, images, **arguments)
