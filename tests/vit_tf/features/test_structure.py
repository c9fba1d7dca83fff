"""Which layers of any model are its representations: ends of blocks, operations included."""

import re

import keras
import numpy as np
import pytest
from functional_models import functional_densenet, functional_unet, functional_vit

import vit_tf
from vit_tf.features.structure import LayerEntry, graph_of_entries
from vit_tf.features.submodels import graph_of

applications = keras.applications


def test_sums_of_a_functional_vit_are_its_blocks_and_have_their_values(rng, tmp_path):
    model = functional_vit(num_blocks=2, dim=8, size=16, patch_size=4)
    graph = graph_of(model)
    first, *sums, norm, pooled = graph.representations
    assert (first, len(sums), norm) == ("patches", 4, "final_norm")
    assert graph.blocks == (first, *sums) and graph.scores == "head"
    assert pooled not in graph.blocks and graph.num_repeated == 0

    images = rng.normal(size=(2, 16, 16, 3)).astype("float32")
    features = vit_tf.submodel(model)
    taps = features(images)
    tensor = next(n.outputs[0] for n in _nodes(model) if n.operation.name == sums[2])
    expected = keras.Model(model.inputs, tensor)(images)
    np.testing.assert_allclose(taps[sums[2]], expected, atol=1e-6)
    features.save(tmp_path / "features.keras")
    reloaded = keras.models.load_model(tmp_path / "features.keras")
    np.testing.assert_array_equal(reloaded(images)[sums[2]], taps[sums[2]])

    whole = model(images)
    edited = vit_tf.edits.intervene(model, {sums[2]: vit_tf.edits.scaled(2.0)}, sums[2], "head")
    np.testing.assert_allclose(edited(images)[sums[2]], 2 * taps[sums[2]], atol=1e-6)
    assert not np.allclose(edited(images)["head"], whole)


def _nodes(model):
    return [n for nodes in model._nodes_by_depth.values() for n in nodes]


# Of a model: a pattern that fits all ends of blocks and nothing else, and their number.
ENDS = {
    "convnext": (
        lambda: applications.ConvNeXtTiny(input_shape=(32, 32, 3), weights=None, classes=2),
        r"add(_\d+)?",
        18,
    ),
    "efficientnet": (
        lambda: applications.EfficientNetB0(input_shape=(64, 64, 3), weights=None, classes=2),
        r"block\d[a-z]_(add|project_bn)",
        16,
    ),
    "mobilenet": (
        lambda: applications.MobileNetV2((64, 64, 3), 0.35, weights=None, classes=2),
        r"block_\d+_(add|project_BN)",
        16,
    ),
    "mobilenet v1": (
        lambda: applications.MobileNet((64, 64, 3), 0.25, weights=None, classes=2),
        r"conv_pw_\d+_relu",
        13,
    ),
    "resnet v2": (
        lambda: applications.ResNet50V2(input_shape=(32, 32, 3), weights=None, classes=2),
        r"conv\d_block\d_out",
        16,
    ),
    "resnet": (
        lambda: applications.ResNet50(input_shape=(32, 32, 3), weights=None, classes=2),
        r"conv\d_block\d_out",
        16,
    ),
}


@pytest.mark.parametrize(
    "name",
    [n if n == "mobilenet v1" else pytest.param(n, marks=pytest.mark.slow) for n in ENDS],
)
def test_every_block_ends_in_a_representation_and_no_expansion_is_one(name):
    make, pattern, count = ENDS[name]
    graph = graph_of(make())
    ends = [tap for tap in graph.representations if re.fullmatch(pattern, tap)]
    assert len(ends) == count and set(ends) <= set(graph.blocks)
    assert len(graph.representations) - count <= 5  # stem, downsampling, head
    assert not [tap for tap in graph.representations if "expand_" in tap or "dwconv" in tap]


def test_blocks_that_the_rule_misses_are_counted():
    entries = [LayerEntry("stem", (None, 8, 8, 4), True, False, True)]
    entries += [
        LayerEntry(f"block{n}", (None, 8, 8, 4), True, True, n == 3, kind="Block") for n in range(4)
    ]
    graph = graph_of_entries(entries)
    assert graph.representations == ("stem", "block3") and graph.num_repeated == 4


def test_all_blocks_are_read_however_many_there_are(rng):
    model = functional_densenet(num_blocks=45)
    blocks = [f"block_{number}" for number in range(45)]
    graph = graph_of(model)
    assert [tap for tap in graph.representations if tap in blocks] == blocks
    images = rng.normal(size=(2, 16, 16, 3)).astype("float32")
    taps = vit_tf.submodel(model)(images)
    outputs = keras.Model(model.inputs, [model.get_layer(name).output for name in blocks])(images)
    for name, expected in zip(blocks, outputs, strict=True):
        np.testing.assert_allclose(taps[name], expected, atol=1e-6)


