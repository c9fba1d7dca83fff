"""Folders as timm writes them: what `config.json` tells beside the tensors, against timm itself."""

import json
import re

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses

import vit_tf
from vit_tf.checkpoints import configs
from vit_tf.data.preprocessing import CLIP

MOST = 1e-5
TINY = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4, "img_size": 20}
TINY |= {"num_classes": 5}
DINO3 = {"num_reg_tokens": 4, "num_classes": 0}
FC = {"global_pool": "avg", "fc_norm": False}
VIT, DEIT3, BEIT = "vit_base_patch16_224", "deit3_base_patch16_224", "beit_base_patch16_224"
# Of an architecture of timm's, arguments that differ from `TINY`.
FOLDERS = {
    "plain": (VIT, {}),
    "mean, normalized before": (VIT, FC),
    "mean, normalized after": (VIT, {"global_pool": "avg"}),
    "heads": (VIT, {"num_heads": 6}),
    "quick GELU": (VIT, {"act_layer": "quick_gelu"}),
    "oblong": (VIT, {"img_size": (32, 8)}),
    "oblong of as many positions as a square": (VIT, {"img_size": (16, 64)}),
    "heads of the architecture": ("vit_base_patch16_gap_224", {"num_heads": None, "embed_dim": 64}),
    "registers, mean": ("vit_medium_patch16_reg4_gap_256", {}),
    "registers with positions, no biases": ("vit_so150m2_patch16_reg1_gap_256", {}),
    "no biases": ("vit_medium_patch16_gap_256", {}),
    "DeiT-3, oblong": (DEIT3, {"img_size": (32, 8)}),
    "DeiT, distilled": ("deit_base_distilled_patch16_224", {"img_size": (12, 28)}),
    "SigLIP, mean, tanh": (
        "vit_giantopt_patch16_siglip_gap_256",
        {"num_heads": None, "embed_dim": 32},
    ),
    "SigLIP, tanh": ("vit_so400m_patch16_siglip_256", {"img_size": (64, 16)}),
    "DINOv2": ("vit_base_patch14_reg4_dinov2", {}),
    "DINOv3": ("vit_base_patch16_dinov3", DINO3),
    "DINOv3, class token": ("vit_base_patch16_dinov3", DINO3 | {"global_pool": "token"}),
    "BEiT": (BEIT, {}),
    "BEiT, oblong": (BEIT, {"img_size": (12, 28)}),
    "BEiT, class token": (BEIT, {"global_pool": "token"}),
    "BEiT, one table": (BEIT, {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}),
    "CLIP": ("vit_base_patch16_clip_224", {"img_size": (12, 28), "num_classes": 7}),
    "CLIP, quick": ("vit_base_patch16_clip_224", {"act_layer": "quick_gelu", "num_classes": 7}),
}
# One of each class of timm's that another class here computes, or another form of.
QUICK = ("plain", "registers, mean", "DeiT, distilled", "SigLIP, tanh", "DINOv2", "DINOv3")
QUICK += ("BEiT", "CLIP")
SLOW = pytest.mark.slow


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("timm_models", "safetensors")


@pytest.fixture
def written(models, tmp_path):
    """Function of a row of the table to timm's model, and the folder that timm writes of it."""
    from timm.models import _hub

    def written(architecture, fields, binary=False):
        models.torch.manual_seed(0)
        options = {k: v for k, v in (TINY | fields).items() if v is not None}
        model = models.randomize(models.timm.create_model(architecture, **options))
        return model, save(model, binary)

    def save(model, binary=False):
        _hub.save_config_for_hf(model, tmp_path / "config.json")
        state = model.state_dict()
        if binary:
            models.torch.save(state, tmp_path / "pytorch_model.bin")
        else:
            models.write(model, tmp_path / "model.safetensors")
        return tmp_path

    written.save = save
    return written


def outputs(model, shape, seed=1):
    """Random images, channels last, and what timm makes of them."""
    import torch

    images = np.random.default_rng(seed).normal(size=(2, *shape, 3)).astype(np.float32)
    with torch.no_grad():
        actual = model(torch.tensor(np.ascontiguousarray(images.transpose(0, 3, 1, 2))))
    return images, actual.numpy()


def error(model, images, expected):
    """The largest difference, relative to the largest number."""
    actual = np.asarray(model(images))
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in FOLDERS]
)
def test_a_folder_opens_as_timm_makes_it(name, written, record_property):
    reference, folder = written(*FOLDERS[name])
    model = vit_tf.load_pretrained(folder)
    shape = reference.patch_embed.img_size
    if "DINOv3" in name:  # whose tensors show no size
        model = vit_tf.load_pretrained(folder, image_shape=shape)
    assert model.image_shape[:2] == shape
    actual = error(model, *outputs(reference, shape))
    record_property("max relative error", actual)
    assert actual < MOST


