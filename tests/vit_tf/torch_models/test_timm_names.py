"""Models of timm by name."""

import pytest
from without_torchvision import import_or_skip

import vit_tf
from vit_tf import analysis


def test_a_name_of_timm_opens_a_module(monkeypatch):
    timm = import_or_skip("timm")

    def create(name, pretrained):
        if pretrained:
            raise RuntimeError("there is no network")
        size = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 3}
        return made(name, **size)

    made = timm.create_model
    monkeypatch.setattr(timm, "create_model", create)
    with pytest.warns(UserWarning, match="random weights.*no network"):
        module = vit_tf.load("timm:vit_tiny_patch16_224")
    features = analysis.features_of(module, "attention")
    assert features.taps == ("block00/attention/weights", "block01/attention/weights")
    assert features.facts.grid == vit_tf.TokenGrid(4, 4, 1, 8)
    assert features.facts.preprocessing.mean == (0.5, 0.5, 0.5)
    assert features.facts.preprocessing.size == (32, 32)
    with pytest.raises(ValueError, match="vit_tiny_patch16_224"):
        vit_tf.load("timm:vit_tiny_patch16_225")
