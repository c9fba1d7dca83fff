"""Models and images in the forms in which users of PyTorch have them: values, or a way out."""

import keras
import numpy as np
import pytest
from keras import layers

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(-1, 1, (6, 16, 16, 3)).astype("float32")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


class Squeezed(Plain):
    def forward(self, x):
        return super().forward(x).squeeze()


def test_scores_of_one_image_that_are_squeezed(images):
    torch.manual_seed(0)
    module, squeezed = Plain().eval(), Squeezed().eval()
    squeezed.load_state_dict(module.state_dict())
    one = torch.from_numpy(np.moveaxis(images[:1], -1, 1).copy()).requires_grad_()
    gradient = torch.autograd.grad(module(one)[0, 1], one)[0].movedim(1, -1).numpy()
    found = analysis.input_gradients(squeezed, images[:1], 1, samples=1, noise=0)
    np.testing.assert_allclose(np.squeeze(found), np.squeeze(gradient), atol=1e-7)
    read = [analysis.features_of(m, "scores")(images[:1])["logits"] for m in (module, squeezed)]
    np.testing.assert_array_equal(*read)


def test_gradients_through_a_saved_model(images, tmp_path):
    x = keras.Input((16, 16, 3))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(x))
    model = keras.Model(x, layers.Dense(4, name="head")(pooled))
    model.export(tmp_path / "saved", verbose=False)
    saved = layers.TFSMLayer(str(tmp_path / "saved"), call_endpoint="serve")
    wrapped = keras.Sequential([keras.Input((16, 16, 3)), saved])
    expected = analysis.input_gradients(model, images[:1], 1, samples=1, noise=0)
    found = analysis.input_gradients(wrapped, images[:1], 1, samples=1, noise=0, scores=saved.name)
    np.testing.assert_allclose(found, expected, atol=1e-6)


class Head(Plain):
    """A cosine classifier, whose kernel is normalized."""

    def forward(self, x):
        pooled = torch.relu(self.conv(x)).mean((2, 3))
        return 30 * nn.functional.normalize(pooled) @ nn.functional.normalize(self.head.weight).T


def test_the_error_names_the_vector_that_may_be_scores(images):
    torch.manual_seed(0)
    module, labels = Head().eval(), np.arange(6) % 4
    with pytest.raises(ValueError, match="scores='logits' if"):
        analysis.mistakes(module, (images, labels))
    found = analysis.mistakes(module, (images, labels), scores="logits")
    with torch.no_grad():
        scores = module(torch.from_numpy(np.moveaxis(images, -1, 1).copy())).numpy()
    assert found.attrs["accuracy"] == pytest.approx(np.mean(scores.argmax(-1) == labels))


class WithContext(Plain):
    def forward(self, x, context):
        return super().forward(x) + context


def test_what_is_no_model_of_images_is_refused_with_the_way_out(images):
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(1568, 4)))
    inputs = [keras.Input((16, 16, 3)), keras.Input((4,))]
    two = keras.Model(inputs, layers.GlobalAveragePooling2D()(inputs[0]))
    for model, words in (
        (Plain, r"the class Plain in place of a model: Plain\(\.\.\.\)"),
        (scripted, "layers of torch.jit.script: measure the module itself"),
        (WithContext(), "whose forward takes the images alone"),
        (two, "fix the others in a function of images"),
    ):
        with pytest.raises(ValueError, match=words):
            analysis.cka(model, images)


FORMS = {
    "pairs": lambda x, y: (x, y),
    "images alone": lambda x, y: x,
    "dicts": lambda x, y: {"pixel_values": x, "labels": y},
    "pairs with numbers": lambda x, y: (x, y, y),
}


@pytest.mark.parametrize("form", FORMS)
def test_data_of_torch_is_read_as_arrays_are(form, images):
    tensors, labels = torch.from_numpy(np.moveaxis(images, -1, 1).copy()), [0, 1, 2, 0, 1, 2]
    examples = [FORMS[form](x, y) for x, y in zip(tensors, labels, strict=True)]
    loader = torch.utils.data.DataLoader(examples, batch_size=4)
    torch.manual_seed(0)
    module = Plain().eval()
    expected = vit_tf.extract_features(module, images, layers="conv")["conv"]
    found = vit_tf.extract_features(module, loader, layers="conv")["conv"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if form != "images alone":
        right = analysis.ridge_probe(module, (images, labels), (images, labels), layers="conv")
        probed = analysis.ridge_probe(module, loader, loader, layers="conv")
        np.testing.assert_allclose(probed, right, atol=1e-6)


def test_a_map_style_dataset_of_torch_and_other_containers(images):
    tensors = torch.from_numpy(np.moveaxis(images, -1, 1).copy())
    dataset = torch.utils.data.TensorDataset(tensors, torch.arange(6))
    module = Plain().eval()
    expected = vit_tf.extract_features(module, images, layers="conv")["conv"]
    found = vit_tf.extract_features(module, dataset, layers="conv")["conv"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="Received: generator"):
        vit_tf.extract_features(module, (x for x in [images]), layers="conv")


def test_a_sequential_model_that_its_first_call_has_built_is_measured():
    images = np.random.default_rng(0).uniform(size=(12, 16, 16, 3)).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, 2, activation="relu", name="first"),
            keras.layers.Conv2D(8, 3, 2, activation="relu", name="second"),
            keras.layers.GlobalAveragePooling2D(name="pooled"),
            keras.layers.Dense(3),
        ]
    )
    model.predict(images[:5], verbose=0)  # whose size is not that of later batches
    features = analysis.extract_features(model, images)
    assert list(features) == ["first", "second", "pooled"]
    right = model.layers[2](model.layers[1](model.layers[0](images)))
    np.testing.assert_allclose(features["pooled"], right, rtol=1e-5)
    scores = vit_tf.submodel(model, "dense*")(images)  # with the weights of the model
    np.testing.assert_allclose(*scores.values(), model.layers[3](right), rtol=1e-5)
