import keras
import numpy as np
import pytest

import vit_tf
from vit_tf import analysis


def small_cnn(seed=0):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    x = images = keras.Input((12, 16, 3))
    x = layers.Conv2D(5, 3, strides=2, padding="valid", activation="relu", name="first")(x)
    x = layers.Conv2D(7, 2, padding="valid", name="second")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(layers.ReLU(name="relu")(x))
    return keras.Model(images, layers.Dense(4, name="classes")(x))


def test_maps_are_those_of_autograd_in_torch(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.nn import functional

    model, images = small_cnn(), rng.normal(size=(2, 12, 16, 3)).astype("float32")
    features = vit_tf.submodel(model, "first", "second", "classes")
    result = analysis.grad_cam(features, images, [2, 0], scores="classes")
    assert result.layer.values.tolist() == ["first", "second"]
    kernels = [torch.tensor(w.numpy().astype(float)) for w in model.weights]
    x = torch.tensor(images.astype(float)).permute(0, 3, 1, 2)
    first = functional.conv2d(x, kernels[0].permute(3, 2, 0, 1), kernels[1], stride=2).relu()
    first.requires_grad_(True)
    second = functional.conv2d(first, kernels[2].permute(3, 2, 0, 1), kernels[3])
    scores = second.relu().mean((2, 3)) @ kernels[4] + kernels[5]
    for place, one in enumerate((2, 0)):
        total = scores[:, one].sum()
        for maps, layer in ((first, "first"), (second, "second")):
            (gradient,) = torch.autograd.grad(total, maps, retain_graph=True)
            cam = (gradient.mean((2, 3), keepdim=True) * maps).sum(1, keepdim=True).relu()
            large = functional.interpolate(cam, size=(12, 16), mode="bilinear", align_corners=False)
            found = result.sel(layer=layer).isel({"class": place})
            np.testing.assert_allclose(found, large[:, 0].detach(), rtol=1e-5, atol=1e-6)
            assert found.max() > 0


def test_of_the_layer_before_an_average_and_a_head_it_is_the_class_activation_map(rng):
    """w_k is then the head's kernel over the number of places (Selvaraju et al., appendix A)."""
    x = images = keras.Input((4, 4, 3))
    x = keras.layers.Conv2D(6, 1, name="maps")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, keras.layers.Dense(3, name="logits")(x))
    batch = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    result = analysis.grad_cam(vit_tf.submodel(model, "maps", "logits"), batch, [0, 1, 2])
    maps = vit_tf.submodel(model, "maps")(batch)["maps"].numpy()
    kernel = model.get_layer("logits").kernel.numpy()
    expected = np.maximum(np.einsum("erck,kn->enrc", maps, kernel) / 16, 0)
    np.testing.assert_allclose(result[:, :, 0], expected, rtol=1e-5, atol=1e-6)


def test_layers_that_are_no_maps_are_named():
    features = vit_tf.submodel(small_cnn(), "first", "pool", "classes")
    with pytest.raises(ValueError, match="Received: pool"):
        analysis.grad_cam(features, np.zeros((1, 12, 16, 3), "float32"), [0], scores="classes")
