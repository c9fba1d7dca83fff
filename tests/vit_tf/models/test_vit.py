"""`ViT`, and the options that later papers added to it."""

import keras
import numpy as np
import oracles
import pytest

import vit_tf
from vit_tf import TokenGrid
from vit_tf.models.resolution import resample_positions
from vit_tf.models.transformer import Embedding
from vit_tf.models.vit import RELEASED, VARIANTS

# Published parameter counts with a CLS token and 1000 classes at 224 pixels.
COUNTS = {
    "Ti": (5_719_720, 5_694_376, 5_717_416, 6_131_560),
    "S": (22_055_272, 22_004_584, 22_050_664, 22_878_952),
    "B": (86_576_872, 86_475_496, 86_567_656, 88_224_232),
    "L": (304_338_920, 304_203_752, 304_326_632, 306_535_400),
    "H": (632_214_760, 632_045_800, 632_199_400, 634_960_360),
}


def analytic_count(layers, hidden, mlp, patch, classes=1000, size=224):
    block = 4 * hidden * (hidden + 1) + 2 * hidden * mlp + hidden + mlp + 4 * hidden
    tokens = 1 + (size // patch) ** 2
    return (
        (3 * patch**2 + 1) * hidden
        + hidden
        + tokens * hidden
        + layers * block
        + 2 * hidden
        + (hidden + 1) * classes
    )


@pytest.mark.parametrize("size", ["Ti", "S", "B"])
def test_parameter_counts_of_models(size):
    for patch, count in zip((8, 14, 16, 32), COUNTS[size], strict=True):
        if size == "Ti" or patch == 16:
            assert vit_tf.ViT.from_variant(f"{size}/{patch}").count_params() == count


def test_parameter_counts_of_every_variant():
    assert len(VARIANTS) == 20
    for size, counts in COUNTS.items():
        for patch, count in zip((8, 14, 16, 32), counts, strict=True):
            fields = VARIANTS[f"{size}/{patch}"]
            assert fields["hidden_dim"] % fields["num_heads"] == 0
            assert (
                analytic_count(fields["num_layers"], fields["hidden_dim"], fields["mlp_dim"], patch)
                == count
            )


SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12, "num_classes": 5}
GOOGLE = {"activation": "gelu_tanh", "representation_dim": 7}
REMOVED = {"num_layers": 3, "without_skips": ("block01/attention", "block02")}
OPTIONS = {
    "cls": REMOVED,
    "gap": REMOVED | {"pooling": "gap"},
    "google": REMOVED | GOOGLE,
    "dinov2": {"registers": 4, "layer_scale": 0.1, "activation": "swiglu"},
    "deit": {"distillation": "heads", "epsilon": 1e-3},
    "deit-token": {"distillation": "token", "registers": 1, "representation_dim": 3},
    "deit3": {"class_position": False, "layer_scale": 0.1},
}
# Read off timm 1.0.31: those of images of 518 pixels without a head, and of 224 with 1000 classes.
DINOV2 = {"S": 22_056_192, "B": 86_579_712, "L": 304_367_616, "g": 1_136_479_232}
REGISTERS = {"S": 22_057_344, "B": 86_582_016, "L": 304_370_688, "g": 1_136_483_840}
DISTILLED = {"Ti": 5_910_800, "S": 22_436_432, "B": 87_338_192}
DEIT3 = {"S": 22_059_496, "M": 38_849_512, "B": 86_585_320, "L": 304_374_760, "H": 632_126_440}


@pytest.fixture(params=OPTIONS)
def vit(request):
    model = vit_tf.ViT((16, 24, 3), 8, **SIZES | OPTIONS[request.param])
    oracles.randomize(model)
    return model


