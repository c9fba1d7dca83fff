"""The tokens that a model's head reads are those that change its scores."""

import numpy as np
import pytest
from oracles import randomize
from tiny_models import tiny

import vit_tf
from vit_tf import edits

MODELS = ("vit", "dinov2", "gap", "deit", "deit token", "beit", "beit shared")


@pytest.mark.parametrize("name", MODELS)
def test_scores_depend_on_the_pooled_tokens_alone(name, rng):
    model = tiny(name)
    randomize(model)
    images = rng.uniform(-1, 1, (1, 16, 24, 3)).astype("float32")
    *_, last = (tap for tap in model.taps if tap.endswith("/sum"))

    def scores(token):
        edit = {last: edits.tokens(token, edits.scaled(-3))} if token is not None else {}
        return np.asarray(vit_tf.intervene(model, edit, "logits")(images)["logits"])

    intact, count = scores(None), model.token_grid.num_tokens
    matter = [token for token in range(count) if np.abs(scores(token) - intact).max() > 1e-6]
    assert model.pooled_tokens == tuple(matter)
    features = vit_tf.submodel(model, "logits")
    assert type(features).from_config(features.get_config()).pooled_tokens == tuple(matter)


def test_models_without_a_prefix_pool_all_positions():
    bit = tiny("bit small")
    assert tiny("mixer").pooled_tokens == tuple(range(6))
    assert bit.pooled_tokens == tuple(range(bit.token_grid.num_tokens))
