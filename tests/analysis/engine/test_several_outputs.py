"""Class scores of models that return several vectors: named by the user, or one clear error."""

import keras
import numpy as np
import pytest
from keras import layers

from vit_tf import analysis
from vit_tf.features.submodels import describe_taps

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

SLOW = pytest.mark.slow
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 3)).astype("float32")


class Module(nn.Module):
    def __init__(self, answer):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.answer = nn.Conv2d(3, 4, 3), answer
        self.aux_head, self.head = nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, images):
        x = torch.tanh(self.conv(images)).mean((2, 3))
        return self.answer(self.aux_head(x), self.head(x))


def keras_model(answer):
    images = keras.Input((8, 8, 3))
    conv = layers.Conv2D(4, 3, activation="tanh", name="conv", kernel_initializer=normal())
    x = layers.GlobalAveragePooling2D()(conv(images))
    aux, head = (layers.Dense(5, name=n, kernel_initializer=normal()) for n in ("aux_head", "head"))
    return keras.Model(images, answer(aux(x), head(x)))


def normal():
    return keras.initializers.RandomNormal(seed=1)


def gradients(model, **options):
    return analysis.input_gradients(model, IMAGES, classes=[1], samples=1, noise=0.0, **options)


@pytest.mark.parametrize("make", [pytest.param(Module, marks=SLOW), keras_model])
def test_named_vectors_do_not_count_as_scores_by_their_order(make):
    model = make(lambda aux, pred: {"aux": aux, "pred": pred})
    alone = make(lambda aux, pred: pred)
    with pytest.raises(ValueError, match=r"several outputs.*aux.*aux_head.*pred.*head.*scores="):
        gradients(model)
    for name in ("pred", "head"):
        np.testing.assert_allclose(gradients(model, scores=name), gradients(alone), rtol=1e-4)
    labelled = IMAGES, np.array([0, 1])
    with pytest.raises(ValueError, match=r"pred.*scores="):
        analysis.mistakes(model, labelled)
    right = analysis.mistakes(alone, labelled)
    np.testing.assert_array_equal(
        analysis.mistakes(model, labelled, scores="pred").predicted, right.predicted
    )
    analysis.cka(model, np.repeat(IMAGES, 4, 0) + np.linspace(0, 0.1, 8)[:, None, None, None])


@pytest.mark.parametrize("make", [Module, pytest.param(keras_model, marks=SLOW)])
def test_the_first_vector_of_a_list_counts_and_a_warning_names_the_others(make):
    model = make(lambda aux, pred: [aux, pred])
    with pytest.warns(UserWarning, match=r"2 vectors.*aux_head.*head"):
        first = gradients(model)
    np.testing.assert_allclose(first, gradients(make(lambda aux, pred: aux)), rtol=1e-4)
    second = gradients(make(lambda aux, pred: pred))
    np.testing.assert_allclose(gradients(model, scores="1"), second, rtol=1e-4)


@SLOW
@pytest.mark.parametrize("make", [Module, keras_model])
def test_one_vector_among_maps_and_one_called_logits_are_scores(make):
    right = gradients(make(lambda aux, pred: pred))
    for answer in (
        lambda aux, pred: {"aux": aux, "logits": pred},
        lambda aux, pred: {"aux": aux[:, :, None], "pred": pred},
    ):
        np.testing.assert_allclose(gradients(make(answer)), right, rtol=1e-4)


def test_the_structure_shows_no_scores_among_named_vectors():
    model = keras_model(lambda aux, pred: {"aux": aux, "pred": pred})
    assert describe_taps(model).graph.scores is None
