"""Models and images in the forms in which users of PyTorch have them: values, or a way out."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from PIL import Image

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
    with pytest.raises(ValueError, match="for example scores='logits'"):
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


@pytest.mark.parametrize(("form", "batch_size"), [*((form, 4) for form in FORMS), ("pairs", None)])
def test_data_of_torch_is_read_as_arrays_are(form, batch_size, images):
    tensors, labels = torch.from_numpy(np.moveaxis(images, -1, 1).copy()), [0, 1, 2, 0, 1, 2]
    examples = [FORMS[form](x, y) for x, y in zip(tensors, labels, strict=True)]
    loader = torch.utils.data.DataLoader(examples, batch_size=batch_size)
    torch.manual_seed(0)
    module = Plain().eval()
    expected = vit_tf.extract_features(module, images, layers="conv")["conv"]
    found = vit_tf.extract_features(module, loader, layers="conv")["conv"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if form != "images alone":
        right = analysis.ridge_probe(module, (images, labels), (images, labels), layers="conv")
        probed = analysis.ridge_probe(module, loader, loader, layers="conv")
        np.testing.assert_allclose(probed, right, atol=1e-6)


def test_several_labels_for_an_image_are_refused(images):
    rows = [[0], [1, 2], [0]] * 2
    ragged = tf.ragged.constant(rows)
    for labels in (rows, ragged):
        with pytest.raises(ValueError, match=r"one label for each image, .* 6 rows of different"):
            analysis.mistakes(Plain(), (images, labels))
    batches = tf.data.Dataset.from_tensor_slices((images, ragged)).ragged_batch(3)
    with pytest.raises(ValueError, match="not masks or several labels"):
        analysis.mistakes(Plain(), batches)


def test_a_map_style_dataset_of_torch_and_other_containers(images):
    tensors = torch.from_numpy(np.moveaxis(images, -1, 1).copy())
    dataset = torch.utils.data.TensorDataset(tensors, torch.arange(6))
    module = Plain().eval()
    expected = vit_tf.extract_features(module, images, layers="conv")["conv"]
    found = vit_tf.extract_features(module, dataset, layers="conv")["conv"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="Received: generator"):
        vit_tf.extract_features(module, (x for x in [images]), layers="conv")


class Stream(torch.utils.data.IterableDataset):
    """Examples of unknown number, as of webdataset."""

    def __init__(self, examples):
        self.examples = examples

    def __iter__(self):
        return iter(self.examples)


class Examples(torch.utils.data.Dataset):
    """Examples by number, as of torchvision's ImageFolder."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, number):
        return self.examples[number]


def as_png(image):
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def apart(rows):
    return [image for image, _ in rows], torch.tensor([label for _, label in rows])


def test_pillow_images_and_streams_of_torch_are_read():
    rng, load = np.random.default_rng(0), torch.utils.data.DataLoader
    pixels = [rng.integers(0, 256, (*size, 3)).astype("uint8") for size in ((8, 8), (16, 8))]
    pictures = [(Image.fromarray(x), label) for label, x in enumerate(pixels)]
    module = Plain().eval()
    module.preprocessing = vit_tf.Preprocessing.from_range((8, 8), 0, 1)
    listed = [image for image, _ in pictures]
    resized = np.stack([module.preprocessing(x) for x in pixels])
    expected = vit_tf.extract_features(module, resized, layers="conv")["conv"]
    forms = {
        "list": listed,
        "encoded": list(map(as_png, listed)),
        "data set": Examples(pictures),
        "dicts": Examples([{"image": x, "label": y} for x, y in pictures]),
        "stream": Stream(pictures),
        "loader of lists": load(Examples(pictures), 2, collate_fn=apart),
        "loader of rows": load(Examples(pictures), 2, collate_fn=list),
    }
    for name, form in forms.items():
        found = vit_tf.extract_features(module, form, layers="conv")["conv"]
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)
    tensors = [(torch.from_numpy(np.moveaxis(x, -1, 0).copy()), y) for y, x in enumerate(resized)]
    for stream in (Stream(tensors), load(Stream(tensors), 2)):
        found = vit_tf.extract_features(module, stream, layers="conv")["conv"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="undecodable an image"):
        vit_tf.extract_features(module, [b"encoded"], layers="conv")


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


class Talking(nn.Module):
    """Attention whose heads are mixed after the softmax or not, as in CaiT."""

    def __init__(self, is_mixed):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.mix = nn.Linear(2, 2) if is_mixed else None

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        weights = (q @ k.mT / 2).softmax(-1)
        if self.mix:
            weights = self.mix(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + (weights @ v).transpose(1, 2).flatten(2)


def talking_vit(is_mixed):
    torch.manual_seed(0)
    patches = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2))
    tokens = type("Tokens", (nn.Module,), {"forward": lambda self, x: x.mT})()
    pool = type("Pool", (nn.Module,), {"forward": lambda self, x: x.mean(1)})()
    return nn.Sequential(
        patches, tokens, Talking(is_mixed), Talking(is_mixed), pool, nn.Linear(8, 4)
    )


def test_weights_that_are_mixed_between_heads_are_refused_by_name(images):
    with pytest.raises(ValueError, match=r"weights not found .*2, 3 change the softmax"):
        analysis.attention_distance(talking_vit(True), images)
    plain = talking_vit(False)
    found = vit_tf.submodel(plain, "2/attention/weights")(images)["2/attention/weights"]
    with torch.no_grad():
        x = plain[1](plain[0](torch.from_numpy(np.moveaxis(images, -1, 1).copy())))
        q, k = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (plain[2].query, plain[2].key))
        expected = (q @ k.mT / 2).softmax(-1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_functions_are_refused_before_the_first_pass(images):
    calls = []

    def function(x):
        calls.append(x)
        return {"block": keras.ops.reshape(x, (-1, 16, 48)), "logits": x[:, 0, 0]}

    labels = np.arange(6) % 3
    for measure in (analysis.head_ablation, analysis.concept_erasure, analysis.token_ablation):
        with pytest.raises(ValueError, match="can be run with interventions"):
            measure(function, (images, labels))
    assert len(calls) <= 9  # what class scores it returns was tried, and no pass was made