@pytest.mark.parametrize("heads", ["list", "dict", "softmax", "auxiliary"])
def test_of_several_heads_the_vector_that_they_read_is_a_representation(heads, rng):
    layers = keras.layers
    images = keras.Input((16, 16, 3))
    first = layers.Conv2D(8, 3, 2, padding="same", activation="relu", name="c1")(images)
    second = layers.Conv2D(8, 3, 2, padding="same", activation="relu", name="c2")(first)
    pooled = layers.GlobalAveragePooling2D(name="p")(second)
    species, sex = layers.Dense(4, name="species")(pooled), layers.Dense(2, name="sex")(pooled)
    if heads == "auxiliary":
        sex = layers.Dense(2, name="sex")(layers.GlobalAveragePooling2D(name="q")(first))
    if heads == "softmax":
        species, sex = layers.Softmax()(species), layers.Softmax()(sex)
    output = {"species": species, "sex": sex} if heads == "dict" else [species, sex]
    model = keras.Model(images, output)
    representations = graph_of(model).representations
    assert {"c2", "p"} <= set(representations) <= {"c1", "c2", "p"}


def test_class_scores_of_subclassed_models_are_no_representations(rng):
    layers = keras.layers

    class TwoHeads(keras.Model):
        def __init__(self):
            super().__init__()
            self.c1 = layers.Conv2D(8, 3, 2, activation="relu", name="c1")
            self.c2 = layers.Conv2D(8, 3, 2, activation="relu", name="c2")
            self.c3 = layers.Conv2D(8, 3, 2, padding="same", activation="relu", name="c3")
            self.p = layers.GlobalAveragePooling2D(name="p")
            self.species, self.sex = layers.Dense(4, name="species"), layers.Dense(2, name="sex")
            self.aux_hidden, self.aux = layers.Dense(5, name="h"), layers.Dense(4, name="aux")

        def call(self, images):
            first = self.c1(images)
            aux = self.aux(self.aux_hidden(keras.ops.mean(first, (1, 2))))
            pooled = self.p(self.c3(self.c2(first)))
            return {"species": self.species(pooled), "sex": self.sex(pooled), "aux": aux}

    model = TwoHeads()
    model(keras.Input((16, 16, 3)))
    assert graph_of(model).representations == ("c1", "c2", "c3", "p")
    images = rng.normal(size=(2, 16, 16, 3)).astype("float32")
    taps = vit_tf.submodel(model)(images)
    expected = model.c3(model.c2(model.c1(images)))
    np.testing.assert_allclose(taps["c3"], expected, atol=1e-6)
    np.testing.assert_allclose(taps["p"], np.mean(expected, (1, 2)), atol=1e-6)


def test_skips_of_a_unet_go_around_stages_that_are_read(rng):
    model = functional_unet(size=16)
    stages = ["down_0", "down_1", "bottom", "up_1", "up_0"]  # and not the map of class scores
    assert list(graph_of(model).representations) == stages
    images = rng.normal(size=(2, 16, 16, 3)).astype("float32")
    taps = vit_tf.submodel(model)(images)
    for name in stages:
        expected = keras.Model(model.inputs, model.get_layer(name).output)(images)
        np.testing.assert_allclose(taps[name], expected, atol=1e-6)


def _branch(x, name, is_residual):
    """Four stages and a pooling, with residual blocks or without."""
    layers = keras.layers
    for stage in range(4):
        last = f"{name}{stage}"
        x = layers.Conv2D(8, 3, 2, padding="same", activation="relu", name=f"{last}_conv")(x)
        if is_residual:
            y = layers.Conv2D(8, 3, padding="same", name=f"{last}_branch")(x)
            x = layers.Add(name=f"{last}_sum")([x, y])
    return layers.GlobalAveragePooling2D(name=f"{name}_pool")(x)


