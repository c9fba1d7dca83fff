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


def functional_mixer(num_blocks=3, dim=12, size=32, patch_size=8):
    """An MLP-Mixer, whose sums are layers."""
    images = keras.Input((size, size, 3))
    x = layers.Conv2D(dim, patch_size, patch_size, name="patches")(images)
    x = layers.Reshape(((size // patch_size) ** 2, dim))(x)
    for block in range(num_blocks):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(x.shape[1])(layers.Dense(10, activation="gelu")(y))
        x = layers.Add(name=f"tokens_{block}")([x, layers.Permute((2, 1))(y)])
        y = layers.Dense(2 * dim, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add(name=f"channels_{block}")([x, layers.Dense(dim)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="final_norm")(x))
    return keras.Model(images, layers.Dense(5, name="head")(x), name="functional_mixer")


def functional_convmixer(num_blocks=3, dim=12, size=32, patch_size=4):
    """A ConvMixer: a skip around a depthwise convolution, and a pointwise convolution after it."""

    def normalized(x, name=None):
        return layers.BatchNormalization(name=name)(layers.Activation("gelu")(x))

    images = keras.Input((size, size, 3))
    x = normalized(layers.Conv2D(dim, patch_size, patch_size)(images), "patches")
    for block in range(num_blocks):
        y = layers.DepthwiseConv2D(5, padding="same")(x)
        x = layers.Add()([normalized(y), x])
        x = normalized(layers.Conv2D(dim, 1)(x), f"block_{block}")
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(5, name="head")(x), name="functional_convmixer")


def functional_densenet(num_blocks=45, growth=2, size=16):
    """Blocks that concatenate what they compute to what they are given."""
    images = keras.Input((size, size, 3))
    x = layers.Conv2D(4, 3, 2, padding="same", name="stem")(images)
    for block in range(num_blocks):
        y = layers.Conv2D(growth, 3, padding="same", activation="relu")(x)
        x = layers.Concatenate(name=f"block_{block}")([x, y])
    x = layers.GlobalAveragePooling2D(name="pooled")(x)
    return keras.Model(images, layers.Dense(5, name="head")(x), name="functional_densenet")


def sequential_cnn(size=32):
    """Convolutions and poolings in a row."""
    stages = [
        layer
        for number, width in enumerate((8, 12, 16))
        for layer in (
            layers.Conv2D(width, 3, padding="same", activation="relu", name=f"conv_{number}"),
            layers.MaxPooling2D(),
        )
    ]
    head = [layers.Flatten(), layers.Dropout(0.5), layers.Dense(5, name="head")]
    return keras.Sequential([keras.Input((size, size, 3)), *stages, *head])


class PreNormBlock(layers.Layer):
    """A block of a transformer, written as a layer of layers."""

    def __init__(self, dim, is_parallel=False, **kwargs):
        super().__init__(**kwargs)
        self.norm_1, self.norm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(2, dim // 2)
        self.hidden, self.out = layers.Dense(2 * dim, activation="gelu"), layers.Dense(dim)
        self.is_parallel = is_parallel

    def call(self, x):
        y = self.norm_1(x)
        if self.is_parallel:
            return x + self.attention(y, y) + self.out(self.hidden(y))
        x = x + self.attention(y, y)
        return x + self.out(self.hidden(self.norm_2(x)))


class SubclassedViT(keras.Model):
    """A ViT with CLS token whose blocks are in a list, or in a layer of their own."""

    def __init__(self, num_blocks=3, dim=16, has_encoder=False, is_parallel=False):
        super().__init__(name="subclassed_vit")
        blocks = [PreNormBlock(dim, is_parallel, name=f"block_{i}") for i in range(num_blocks)]
        self.patches = layers.Conv2D(dim, 8, 8, name="patches")
        self.cls = self.add_weight(shape=(1, 1, dim), name="cls")
        self.blocks = keras.Sequential(blocks, name="encoder") if has_encoder else blocks
        self.norm, self.head = layers.LayerNormalization(name="norm"), layers.Dense(5, name="head")

    def call(self, images):
        x = self.patches(images)
        x = ops.reshape(x, (ops.shape(x)[0], -1, x.shape[-1]))
        cls = ops.broadcast_to(self.cls, (ops.shape(x)[0], 1, x.shape[-1]))
        x = ops.concatenate([cls, x], axis=1)
        for block in [self.blocks] if isinstance(self.blocks, layers.Layer) else self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def subclassed_vit(**options):
    """A built `SubclassedViT` of images of 32 pixels."""
    model = SubclassedViT(**options)
    model(keras.Input((32, 32, 3)))
    return model


class ResidualUnit(layers.Layer):
    """Two convolutions and a skip, with a projection where the stride is not 1."""

    def __init__(self, width, stride=1, **kwargs):
        super().__init__(**kwargs)
        self.conv_1 = layers.Conv2D(width, 3, stride, padding="same", activation="relu")
        self.conv_2 = layers.Conv2D(width, 3, padding="same")
        self.shortcut = layers.Conv2D(width, 1, stride) if stride > 1 else layers.Identity()

    def call(self, x):
        return ops.relu(self.shortcut(x) + self.conv_2(self.conv_1(x)))


class SubclassedResNet(keras.Model):
    """Three stages of two units, each stage a `Sequential`."""

    def __init__(self):
        super().__init__(name="subclassed_resnet")
        self.stem = layers.Conv2D(8, 3, padding="same", name="stem")
        self.stages = [
            keras.Sequential(
                [ResidualUnit(w, 1 + (i == 0), name=f"unit_{s}_{i}") for i in range(2)],
                name=f"stage_{s}",
            )
            for s, w in enumerate((8, 12, 16))
        ]
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(5, name="head")

    def call(self, images):
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.pool(x))


def subclassed_resnet():
    """A built `SubclassedResNet` of images of 32 pixels."""
    model = SubclassedResNet()
    model(keras.Input((32, 32, 3)))
    return model


def functional_unet(size=32):
    """Two stages down and up, joined by concatenations."""

    def convolved(x, width, name):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        return layers.Conv2D(width, 3, padding="same", activation="relu", name=name)(x)

    images = keras.Input((size, size, 3))
    first = convolved(images, 8, "down_0")
    second = convolved(layers.MaxPooling2D()(first), 12, "down_1")
    x = convolved(layers.MaxPooling2D()(second), 16, "bottom")
    x = convolved(layers.Concatenate()([layers.UpSampling2D()(x), second]), 12, "up_1")
    x = convolved(layers.Concatenate()([layers.UpSampling2D()(x), first]), 8, "up_0")
    return keras.Model(images, layers.Conv2D(5, 1, name="head")(x), name="functional_unet")
