"""Initial weights against the initializers of the papers' code.

ViT: `vit_jax/models_vit.py` of google-research/vision_transformer; big_vision's `models/vit.py` has
the same but for positions of width `d`, whose initial standard deviation is `1 / sqrt(d)`. Hybrid:
`vit_jax/models_resnet.py`. Mixer: `vit_jax/models_mixer.py`. BiT: `bit_jax/models.py` and
`models/bit_paper.py` of big_vision.
"""

import math
from fnmatch import fnmatch

import numpy as np
import pytest
from scipy.stats import norm

import vit_tf

# Where a model's variable is to start: the first pattern that its path matches.
LECUN = "normal, cut off at two standard deviations; variance 1 / fan in"
XAVIER = "uniform; variance 2 / (fan in + fan out)"
CONSTANT = {"zeros": 0.0, "ones": 1.0}
NORMAL = {"normal 0.02": 0.02, "normal 1e-6": 1e-6}
VIT = {
    "*/positions": "normal 0.02",
    "*/prefix": "zeros",
    "head/*": "zeros",
    "embedding/patches/kernel": LECUN,
    "pre_logits/kernel": LECUN,
    "*/norm3/gamma": "zeros",  # of the hybrid's stem
    "*/gamma": "ones",
    "*/expand/bias": "normal 1e-6",
    "*/contract/bias": "normal 1e-6",
    "*/bias": "zeros",
    "*/beta": "zeros",
    "stem/*/kernel": LECUN,
    "block*/kernel": XAVIER,
}
CONVOLUTIONS = {"head/*": "zeros", "*gamma": "ones", "*beta": "zeros", "*bias": "zeros", "*": LECUN}
MODELS = {
    "ViT": (lambda: vit_tf.ViT((32, 32, 3), 8, 2, 4, 128, 512, representation_dim=128), VIT),
    "hybrid": (lambda: vit_tf.HybridViT((64, 64, 3), 1, 1, 4, 64, 128, stem_units=(1, 2)), VIT),
    "Mixer": (lambda: vit_tf.Mixer((32, 32, 3), 4, 2, 128, 96, 512), CONVOLUTIONS),
    "BiT": (lambda: vit_tf.BiT((32, 32, 3), units=(1, 2), width_factor=1), CONVOLUTIONS),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_variable_starts_as_in_the_papers_code(name):
    make, rules = MODELS[name]
    model = make()
    for variable in model.weights:
        path = variable.path.removeprefix(f"{model.name}/")
        kind = next(rules[pattern] for pattern in rules if fnmatch(path, pattern))
        check(np.asarray(variable, "float64"), kind, path)


def check(values, kind, path):
    """Asserts that a variable is a sample of a distribution."""
    if kind in CONSTANT:
        np.testing.assert_array_equal(values, CONSTANT[kind], err_msg=path)
        return
    # The spread of an estimated standard deviation, six times.
    tolerance = 6 / math.sqrt(2 * values.size)
    assert abs(values.mean()) < 6 * values.std() / math.sqrt(values.size), path
    if kind in NORMAL:
        scale, largest = NORMAL[kind], math.inf
        # Not cut off: the largest of so many normal values is smaller once in 10^9 times.
        smallest = norm.isf((1 - 1e-9 ** (1 / values.size)) / 2)
        assert np.abs(values).max() > smallest * scale, path
    elif kind == LECUN:
        scale = math.sqrt(1 / math.prod(values.shape[:-1]))
        # Cut off at two of these, a normal distribution has 0.8796 of its standard deviation.
        largest = 2 * scale / 0.87962566103423978
    else:
        scale = math.sqrt(2 / sum(values.shape))
        largest = math.sqrt(3) * scale
    assert values.std() == pytest.approx(scale, rel=tolerance), path
    assert np.abs(values).max() <= largest * (1 + 1e-6), path
    if values.size > 5000 and math.isfinite(largest):
        assert np.abs(values).max() > 0.98 * largest, path