@pytest.mark.parametrize(
    ("architecture", "fields", "options"),
    [
        (VIT, {"img_size": (56, 64)}, {}),
        pytest.param(VIT, {"img_size": (48, 56)}, {}, marks=SLOW),
        pytest.param(DEIT3, {"img_size": (32, 8)}, {}, marks=SLOW),
        (BEIT, {"img_size": (12, 28)}, {}),
        pytest.param(
            "vit_base_patch16_siglip_256",
            {"img_size": (64, 16), "act_layer": "gelu_tanh"},
            {},
            marks=SLOW,
        ),
    ],
)
def test_a_bare_file_is_of_the_shape_that_is_given(architecture, fields, options, written):
    """The first has 14 x 16 positions and one, which is 15 x 15."""
    reference, folder = written(architecture, fields)
    shape = fields["img_size"]
    path, heads = folder / "model.safetensors", {} if "beit" in architecture else {"num_heads": 3}
    model = vit_tf.load_pretrained(path, image_shape=shape, **heads, **options)
    assert error(model, *outputs(reference, shape)) < MOST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "resnet50"}, "architecture 'resnet50'"),
        ({"model_args": {"norm_layer": "rmsnorm"}}, "'norm_layer'"),
        ({"model_args": {"global_pool": "max"}}, "global_pool.*'max'"),
        ({"model_args": {"act_layer": "relu"}}, "act_layer.*'relu'"),
        ({"model_args": {"pool_include_prefix": True}}, "pool_include_prefix.*True"),
        ({"model_args": {"num_heads": 5}}, "num_heads"),
        ({"model_args": {"img_size": 24}}, "25 positions|26 positions"),
        ({"model_args": {"global_pool": "avg"}}, "fc_norm=True"),
        ({"model_args": "none"}, "in config.json|the configuration and the tensors"),
    ],
)
def test_what_is_not_known_is_refused(change, message, written):
    _, folder = written(VIT, {})
    config = json.loads((folder / "config.json").read_text())
    arguments = change.get("model_args")
    if isinstance(arguments, dict):
        change = {"model_args": config["model_args"] | arguments}
    (folder / "config.json").write_text(json.dumps(config | change))
    with refuses(message):
        vit_tf.load_pretrained(folder)


@pytest.mark.parametrize(
    ("architecture", "tag", "expected"),
    [
        ("vit_base_patch16_clip_224", "laion2b", "gelu"),
        ("vit_base_patch16_clip_224", "openai_ft_in1k", "gelu"),
        ("vit_base_patch16_clip_224", "openai", "quick_gelu"),
        ("vit_base_patch16_clip_quickgelu_224", "openai", "quick_gelu"),
        ("vit_huge_patch14_clip_quickgelu_378", None, "quick_gelu"),
    ],
)
def test_the_form_of_gelu_is_that_of_the_training(architecture, tag, expected, models, tmp_path):
    models.write(models.make("clip"), tmp_path / "model.safetensors")
    images = {"tag": tag, "crop_pct": 0.95, "interpolation": "bicubic", **CLIP}
    config = {"architecture": architecture, "num_classes": 10, "pretrained_cfg": images}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vit_tf.load_pretrained(tmp_path, num_heads=3)
    assert model.get_config()["activation"] == expected and model.preprocessing.crop == 0.95
    if tag is None:
        other = vit_tf.load_pretrained(tmp_path, num_heads=3, activation="gelu_tanh")
        assert other.get_config()["activation"] == "gelu_tanh"


def test_the_images_of_a_folder_are_those_of_its_config(models, tmp_path):
    models.write(models.make("mae"), tmp_path / "model.safetensors")
    images = {"mean": [0.4] * 3, "std": [0.2] * 3, "interpolation": "bilinear", "crop_pct": 0.8}
    config = {"architecture": "vit_base_patch16_224", "pretrained_cfg": images}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vit_tf.load_pretrained(tmp_path, num_heads=3)
    expected = vit_tf.Preprocessing((20, 20), (0.4,) * 3, (0.2,) * 3, crop=0.8)
    assert model.preprocessing == expected
    own = vit_tf.Preprocessing((20, 20))
    assert vit_tf.load_pretrained(tmp_path, num_heads=3, preprocessing=own).preprocessing == own
    for change, message in (
        ({"crop_pct": "0.8"}, "crop_pct"),
        ({"crop_mode": "border"}, "'border'"),
        ({"interpolation": "random"}, "interpolation.*'random'"),
        ({"mean": [0.5]}, "mean"),
    ):
        fields = config | {"pretrained_cfg": images | change}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        with refuses(message):
            vit_tf.load_pretrained(tmp_path, num_heads=3)