@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("kind", ["plain", "residual", "nested"])
def test_stages_of_several_long_paths_are_read(kind, stem, rng):
    layers, images = keras.layers, keras.Input((32, 32, 3))
    first = layers.Conv2D(8, 3, padding="same", name="stem")(images) if stem else images
    ends = []
    for name in "ab":
        if kind == "nested":
            inner = keras.Input(first.shape[1:])
            path = keras.Model(inner, _branch(inner, name, False), name=name)
            ends.append(path(first))
        else:
            ends.append(_branch(first, name, kind == "residual"))
    joined = layers.Concatenate(name="joined")(ends)
    model = keras.Model(images, layers.Dense(3, name="head")(joined))
    end = "sum" if kind == "residual" else "conv"
    prefix = [f"{name}/{name}" if kind == "nested" else name for name in "ab"]
    stages = [f"{name}{stage}_{end}" for name in prefix for stage in range(4)]
    graph = graph_of(model)
    read = [tap for tap in graph.representations if tap in stages]
    assert sorted(read) == stages and {"joined"} <= {*graph.representations}
    assert ("stem" in graph.representations) == stem and "head" not in graph.representations
    if kind == "residual":
        assert {*stages} <= {*graph.blocks}

    pictures = rng.normal(size=(6, 32, 32, 3)).astype("float32")
    taps = vit_tf.submodel(model)(pictures)
    for stage in stages:
        owner = model.get_layer(stage.split("/")[0]) if kind == "nested" else model
        source = first if kind == "nested" else images
        value = np.asarray(keras.Model(images, source)(pictures)) if stem else pictures
        value = value if kind == "nested" else pictures
        tensor = owner.get_layer(stage.split("/")[-1]).output
        np.testing.assert_allclose(taps[stage], keras.Model(owner.inputs, tensor)(value), atol=1e-5)


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_scores_of_averaged_classifiers_are_no_representations(activation):
    layers, images = keras.layers, keras.Input((32, 32, 3))
    ends = [_branch(images, name, False) for name in "ab"]
    scores = [layers.Dense(3, activation, name=f"h{i}")(end) for i, end in enumerate(ends)]
    for joined in (layers.Average()(scores), (scores[0] + scores[1]) / 2):
        graph = graph_of(keras.Model(images, joined))
        stages = {f"{name}{stage}_conv" for name in "ab" for stage in range(4)}
        assert {*graph.representations} == stages | {"a_pool", "b_pool"}


def test_layers_in_wrappers_are_as_without_them(rng):
    """Spectral normalization of each layer with a kernel, as in a discriminator."""
    layers = keras.layers

    def network(wrap):
        x = images = keras.Input((32, 32, 3))
        for index in range(3):
            x = wrap(layers.Conv2D(8, 3, 2, padding="same"))(x)
            x = layers.LeakyReLU(name=f"activation{index}")(x)
        pooled = layers.GlobalAveragePooling2D(name="pooled")(x)
        return keras.Model(images, wrap(layers.Dense(5))(pooled))

    images = rng.normal(size=(2, 32, 32, 3)).astype("float32")
    expected = ["activation0", "activation1", "activation2", "pooled"]
    for wrap in (lambda layer: layer, layers.SpectralNormalization):
        assert list(vit_tf.extract_features(network(wrap), images)) == expected


def test_blocks_of_short_paths_are_not_opened():
    layers, images = keras.layers, keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(images)
    for block in range(2):
        small = layers.Conv2D(8, 3, 2, padding="same")(layers.Conv2D(8, 1)(x))
        gate = layers.Dense(8, "sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(small))
        shortcut = layers.AveragePooling2D(2)(x)
        x = layers.Concatenate(name=f"block{block}")([small * gate, shortcut])
    scores = layers.Dense(3, name="head")(layers.GlobalAveragePooling2D(name="pooled")(x))
    graph = graph_of(keras.Model(images, scores))
    assert graph.representations == ("stem", "block0", "block1", "pooled")
    assert graph.num_repeated == 0


def test_cells_that_read_the_last_two_cells_are_blocks(rng):
    layers, images = keras.layers, keras.Input((16, 16, 3))

    def adjusted(x):
        return layers.BatchNormalization()(layers.Conv2D(4, 1)(layers.ReLU()(x)))

    stem = layers.Conv2D(8, 3, padding="same", name="stem")(images)
    last = [stem, layers.Concatenate(name="first")([stem, stem])]
    for cell in range(3):
        before, x = map(adjusted, last)
        first = layers.Conv2D(4, 3, padding="same")(x) + before
        second = layers.MaxPool2D(3, 1, "same")(x) + x
        last = [last[1], layers.Concatenate(name=f"cell{cell}")([before, first, second])]
    pooled = layers.GlobalAveragePooling2D()(last[1])
    model = keras.Model(images, layers.Dense(3)(pooled))
    graph = graph_of(model)
    cells = [f"cell{cell}" for cell in range(3)]
    assert {*cells} <= {*graph.blocks} and graph.num_repeated == 0
    pictures = rng.normal(size=(2, 16, 16, 3)).astype("float32")
    taps = vit_tf.submodel(model)(pictures)
    for cell in cells:
        expected = keras.Model(images, model.get_layer(cell).output)(pictures)
        np.testing.assert_allclose(taps[cell], expected, atol=1e-5)