def oracle(model, images):
    """Dosovitskiy et al. 2020, equations 1 to 4, with later options, in NumPy float64."""
    weights, config = oracles.weights_of(model), model.get_config()
    x, positions = oracles.patches(images, weights, 8), weights["embedding/positions"]
    placed = positions.shape[1] - 6
    x[:, :placed] += positions[:, :placed]
    x[:, -6:] += positions[:, -6:]
    taps, epsilon = {"embedding": x}, config.get("epsilon", 1e-6)
    removed = ["block01/attention", "block02/attention", "block02/mlp"]
    removed = removed if config["without_skips"] else []
    sizes = (config["num_layers"], 2, config.get("activation", "gelu"), epsilon)
    inside, x = oracles.blocks(x, weights, *sizes, removed)
    taps |= inside
    taps["norm"] = x = oracles.norm(x, weights, "norm", epsilon)
    taps["pooled"] = y = x[:, 0] if model.pooling == "cls" else x.mean(1)
    if "pre_logits/kernel" in weights:
        taps["pre_logits"] = y = np.tanh(oracles.dense(y, weights, "pre_logits"))
    logits = oracles.dense(y, weights, "head")
    if "distillation_head/kernel" in weights:
        taps["distilled"] = x[:, 1]
        logits = (logits + oracles.dense(x[:, 1], weights, "distillation_head")) / 2
    return taps | {"logits": logits}


def test_every_tap_equals_the_paper_in_float64(vit, images):
    oracles.check_taps(vit, images, oracle(vit, images))


def test_later_options_change_neither_older_configurations_nor_older_weights():
    older = ["image_shape", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim"]
    older += ["num_classes", "pooling", "without_skips", "dropout_rate"]
    model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 12, 2)
    config = model.get_config()
    assert set(config) - set(keras.Model().get_config()) == set(older)
    again = vit_tf.ViT.from_config({name: config[name] for name in older})
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    norm, dense = ["gamma", "beta"], ["kernel", "bias"]
    embedding = ["prefix", "positions", *dense]
    block = norm + 4 * dense + norm + 2 * dense
    assert [w.name for w in model.weights] == embedding + block + norm + dense
    google = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 12, 2, **GOOGLE)
    assert google.get_config() | GOOGLE == google.get_config()
    assert google.count_params() == model.count_params() + 9 * 7 - 2


def test_saved_and_opened_it_is_the_same_model(vit, images, tmp_path):
    vit.save(tmp_path / "vit.keras")
    again = vit_tf.load_model(tmp_path / "vit.keras")
    assert again.get_config() == vit.get_config() and again.prefix_names == vit.prefix_names
    np.testing.assert_array_equal(again(images), vit(images))


def test_tokens_without_a_place_are_named_in_order(vit):
    registers = {0: [], 1: ["register 1"], 4: [f"register {i}" for i in (1, 2, 3, 4)]}
    config = vit.get_config()
    names = ["CLS"] * (vit.pooling == "cls") + ["distillation"] * ("distillation" in config)
    assert vit.prefix_names == (*names, *registers[config.get("registers", 0)])
    assert vit.token_grid.prefix == len(vit.prefix_names)
    # Registers have no position, nor has any token of DeiT-3 but those with a place.
    positions = vit.position_embedding
    placed = len(names) if config.get("class_position", True) else 0
    assert positions.shape == (vit.token_grid.num_tokens, 8)
    assert positions[:placed].all() and not positions[placed : len(vit.prefix_names)].any()
    assert positions[len(vit.prefix_names) :].all()


def test_another_size_keeps_all_but_the_positions_and_a_new_head_is_zero(vit, images):
    larger = vit_tf.at_resolution(vit, (24, 24), num_classes=3, method="bicubic")
    old, new = oracles.weights_of(vit), oracles.weights_of(larger)
    grids = vit.embedding.position_grid, larger.embedding.position_grid
    for name in new:
        if "head/" in name:
            assert new[name].shape[-1] == 3 and not new[name].any()
        elif name == "embedding/positions":
            expected = resample_positions(old[name], *grids, "bicubic")
            np.testing.assert_allclose(new[name], expected, atol=1e-6)
        else:
            np.testing.assert_array_equal(new[name], old[name])


# Of timm 1.0.31, at 224 pixels and without a head.
AIMV2 = {"L": 309_197_824, "H": 680_851_968, "1B": 1_234_958_336, "3B": 2_720_658_432}


