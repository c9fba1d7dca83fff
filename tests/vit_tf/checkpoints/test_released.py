import os
import sys
from importlib.util import find_spec
from pathlib import Path

import checkpoint_layouts as layouts
import keras
import numpy as np
import pytest
from archive_files import write_safetensors

import vit_tf
from vit_tf.checkpoints.released import CHECKPOINTS, fetch
from vit_tf.data.preprocessing import HALF, IMAGENET

MODELS = (vit_tf.ViT, vit_tf.HybridViT, vit_tf.DistilledViT, vit_tf.RotaryViT)
MODELS += (vit_tf.BEiT, vit_tf.CLIPViT, vit_tf.SigLIPViT, vit_tf.BiT, vit_tf.Mixer)
VIT = "vit_models/imagenet21k/ViT-B_16"
DEIT = "timm/deit_small_patch16_224.fb_in1k"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty place for downloads."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


def test_every_checkpoint_is_of_a_known_size():
    assert len(CHECKPOINTS) > 100
    for name, checkpoint in CHECKPOINTS.items():
        assert checkpoint.name == name
        assert any(checkpoint.variant in model.variants for model in MODELS)
        assert checkpoint.url.startswith("https://") and f"/{name}" in checkpoint.url
        # BiT's maps may be of any size; a grid of tokens is whole.
        if not name.startswith("bit_models"):
            stride = 32 if checkpoint.variant[0] == "R" else int(checkpoint.variant.split("/")[1])
            beyond = 6 if checkpoint.variant == "So400m/14" and checkpoint.resolution > 378 else 0
            assert checkpoint.resolution % stride == beyond
        assert len(checkpoint.values["mean"]) == len(checkpoint.values["std"]) == 3


@pytest.mark.slow
def test_sizes_of_models_with_registers_are_timms():
    """What the shapes of timm's own tensors tell; heads are those of its model."""
    pytest.importorskip("torch", reason="torch is not installed")
    import torch
    from timm_models import timm

    from vit_tf.checkpoints import timm as files
    from vit_tf.checkpoints.configs import config_from_name
    from vit_tf.checkpoints.weight_maps import LoadOptions

    names = vit_tf.list_pretrained("timm/vit_*_patch16_reg?_gap_256.*")
    for name in {name.partition(".")[0]: name for name in names}.values():
        architecture = name.partition(".")[0]
        size = architecture.partition("_")[2].partition("_")[0]
        with torch.device("meta"):
            model = timm.create_model(architecture.removeprefix("timm/"))
        options = LoadOptions(config=config_from_name(CHECKPOINTS[name]))
        actual = files.convert_vit(model.state_dict(), options).mapping.arguments
        fields = vit_tf.ViT.variants[f"{size}/16"] | {"registers": model.num_reg_tokens}
        fields |= {"num_heads": model.blocks[0].attn.num_heads}
        assert {name: actual.get(name) for name in fields} == fields


def test_list_pretrained():
    assert vit_tf.list_pretrained("*/*") == list(CHECKPOINTS)
    augreg = vit_tf.list_pretrained("*augreg*")
    assert f"{VIT}" not in augreg and len(augreg) > 40
    best = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
    assert f"vit_models/augreg/{best}" in augreg
    assert f"vit_models/augreg/{best}--imagenet2012-steps_20k-lr_0.03-res_384" in augreg
    assert len(vit_tf.list_pretrained("bit_models/BiT-M-*-ILSVRC2012")) == 6
    with pytest.raises(ValueError, match=f"Did you mean {VIT}, "):
        vit_tf.list_pretrained("vit_models/imagenet21k/ViT-B-16")


def test_other_names_are_those_of_their_releases():
    """As timm 1.0.31 lists SigLIP's but for NaFlex, pooled means and a fine-tuned one; bicubic and
    squeezed as in their processors, bilinear as in big_vision's own evaluation."""
    for pattern, count, resize in (
        *(("timm/*siglip*", 26, "bicubic"), ("big_vision/*", 9, "bilinear")),
    ):
        names = vit_tf.list_pretrained(pattern)
        assert len(names) == count
        for name in names:
            checkpoint = CHECKPOINTS[name]
            assert (checkpoint.interpolation, checkpoint.crop) == (resize, None)
            assert checkpoint.values == HALF and f"_{checkpoint.resolution}" in name
    crops = {CHECKPOINTS[name].crop for name in vit_tf.list_pretrained("*.openai")}
    assert len(vit_tf.list_pretrained("*.openai")) == 3 and crops == {1.0}
    # Google's are squeezed.
    assert {CHECKPOINTS[name].crop for name in vit_tf.list_pretrained("*_models/*")} == {None}
    bucket = CHECKPOINTS["big_vision/siglip/webli_en_so400m_384_58765454"]
    assert bucket.url.endswith(".com/big_vision/siglip/webli_en_so400m_384_58765454.npz")


def test_a_name_determines_pixels_beyond_the_patches():
    """Those of So400m/14 have 384 pixels a side, of which its 27 patches see 378."""
    from vit_tf.checkpoints.archives import TensorInfo
    from vit_tf.checkpoints.weight_maps import LoadOptions, patch_positions_map

    tensors = {"pos_embed": TensorInfo((1, 729, 1152), "float32")}
    for resolution, expected in ((384, 384), (378, 378), (None, 378), (224, 378)):
        part = patch_positions_map(tensors, "pos_embed", 14, 3, LoadOptions(resolution=resolution))
        assert part.arguments["image_shape"] == (expected, expected, 3)