def test_the_table_of_architectures_is_timms(models, monkeypatch):
    """The arguments with which timm makes each architecture that a row of the table fits."""
    from timm.models import _registry, beit, deit, eva, vision_transformer

    made = {}
    for module in (beit, deit, eva, vision_transformer):
        monkeypatch.setattr(module, "build_model_with_cfg", lambda cls, *_, **options: options)
        for name in models.timm.list_models(module=module.__name__.rpartition(".")[2]):
            made[name] = _registry.model_entrypoint(name)()
    count = 0
    for name, options in made.items():
        config = {"architecture": name, "pretrained_cfg": {}}
        try:
            actual = configs.read_timm_config(config)
        except ValueError:
            # Those of other blocks, positions or pooling.
            assert re.search(OTHERS, name), name
            continue
        count += 1
        default = "avg" if re.search("^beit|dinov3", name) else "token"
        pooling = configs.POOLINGS[options.get("global_pool", default)]
        assert actual["pooling"] == pooling, name
        expected = options.get("fc_norm", options.get("use_fc_norm"))
        assert actual["fc_norm"] == (pooling == "gap" if expected is None else expected), name
        assert actual["num_heads"] == options["num_heads"], name
        gelu = options.get("act_layer", "gelu")
        assert actual["activation"] == gelu or "mlp_layer" in options, name
        norm = options.get("norm_layer")
        assert actual["epsilon"] == (norm.keywords["eps"] if norm else 1e-6), name
        others = set(options) - {
            *configs.SHOWN.split(),
            *configs.USED,
            *IRRELEVANT.split(),
        }
        assert not others, (name, others)
    assert count > 120


# Of timm 1.0.31: what no row fits, and arguments that `told` leaves to a row or to nobody.
OTHERS = r"beit3|radio|_pe_[ls]|sapiens|lingbot|_xp_|18x2|36x1|rpn|_map_|intern|test_"
OTHERS += r"|^eva|_d\w+_patch16_reg1|pwee|_rope_|aimv2|_pe_core_"
IRRELEVANT = "pretrained_filter_fn feature_cfg pretrained_strict norm_layer mlp_layer rope_type "
IRRELEVANT += "rope_temperature rope_rotate_half use_rot_pos_emb out_indices ref_feat_shape "
IRRELEVANT += "use_pre_transformer_norm rope_grid_offset attn_pool_num_heads attn_pool_mlp_ratio "
IRRELEVANT += "attn_type rope_grid_indexing embed_norm_layer"


@pytest.mark.parametrize("size", [pytest.param((32, 32), marks=SLOW), (24, 40)])
def test_a_mixer_is_timms(size, models, written):
    fields = {"num_blocks": 2, "embed_dim": 24, "patch_size": 8, "num_classes": 5, "img_size": size}
    reference = models.randomize(models.mixer(fields))
    folder = written.save(reference)
    model = vit_tf.load_pretrained(folder)
    assert error(model, *outputs(reference, size)) < MOST
    bare = vit_tf.load_pretrained(folder / "model.safetensors", image_shape=size, num_classes=0)
    reference.reset_classifier(0)
    assert error(bare, *outputs(reference, size)) < MOST


@SLOW
@pytest.mark.parametrize("size", [(64, 64), (45, 67)])
def test_a_bit_is_timms(size, models, written):
    fields = {"layers": (1, 2), "channels": (256, 512), "stem_chs": 64, "num_classes": 5}
    reference = models.randomize(models.bit(fields))
    folder = written.save(reference)
    model = vit_tf.load_pretrained(folder, image_shape=size)
    assert error(model, *outputs(reference, size)) < MOST
    bare = vit_tf.load_pretrained(folder / "model.safetensors", image_shape=size, num_classes=0)
    reference.reset_classifier(0)
    assert error(bare, *outputs(reference, size)) < MOST


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(
            pytest.param(name, marks=SLOW)
            for name in ("DeiT, distilled", "SigLIP, tanh", "BEiT", "CLIP")
        ),
    ],
)
def test_no_classes_are_features_as_in_timm(name, written):
    reference, folder = written(*FOLDERS[name])
    model = vit_tf.load_pretrained(folder, num_classes=0)
    reference.reset_classifier(0)
    assert error(model, *outputs(reference, model.image_shape[:2])) < MOST


@pytest.mark.parametrize("size", [pytest.param((28, 28), marks=SLOW), (12, 28)])
def test_a_beit_at_another_size_is_timms(size, written):
    reference, folder = written(BEIT, {})
    model = vit_tf.load_pretrained(folder, image_shape=size)
    reference.set_input_size(size)
    assert error(model, *outputs(reference, size)) < MOST


def test_a_folder_of_pytorchs_weights(written):
    reference, folder = written(VIT, FC, binary=True)
    assert error(vit_tf.load_pretrained(folder), *outputs(reference, (20, 20))) < MOST
