"""A block that all depths share, as in ALBERT, counts once for each of its calls."""

import keras
import numpy as np
import pytest
from keras import layers

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn
F = torch.nn.functional

IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 32, 32, 3)).astype("float32")
DISTANCES = vit_tf.TokenGrid(2, 2, 0, 16).distances()


def mean_distances(weights):
    """The attention distance of each head, from weights (example, head, query, key)."""
    return (np.asarray(weights, np.float64) * DISTANCES).sum(-1).mean((0, 2))


@pytest.mark.slow
def test_each_call_of_a_shared_keras_block_is_measured():
    tokens = keras.Input((4, 8))
    normed = layers.LayerNormalization()(tokens)
    attention = layers.MultiHeadAttention(2, 4, name="attention")
    x = tokens + attention(normed, normed)
    x = x + layers.Dense(8, activation="gelu")(layers.LayerNormalization()(x))
    block = keras.Model(tokens, x, name="block")
    images = keras.Input((32, 32, 3))
    x = layers.Reshape((4, 8))(layers.Conv2D(8, 16, 16, name="patches")(images))
    inputs = []
    for _ in range(3):
        inputs.append(x)
        x = block(x)
    scores = layers.Dense(3, name="head")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(images, scores)

    values = [np.asarray(value) for value in keras.Model(images, [*inputs, x])(IMAGES)]
    similarity = analysis.cka(model, IMAGES).cka.sel(
        layer_x=["block", "block@2", "block@3"], layer_y=["block", "block@2", "block@3"]
    )
    expected = analysis.cka({str(i): value for i, value in enumerate(values[1:])}).cka
    np.testing.assert_allclose(similarity, expected, atol=1e-5)

    result = analysis.attention_distance(model, IMAGES)
    assert [layer.partition("weights")[2] for layer in result.layer.values] == ["", "@2", "@3"]
    norm_of = keras.Model(tokens, normed)
    for distance, value in zip(result.values, values, strict=False):
        query = norm_of(value)
        _, weights = attention(query, query, return_attention_scores=True)
        np.testing.assert_allclose(distance, mean_distances(weights), rtol=1e-4)
    assert len(vit_tf.submodel(model, "block/*/weights*").taps) == 3


class Block(nn.Module):
    """A pre-norm block with fused attention."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def heads(self, x):
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, 4))
        return (part.transpose(1, 2) for part in parts.unbind(2))

    def forward(self, x):
        x = x + self.proj(F.scaled_dot_product_attention(*self.heads(x)).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SharedViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 16, 16)
        self.blocks = nn.ModuleList([Block()] * 3)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.positions = nn.Parameter(torch.randn(1, 4, 8))

    def embed(self, images):
        return self.patches(images).flatten(2).transpose(1, 2) + self.positions

    def forward(self, images):
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


@torch.no_grad()
def test_each_call_of_a_shared_pytorch_block_is_measured():
    torch.manual_seed(0)
    model = SharedViT().eval()
    x = model.embed(torch.tensor(IMAGES).permute(0, 3, 1, 2))
    values, distances = {"embedding": x.numpy()}, []
    for index, block in enumerate(model.blocks):
        query, key, _ = block.heads(x)
        weights = torch.softmax(query @ key.transpose(-1, -2) / 2, dim=-1)
        distances.append(mean_distances(weights))
        x = block(x)
        values[f"block{index:02d}/mlp/sum"] = x.numpy()
    values["norm"] = model.norm(x).numpy()

    features = vit_tf.submodel(model)
    assert list(features.taps) == list(values)
    for tap, value in features(IMAGES).items():
        np.testing.assert_allclose(value, values[tap], atol=1e-5, err_msg=tap)
    np.testing.assert_allclose(analysis.attention_distance(model, IMAGES), distances, rtol=1e-4)