def test_preprocessing_of_released_models_is_timms():
    """Every name of timm's that its package lists, but SigLIP's, field by field."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    from timm_models import timm

    timms = [name for name in CHECKPOINTS if name.startswith("timm/")]
    listed = [name for name in timms if "siglip" not in name]
    count_of_names = 0
    for name in listed:
        config = timm.get_pretrained_cfg(name.removeprefix("timm/"), allow_unregistered=False)
        if config is None or not config.has_weights:
            continue
        count_of_names += 1
        checkpoint = CHECKPOINTS[name]
        assert config.input_size[1:] == (checkpoint.resolution,) * 2, name
        assert checkpoint.interpolation == config.interpolation, name
        assert tuple(checkpoint.values["mean"]) == tuple(config.mean), name
        assert tuple(checkpoint.values["std"]) == tuple(config.std), name
        # Of OpenAI's files the crop is that of OpenAI's code.
        if not name.endswith(".openai"):
            squeezed = config.crop_mode == "squash"
            is_whole = squeezed and config.crop_pct == 1
            assert checkpoint.crop == (None if is_whole else config.crop_pct), name
            aspect = "squeeze" if squeezed and not is_whole else None
            assert checkpoint.aspect == aspect, name
    assert count_of_names == len(listed)
    assert len(vit_tf.list_pretrained("*_dinov3*")) == 12


@pytest.mark.slow
def test_a_name_carries_its_architecture():
    """Heads, GELU and pooling of every name in timm's names are those of timm's architecture."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    import torch
    from timm_models import timm

    from vit_tf.checkpoints.configs import config_from_name

    names = [
        n for n in CHECKPOINTS if n.startswith("timm/") and "mixer" not in n and "_bit" not in n
    ]
    for architecture in sorted({name.partition(".")[0] for name in names}):
        name = next(name for name in names if name.partition(".")[0] == architecture)
        config = config_from_name(CHECKPOINTS[name])
        with torch.device("meta"):
            model = timm.create_model(architecture.removeprefix("timm/"), depth=1)
        assert config["num_heads"] == model.blocks[0].attn.num_heads, name
        pooling = {"token": "cls", "avg": "gap", "map": "map"}[model.global_pool]
        assert config["pooling"] == pooling, name
        gelu = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
        own = type(getattr(model.blocks[0].mlp, "act", None)).__name__
        assert own not in gelu or config["activation"] == gelu[own], name
        normalized = not isinstance(model.fc_norm, torch.nn.Identity)
        assert config["fc_norm"] == normalized, name
        assert config["epsilon"] == model.blocks[0].norm1.eps, name


def test_a_name_downloads_its_file(home, monkeypatch):
    calls = []

    def get_file(name, origin, cache_dir, cache_subdir):
        calls.append(origin)
        np.savez(home / "fetched.npz", **layouts.google_bit())
        return home / "fetched.npz"

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    model = vit_tf.load_pretrained("bit_models/distill/R50x1_160")
    assert calls == ["https://storage.googleapis.com/bit_models/distill/R50x1_160.npz"]
    # The file tells no resolution, the name does.
    assert model.image_shape == (160, 160, 3)
    small = vit_tf.load_pretrained("bit_models/distill/R50x1_160", image_shape=(32, 32))
    assert small.image_shape == (32, 32, 3)


def test_a_name_determines_the_preprocessing(monkeypatch):
    """DeiT's files look like those of models that were trained on values in [-1, 1]."""
    path = CHECKPOINTS[DEIT].path
    os.makedirs(os.path.dirname(path))
    write_safetensors(Path(path), layouts.timm_vit())
    assert fetch(DEIT) == (path, CHECKPOINTS[DEIT])
    model = vit_tf.load_pretrained(DEIT, num_heads=layouts.HEADS)
    assert (model.preprocessing.mean, model.preprocessing.std) == tuple(IMAGENET.values())
    assert model.preprocessing.crop == 0.9
    model = vit_tf.load_pretrained(path, num_heads=layouts.HEADS)
    assert model.preprocessing.mean == (0.5, 0.5, 0.5)
    assert model.preprocessing.crop is None


def test_without_a_network_the_file_is_named(home, monkeypatch):
    def get_file(*args, **options):
        raise Exception("URL fetch failure: Name or service not known")

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    with pytest.raises(ValueError, match=r"Cannot download .*service not known") as caught:
        vit_tf.load_pretrained(VIT)
    assert "https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz" in str(caught.value)
    assert str(home / "vit_tf/vit_models--imagenet21k--ViT-B_16.npz") in str(caught.value)


def test_without_the_hub_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    url = (
        "https://huggingface.co/timm/deit_small_patch16_224.fb_in1k/resolve/main/model.safetensors"
    )
    with pytest.raises(ValueError, match=url) as caught:
        vit_tf.load_pretrained(DEIT)
    assert "pip install huggingface_hub" in str(caught.value)


def test_unknown_names():
    with pytest.raises(ValueError, match=f"Unknown model .*Did you mean '{VIT}' or"):
        vit_tf.load_pretrained("imagenet21k/ViT-B_16")
