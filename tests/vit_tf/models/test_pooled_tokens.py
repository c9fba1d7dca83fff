"""The tokens that a model's head reads are those that change its scores."""

import numpy as np
import pytest
from oracles import randomize

import vit_tf
from vit_tf import edits

SIZES = (16, 24, 3), 8, 1, 2, 8, 8, 3
MODELS = {
    "cls": lambda: vit_tf.ViT(*SIZES),
    "registers": lambda: vit_tf.ViT(*SIZES, registers=2),
    "cls and mean": lambda: vit_tf.ViT(*SIZES, registers=2, head_blocks=1),
    "gap": lambda: vit_tf.ViT(*SIZES, pooling="gap"),
    "two heads": lambda: vit_tf.ViT(*SIZES, distillation="heads"),
    "one head": lambda: vit_tf.ViT(*SIZES, distillation="token"),
    "beit": lambda: vit_tf.BEiT(*SIZES),
    "beit cls": lambda: vit_tf.BEiT(*SIZES, pooling="cls"),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_scores_depend_on_the_pooled_tokens_alone(make, rng):
    model = make()
    randomize(model)
    images = rng.uniform(-1, 1, (1, 16, 24, 3)).astype("float32")
    *_, last = (tap for tap in model.taps if tap.endswith("/sum"))

    def scores(token):
        edit = {last: edits.tokens(token, edits.scaled(-3))} if token is not None else {}
        return np.asarray(vit_tf.intervene(model, edit, "logits")(images)["logits"])

    whole, count = scores(None), model.token_grid.num_tokens
    matter = [token for token in range(count) if np.abs(scores(token) - whole).max() > 1e-6]
    assert model.pooled_tokens == tuple(matter)
    features = vit_tf.submodel(model, "logits")
    assert type(features).from_config(features.get_config()).pooled_tokens == tuple(matter)


def test_models_without_a_prefix_pool_all_positions():
    bit = vit_tf.BiT((32, 32, 3), units=(1,), num_classes=3, stem="small", width_factor=0.5)
    assert vit_tf.Mixer(*SIZES[:3], 8, 4, 8, 3).pooled_tokens == tuple(range(6))
    assert bit.pooled_tokens == tuple(range(bit.token_grid.num_tokens))
