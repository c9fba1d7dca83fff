"""The tokens that a model's head reads are those that change its scores."""

import numpy as np
import pytest
from oracles import randomize
from tiny_models import tiny

import vit_tf

SLOW = pytest.mark.slow
MODELS = ("vit", "dinov2", "gap", "deit", "deit token", "beit", "beit shared")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gap", "deit token", "beit shared") else pytest.param(name, marks=SLOW)
        for name in MODELS
    ],
)
def test_scores_depend_on_the_pooled_tokens_alone(name, rng):
    model = tiny(name, num_layers=1)
    randomize(model)
    image = rng.uniform(-1, 1, (1, 16, 24, 3)).astype("float32")
    count = model.token_grid.num_tokens
    # Of so many copies of the image each has another token scaled, and the last one none.
    factors = np.ones((count + 1, count, 1), "float32")
    factors[np.arange(count), np.arange(count)] = -3
    edit = {"block00/mlp/sum": lambda tokens: tokens * factors}
    copies = np.repeat(image, count + 1, axis=0)
    scores = np.asarray(vit_tf.intervene(model, edit, "logits")(copies)["logits"])
    differences = np.abs(scores[:-1] - scores[-1]).max(axis=1)
    matter = [token for token in range(count) if differences[token] > 1e-6]
    assert model.pooled_tokens == tuple(matter)
    features = vit_tf.submodel(model, "logits")
    assert type(features).from_config(features.get_config()).pooled_tokens == tuple(matter)


def test_models_without_a_prefix_pool_all_positions():
    bit = tiny("bit small")
    assert tiny("mixer").pooled_tokens == tuple(range(6))
    assert bit.pooled_tokens == tuple(range(bit.token_grid.num_tokens))