def count(fields, size, classes=1000, registers=0, distilled=False, head=True):
    """Number of parameters of a ViT of images of a square size, counted by hand."""
    width, hidden, patch = fields["hidden_dim"], fields["mlp_dim"], fields["patch_size"]
    block = oracles.block_count(width, hidden) + 2 * width * ("layer_scale" in fields)
    if fields.get("activation") == "swiglu":
        block += width * hidden + hidden
    places = (size // patch) ** 2 + (1 + distilled) * fields.get("class_position", True)
    tokens = 1 + distilled + registers + places
    heads = (1 + distilled) * (width + 1) * classes if head else 0
    patches = (3 * patch**2 + 1) * width
    return patches + tokens * width + fields["num_layers"] * block + 2 * width + heads


def test_the_count_by_hand_is_that_of_the_models():
    for options in (OPTIONS["dinov2"], OPTIONS["deit"], OPTIONS["deit3"]):
        fields = SIZES | {"patch_size": 8, "class_position": options.get("class_position", True)}
        fields |= {k: v for k, v in options.items() if k in ("layer_scale", "activation")}
        extra = {"registers": options.get("registers", 0), "distilled": "distillation" in options}
        model = vit_tf.ViT((16, 16, 3), 8, **SIZES, **options)
        assert model.count_params() == count(fields, 16, classes=5, **extra)


def test_published_parameter_counts():
    """Of the names that are released; timm's registers have no position, nor has their CLS."""
    for size, number in DINOV2.items():
        fields = RELEASED[f"DINOv2-{size}/14"]
        assert count(fields, 518, head=False) == number
        assert count(fields, 518, head=False, registers=4) == (
            REGISTERS[size] + fields["hidden_dim"]
        )
    for size, number in DEIT3.items():
        patch = 14 if size == "H" else 16
        assert count(RELEASED[f"DeiT3-{size}/{patch}"], 224) == number
    for size, number in DISTILLED.items():
        assert count(VARIANTS[f"{size}/16"], 224, distilled=True) == number
    rotary = [name for name in RELEASED if name.startswith("DINOv3")]
    for size, number in AIMV2.items():
        width, hidden = (RELEASED[f"AIMv2-{size}/14"][name] for name in ("hidden_dim", "mlp_dim"))
        # Weights without biases, but for that of the patches, of which there are 16 a side.
        blocks = 24 * (4 * width**2 + 3 * width * hidden + 2 * width)
        assert blocks + (3 * 14**2 + 1 + 16**2 + 2) * width == number
    assert len(RELEASED) == len(DINOV2) + len(DEIT3) + len(rotary) + len(AIMV2)
    small = vit_tf.ViT.from_variant("DINOv2-S/14", image_shape=(28, 28, 3), num_classes=1)
    assert small.count_params() == count(RELEASED["DINOv2-S/14"], 28, classes=1)


def test_an_embedding_of_an_older_file_opens():
    """Its configuration has the old name of `num_prefix_positions`."""
    layer = Embedding(TokenGrid(2, 3, 2, 8), 8, num_prefix_positions=1)
    older = layer.get_config()
    older["placed"] = older.pop("num_prefix_positions")
    assert Embedding.from_config(older).get_config() == layer.get_config()


def shown_shapes(model):
    """dict from layer to the shape that the summary shows."""
    lines = []
    model.summary(print_fn=lines.append, line_length=120)
    rows = [line.split("│")[1:3] for line in "\n".join(lines).splitlines() if "│" in line]
    return {name.split()[0]: shape.strip() for name, shape in rows}


@pytest.mark.slow
def test_the_summary_shows_the_shapes_of_layers_and_leaves_no_trace():
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 5}
    vit = vit_tf.ViT(image_shape=(16, 16, 3), patch_size=8, **sizes)
    layers = ("embedding", "block00", "block01", "norm")
    expected = dict.fromkeys(layers, "(None, 5, 8)") | {"head": "(None, 5)"}
    assert shown_shapes(vit) == expected
    vit_tf.submodel(vit, "*")
    nodes = [len(layer._inbound_nodes) for layer in vit.layers]
    assert shown_shapes(vit) == expected
    assert [len(layer._inbound_nodes) for layer in vit.layers] == nodes
    bit = vit_tf.BiT(image_shape=(32, 32, 3), units=(1, 1), width_factor=0.5, num_classes=5)
    shapes = shown_shapes(bit)
    for layer, tap in (("root", "root"), ("stage2_unit01", "stage2/unit01/sum"), ("norm", "norm")):
        assert shapes[layer] == str(tuple(vit_tf.submodel(bit, tap).output[tap].shape))
