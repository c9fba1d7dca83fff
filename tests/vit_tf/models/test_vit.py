"""`ViT`, and the options that later papers added to it."""

import inspect

import keras
import numpy as np
import oracles
import pytest
from tiny_models import tiny

import vit_tf

REMOVED = {"num_layers": 3, "without_skips": ("block01/attention", "block02")}
OPTIONS = {"vit": REMOVED, "gap": REMOVED, "google": REMOVED}
OPTIONS |= {"dinov2": {}, "deit": {}, "deit token": {}, "deit3": {}}


@pytest.fixture(scope="module", params=OPTIONS)
def vit(request):
    model = tiny(request.param, **OPTIONS[request.param])
    oracles.randomize(model)
    return model


def oracle(model, images):
    """Dosovitskiy et al. 2020, equations 1 to 4, with later options, in NumPy float64."""
    weights, config = oracles.weights_of(model), model.get_config()
    x, positions = oracles.patches(images, weights, 8), weights["embedding/positions"]
    prefix = positions.shape[1] - 6
    x[:, :prefix] += positions[:, :prefix]
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


def test_the_configuration_holds_every_argument_and_a_part_of_it_suffices():
    model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 12, 2)
    config = model.get_config()
    arguments = {*inspect.signature(vit_tf.ViT).parameters} - {"preprocessing", "kwargs"}
    assert set(config) - set(keras.Model().get_config()) == arguments
    few = ["image_shape", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim"]
    again = vit_tf.ViT.from_config({name: config[name] for name in [*few, "num_classes"]})
    assert again.get_config() | {"name": model.name} == config
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    norm, dense = ["gamma", "beta"], ["kernel", "bias"]
    embedding = ["prefix", "positions", *dense]
    block = norm + 4 * dense + norm + 2 * dense
    assert [w.name for w in model.weights] == embedding + block + norm + dense


def test_prefix_tokens_are_named_in_order(vit):
    registers = {0: [], 1: ["register 1"], 4: [f"register {i}" for i in (1, 2, 3, 4)]}
    config = vit.get_config()
    names = ["CLS"] * (vit.pooling == "cls")
    names += ["distillation"] * isinstance(vit, vit_tf.DistilledViT)
    assert vit.prefix_names == (*names, *registers[config["registers"]])
    assert vit.token_grid.prefix == len(vit.prefix_names)
    # Registers have no position, nor has any prefix token of DeiT-3.
    positions = vit.position_embedding
    count = len(names) if config["class_position"] else 0
    assert positions.shape == (vit.token_grid.num_tokens, 8)
    assert positions[:count].all() and not positions[count : len(vit.prefix_names)].any()
    assert positions[len(vit.prefix_names) :].all()
