import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize

import vit_tf
from vit_tf import TokenGrid, analysis


def test_relevance_is_that_of_autograd_in_torch(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch_vit import torch_vit

    vit = vit_tf.ViT((8, 12, 3), 4, 3, 2, 8, 16, 5)
    randomize(vit)
    images = rng.uniform(-1, 1, size=(2, 8, 12, 3))
    features = vit_tf.submodel(vit, "block*/attention/weights", "logits")
    result = analysis.gradient_attention(features, images.astype("float32"), [3, 0])
    assert result["class"].values.tolist() == [3, 0]
    for (example, place), outputs in np.ndenumerate(np.empty((2, 2))):
        logits, attention = torch_vit(vit, torch.tensor(images[[example]], requires_grad=True))
        gradients = torch.autograd.grad(logits[0, [3, 0][place]], attention)
        relevance = np.eye(vit.token_grid.num_tokens)
        for a, gradient in zip(attention, gradients, strict=True):
            positive = np.maximum((a * gradient)[0].detach().numpy(), 0).mean(axis=0)
            relevance = relevance + positive @ relevance
        outputs = result.values[example, place]
        np.testing.assert_allclose(outputs, relevance, rtol=1e-5, atol=1e-5)
        assert np.abs(relevance - np.eye(len(relevance))).max() > 1e-3


def test_a_score_that_is_one_attention_weight():
    """Its gradient is 1 there and 0 elsewhere, so that the relevance is that weight alone."""
    grid = TokenGrid(2, 2, 1, 4)
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(1, 2, 5)).astype("float32")

    def features(images):
        a = weights + 0.0 * tf.reduce_sum(images, (1, 2, 3))[:, None, None, None]
        return {"a/weights": a, "logits": tf.stack([a[:, 0, 0, 2], -a[:, 1, 0, 3]], axis=1)}

    result = analysis.gradient_attention(features, np.zeros((1, 8, 8, 3), "float32"), [0, 1], grid)
    expected = np.stack([np.eye(5), np.eye(5)])
    expected[0, 0, 2] += weights[0, 0, 0, 2] / 2
    np.testing.assert_allclose(result[0], expected, rtol=1e-6)


@pytest.mark.slow
def test_features_without_gradients_are_refused(tmp_path):
    vit = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 5)
    features = vit_tf.submodel(vit, "*/weights", "logits")
    features.export(tmp_path / "saved", verbose=False)
    saved, images = vit_tf.load_features(tmp_path / "saved"), np.zeros((1, 8, 8, 3), "float32")
    with pytest.raises(ValueError, match=r"a SavedModel does not provide these gradients.*block00"):
        analysis.gradient_attention(saved, images, [1])
    with pytest.raises(ValueError, match=r"from 0 to 4. Received: \[5\]"):
        analysis.gradient_attention(features, images, [5])
    with pytest.raises(ValueError, match="Received: scores='nothing'; the layers are"):
        analysis.gradient_attention(features, images, [1], scores="nothing")
