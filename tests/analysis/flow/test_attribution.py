"""Saliency of classes: maps and gradients of the input, beside autograd in torch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize

import vit_tf
from vit_tf import analysis

pytestmark = pytest.mark.usefixtures("without_graphs")


def small_cnn(seed=0):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    x = images = keras.Input((12, 16, 3))
    x = layers.Conv2D(5, 3, strides=2, padding="valid", activation="relu", name="first")(x)
    x = layers.Conv2D(7, 2, padding="valid", name="second")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(layers.ReLU(name="relu")(x))
    return keras.Model(images, layers.Dense(4, name="classes")(x))


@pytest.mark.usefixtures("in_graphs")
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


def small_vit():
    vit = vit_tf.ViT((8, 12, 3), 4, 2, 2, 8, 16, 5)
    randomize(vit)
    return vit


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
def test_smoothgrad_is_that_of_autograd_in_torch_on_the_same_noise(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch_vit import torch_vit

    vit, images = small_vit(), rng.uniform(-1, 1, size=(2, 8, 12, 3)).astype("float32")
    features = vit_tf.submodel(vit, "logits")
    result = analysis.input_gradients(features, images, [4, 1], samples=3, noise=0.2, seed=7)
    for example, image in enumerate(images):
        expected = np.zeros((2, *image.shape))
        for sample in range(3):
            drawn = tf.random.stateless_normal(image.shape, (7, sample)).numpy()
            noisy = image + 0.2 * (image.max() - image.min()) * drawn
            x = torch.tensor(noisy[None].astype(float), requires_grad=True)
            logits, _ = torch_vit(vit, x)
            for place, one in enumerate((4, 1)):
                (gradient,) = torch.autograd.grad(logits[0, one], x, retain_graph=True)
                expected[place] += gradient[0].numpy() / 3
        np.testing.assert_allclose(result[example], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("in_graphs")
def test_gradient_of_a_linear_score_is_its_kernel_whatever_the_noise(rng):
    kernel = rng.normal(size=(4, 6, 3, 2)).astype("float32")

    def features(images):
        return {"scores": tf.einsum("erck,rckn->en", images, kernel)}

    images = rng.uniform(-1, 1, size=(3, 4, 6, 3)).astype("float32")
    for options in ({"samples": 1, "noise": 0}, {"samples": 4, "noise": 3.0}):
        result = analysis.input_gradients(features, images, [1, 0], scores="scores", **options)
        expected = np.broadcast_to(np.moveaxis(kernel, -1, 0)[::-1], (3, 2, 4, 6, 3))
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_averaging_over_noise_smooths_a_kink():
    """d|x| / dx at 0 is a mean of signs, near 0, where the plain gradient beside it is 1."""

    def features(images):
        return {"logits": tf.reduce_sum(tf.abs(images), (1, 2, 3))[:, None]}

    image = np.full((1, 16, 16, 1), 1e-3, "float32")
    image[0, 0, 0] = 1.0  # which tells the range
    plain = analysis.input_gradients(features, image, [0], samples=1, noise=0)
    smooth = analysis.input_gradients(features, image, [0], samples=64, noise=0.5)
    np.testing.assert_array_equal(plain, 1)
    assert abs(smooth.values[0, 0, 1:].mean()) < 0.05
    assert smooth.values[0, 0, 0, 0, 0] > 0.9


@pytest.mark.parametrize("options", [{"samples": 0}, {"samples": 2.5}, {"noise": -1}])
def test_impossible_samples(options):
    with pytest.raises(ValueError, match="Expected samples to be"):
        analysis.input_gradients(lambda images: {}, np.zeros((1, 2, 2, 1)), [0], **options)


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
def test_noisy_images_that_share_a_batch_give_what_single_ones_do(rng, monkeypatch):
    vit, images = small_vit(), rng.uniform(-1, 1, size=(2, 8, 12, 3)).astype("float32")

    def gradients():
        # Features of their own: those of an earlier call keep its graph, with its number at once.
        features = vit_tf.submodel(vit, "logits")
        return analysis.input_gradients(features, images, [4, 1], samples=6, noise=0.2, seed=7)

    together = gradients()
    for pixels in (1, 3 * 2 * 2 * 8 * 12):  # one sample at once, and three
        monkeypatch.setattr("vit_tf.analysis.flow.attribution.PIXELS_AT_ONCE", pixels)
        np.testing.assert_allclose(together, gradients(), rtol=1e-4, atol=1e-6)


def square_of_sums(rng):
    """A model of two scores, each the square of a linear function of the image, and its kernel."""
    inputs = keras.Input((4, 5, 3))
    dense = keras.layers.Dense(2, use_bias=False)
    scores = keras.ops.square(dense(keras.layers.Flatten()(inputs)))
    model = keras.Model(inputs, scores)
    kernel = rng.normal(size=(60, 2)).astype("float32")
    dense.kernel.assign(kernel)
    return model, kernel.astype(np.float64)


@pytest.mark.parametrize("baseline", [0.0, -0.5])
def test_integrated_gradients_of_a_square_are_those_of_the_formula(rng, baseline):
    """With s = w . x, the attribution of pixel i is (x_i - b_i) w_i (s(x) + s(b))."""
    model, kernel = square_of_sums(rng)
    images = rng.uniform(-1, 1, (3, 4, 5, 3)).astype("float32")
    result = analysis.integrated_gradients(model, images, [1, 0], steps=1, baseline=baseline)
    x, b = images.reshape(3, 60).astype(np.float64), np.full(60, baseline)
    for place, number in enumerate((1, 0)):
        w = kernel[:, number]
        expected = (x - b) * w * (x @ w + b @ w)[:, None]
        found = result.isel({"class": place}).values.reshape(3, 60)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_integrated_gradients_add_up_to_the_change_of_the_score(rng):
    model, images = small_cnn(), rng.normal(size=(2, 12, 16, 3)).astype("float32")
    result = analysis.integrated_gradients(model, images, [0, 3], steps=200)
    scores = model(images).numpy() - model(np.zeros_like(images)).numpy()
    total = result.sum(("row", "column", "channel"))
    np.testing.assert_allclose(total, scores[:, [0, 3]], atol=2e-3)
    with pytest.raises(ValueError, match="steps to be an integer"):
        analysis.integrated_gradients(model, images, steps=0)


def test_integrated_gradients_are_those_of_captum(rng):
    torch = pytest.importorskip("torch")
    captum = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 5, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(5 * 36, 4)
    ).eval()
    images = rng.normal(size=(2, 8, 8, 3)).astype("float32")
    result = analysis.integrated_gradients(module, images, [2], steps=7)
    batch = torch.from_numpy(np.moveaxis(images, -1, 1).copy())
    theirs = captum.IntegratedGradients(module).attribute(batch, target=2, n_steps=7)
    expected = np.moveaxis(theirs.detach().numpy(), 1, -1)
    np.testing.assert_allclose(result.isel({"class": 0}), expected, rtol=1e-4, atol=1e-5)
