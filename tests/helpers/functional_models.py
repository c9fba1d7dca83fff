"""Models written with the functional API, whose sums are operations and no layers."""

import keras
from keras import layers, ops


def functional_vit(num_blocks=3, dim=16, size=32, patch_size=8, num_classes=5):
    """A ViT without CLS and positions."""
    images = keras.Input((size, size, 3))
    x = layers.Conv2D(dim, patch_size, patch_size, name="patches")(images)
    x = ops.reshape(x, (-1, (size // patch_size) ** 2, dim))
    for _ in range(num_blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, dim // 2)(y, y)
        y = layers.Dense(2 * dim, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(dim)(y)
    x = ops.mean(layers.LayerNormalization(name="final_norm")(x), axis=1)
    scores = layers.Dense(num_classes, name="head")(x)
    return keras.Model(images, scores, name="functional_vit")
