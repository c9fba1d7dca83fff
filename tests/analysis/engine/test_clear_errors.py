"""Errors about models and images that a measurement cannot take say what would be right."""

import keras
import numpy as np
import pytest

import vit_tf
from vit_tf import analysis

LAYERS = keras.layers


@pytest.fixture
def images(rng):
    return rng.uniform(-1, 1, (8, 16, 16, 3)).astype("float32")


def test_clips_are_no_images(rng):
    inputs = keras.Input((4, 16, 16, 3))
    x = LAYERS.GlobalAveragePooling3D()(LAYERS.Conv3D(4, 3)(inputs))
    clips = rng.uniform(0, 1, (6, 4, 16, 16, 3)).astype("float32")
    with pytest.raises(ValueError, match=r"\(example, height, width, channel\).*\(6, 4, 16, 16, 3"):
        analysis.mistakes(keras.Model(inputs, LAYERS.Dense(3)(x)), (clips, np.arange(6) % 3))


def test_a_single_logit_has_no_mistakes_but_gradients(images):
    model = keras.Sequential([keras.Input((16, 16, 3)), LAYERS.Flatten(), LAYERS.Dense(1)])
    with pytest.raises(ValueError, match=r"one sigmoid.*shape \(example, 1\)"):
        analysis.mistakes(model, (images, np.arange(8) % 2))
    gradients = analysis.input_gradients(model, images, classes=[0])
    kernel = model.layers[-1].kernel.numpy().reshape(16, 16, 3)
    np.testing.assert_allclose(gradients[0, 0], kernel, rtol=1e-5)


def test_masks_are_no_labels(images, rng):
    inputs = keras.Input((16, 16, 3))
    model = keras.Model(inputs, LAYERS.Conv2D(4, 1)(LAYERS.Conv2D(8, 3, padding="same")(inputs)))
    with pytest.raises(ValueError, match=r"labels of shape \(8, 16, 16\) and type int64"):
        analysis.mistakes(model, (images, rng.integers(0, 4, (8, 16, 16))))


def test_pytorch_modules_say_which_images_they_take(images):
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.conv(x).relu().mean((2, 3)))

    class Squeezed(Net):
        def forward(self, x):
            return super().forward(x)[:, 0]

    class WithoutGradients(Net):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    channels_first = np.moveaxis(images, -1, 1)
    features = vit_tf.submodel(Net().eval(), "conv")
    for wrong in (channels_first, torch.from_numpy(channels_first.copy())):
        with pytest.raises(ValueError, match=r"images of shape .*Received: .*3, 16, 16\)"):
            features(wrong)
    assert features(np.moveaxis(channels_first, 1, -1))["conv"].shape == (8, 14, 14, 4)
    with pytest.raises(ValueError, match=r"returns one number for each image"):
        analysis.grad_cam(Squeezed().eval(), images[:2], classes=[0], layers="conv")
    with pytest.raises(ValueError, match=r"torch\.no_grad") as error:
        analysis.input_gradients(WithoutGradients().eval(), images[:2], classes=[0])
    assert "SavedModel" not in str(error.value)


def test_a_module_of_two_encoders_names_the_one_of_images(images):
    torch = pytest.importorskip("torch")

    class TwoEncoders(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.text_model, self.vision_model = torch.nn.Linear(3, 3), torch.nn.Conv2d(3, 4, 3)

        def forward(self, tokens, pixels=None):
            if pixels is None:
                raise ValueError("You have to specify pixels")

    with pytest.raises(ValueError, match=r"specify pixels.*submodule 'vision_model'"):
        vit_tf.submodel(TwoEncoders().eval(), "vision_model")(images)
