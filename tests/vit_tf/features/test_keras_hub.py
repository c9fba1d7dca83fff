"""Models of KerasHub, whose blocks are inside of layers: against their layers called by hand."""

from importlib.util import find_spec

import lazy_loader
import numpy as np
import pytest

import vit_tf
from vit_tf import analysis

pytestmark = pytest.mark.skipif(not find_spec("keras_hub"), reason="keras_hub is not installed")
hub = lazy_loader.load("keras_hub")  # seconds, which only the process that runs these waits
IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 32, 32, 3)).astype(np.float32)


def test_logit_lens_of_a_vit_whose_encoder_is_one_layer():
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12, "mlp_dim": 20}
    backbone = hub.models.ViTBackbone(image_shape=(32, 32, 3), patch_size=8, **sizes)
    model = hub.models.ViTImageClassifier(backbone, 5)
    found = analysis.logit_lens(model, IMAGES)

    x, encoder = IMAGES, backbone.get_layer("vit_encoder")
    layers = [backbone.get_layer("vit_patching_and_embedding"), *encoder.encoder_layers]
    assert found.sizes == {"example": 8, "layer": 3, "class": 5}
    for number, layer in enumerate(layers):
        x = layer(x)
        scores = model.output_dense(encoder.layer_norm(x)[:, 0])
        np.testing.assert_allclose(found[:, number], scores, atol=1e-5)
    np.testing.assert_allclose(found[:, -1], model(IMAGES), atol=1e-5)


@pytest.mark.slow
def test_blocks_of_stages_are_read():
    sizes = {"embed_dim": 12, "depths": (2, 2, 1), "num_heads": (2, 2, 2), "window_size": 4}
    model = hub.models.SwinTransformerBackbone(image_shape=(32, 32, 3), patch_size=2, **sizes)
    features = vit_tf.submodel(model)
    blocks = [f"stage_{stage}/blocks_{i}" for stage, i in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]]
    assert [tap for tap in features.taps if "blocks" in tap] == blocks
    values, x = features(IMAGES), model.patch_embedding(IMAGES)
    for number, stage in enumerate(model.stages):
        for i, block in enumerate(stage.blocks):
            x = block(x, training=False)
            found = values[f"stage_{number}/blocks_{i}"]
            np.testing.assert_allclose(found, x, atol=1e-5)
        if stage.downsample is not None:
            x = stage.downsample(x, H=stage.input_resolution[0], W=stage.input_resolution[1])


@pytest.mark.slow
def test_the_grid_of_tokens_whose_number_is_not_in_their_shapes():
    sizes = {"num_layers": 2, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 24}
    model = hub.models.DINOV3Backbone(patch_size=8, image_shape=(32, 48, 3), **sizes)
    assert analysis.features_of(model).token_grid == vit_tf.TokenGrid(4, 6, 5, 8)
