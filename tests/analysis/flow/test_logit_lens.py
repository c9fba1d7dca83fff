import keras
import numpy as np
import pytest
from oracles import dense, norm, randomize, weights_of

import vit_tf
from vit_tf import analysis


def small_vit(**options):
    vit = vit_tf.ViT((8, 8, 3), 4, 3, 2, 8, 16, 5, **options)
    randomize(vit)
    return vit


@pytest.mark.parametrize("pooling", ["cls", pytest.param("gap", marks=pytest.mark.slow)])
def test_every_layer_is_read_by_the_norm_and_the_head(rng, pooling):
    vit, images = (
        small_vit(pooling=pooling),
        rng.uniform(-1, 1, size=(3, 8, 8, 3)).astype("float32"),
    )
    features = vit_tf.submodel(vit, "embedding", "block*/mlp/sum", "logits")
    result = analysis.logit_lens(features, images)
    taps, weights = features(images), weights_of(vit)
    assert result.layer.values.tolist() == list(taps)[:-1]
    for layer in result.layer.values:
        tokens = norm(taps[layer].numpy().astype(float), weights, "norm", 1e-6)
        pooled = tokens[:, 0] if pooling == "cls" else tokens.mean(axis=1)
        found = result.sel(layer=layer)
        np.testing.assert_allclose(found, dense(pooled, weights, "head"), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result[:, -1], vit(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_units_of_the_last_stage_of_a_resnet(rng):
    bit = vit_tf.BiT((16, 16, 3), units=(1, 2), num_classes=5, stem="small", width_factor=0.5)
    randomize(bit)
    images = rng.uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    features = vit_tf.submodel(bit, "stage2/*/sum", "logits")
    result = analysis.logit_lens(features, images)
    assert result.layer.values.tolist() == ["stage2/unit01/sum", "stage2/unit02/sum"]
    np.testing.assert_allclose(result[:, -1], bit(images), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"has\. Received: root"):
        analysis.logit_lens(vit_tf.submodel(bit, "root", "stage2/*/sum", "logits"), images)


def test_models_that_cannot_be_cut_are_told():
    vit, images = small_vit(), np.zeros((1, 8, 8, 3), "float32")
    with pytest.raises(ValueError, match="'vit' cannot be split"):
        analysis.logit_lens(vit_tf.submodel(vit, "logits"), images)
    with pytest.raises(ValueError, match="'<lambda>' cannot be split"):
        analysis.logit_lens(lambda images: {"logits": images[:, 0, 0]}, images)
    x = inputs = keras.Input((8, 8, 3))
    two = keras.layers.Conv2D(4, 3, padding="same", name="a")(x)
    x = keras.layers.Add()([two, keras.layers.Conv2D(4, 3, padding="same", name="b")(x)])
    x = keras.layers.GlobalAveragePooling2D(name="logits")(x)
    model = keras.Model(inputs, x)
    with pytest.raises(ValueError, match="cannot be split"):
        analysis.logit_lens(vit_tf.submodel(model, "a", "logits"), images)
