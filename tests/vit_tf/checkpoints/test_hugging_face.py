"""Folders that transformers writes, as loaded, against its own models."""

import json
import re

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses
from checkpoint_families import arrays, assert_matches, errors_of, pictures

import vit_tf
from vit_tf.checkpoints.archives import Folder
from vit_tf.checkpoints.hugging_face_models import convert_siglip
from vit_tf.checkpoints.weight_maps import LoadOptions
from vit_tf.data.preprocessing import CLIP, IMAGENET

NAMES = ["vit", "vit-pooler", "vit-bare", "deit", "deit-teacher", "deit-pooler"]
NAMES += ["dinov2", "dinov2-swiglu", "registers", "registers-swiglu"]
NAMES += ["ijepa", "ijepa-bare", "dinov3", "dinov3-gated", "dinov3-biased"]
ENCODERS = ("clip", "clip-vision", "clip-projected", "beit", "beit-plain", "beit-shared")
ENCODERS += ("bit", "bit-bare", "mae", "metaclip2", "metaclip2-vision", "metaclip2-projected")
ENCODERS += ("siglip", "siglip-whole")
SIZED = [name for name in NAMES if name.startswith(("dino", "registers"))]
MOST = 1e-5
SLOW = pytest.mark.slow
# One of most families of transformers'. Dinov2 without registers and MetaClip2, which are read as
# Dinov2 with registers and CLIP are, have none; the others are the same with other fields or heads.
QUICK = ("vit", "deit-teacher", "registers-swiglu", "ijepa", "dinov3-gated", "clip", "beit", "bit")
QUICK += ("mae", "siglip-whole")


def slow_but(quick, names):
    """The names as parameters, of which all others are slow."""
    return [name if name in quick else pytest.param(name, marks=SLOW) for name in names]


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("hugging_face_models", "transformers")


@pytest.fixture
def written(models, tmp_path):
    """Function of a name in the table to a model of transformers' and its folder."""

    def written(name, size=20, **options):
        model, processor = models.make(name), models.processor(name, size)
        return model, models.write(model, tmp_path / name, processor, **options)

    return written


@pytest.mark.parametrize("name", slow_but(QUICK, [*NAMES, *ENCODERS]))
def test_every_block_is_that_of_transformers(name, models, written, record_property):
    size = 64 if name.startswith("bit") else 20
    reference, folder = written(name, size)
    model = vit_tf.load_pretrained(folder)
    images = pictures(model.image_shape)
    errors = errors_of(model, models.taps(reference, images), images)
    assert sum(tap.endswith("/sum") for tap in errors) == (3 if name.startswith("bit") else 2)
    record_property("max relative error", max(errors.values()))
    assert max(errors.values()) < MOST, errors
    # Two classes of one name are made different.
    names = ("crane (0)", "tabby, tabby cat", "crane (2)")
    assert model.class_names == (names if name in ("beit", "bit") else None)
    if name in NAMES:
        assert model.count_params() == expected_count(name, reference, model)


# Those whose models have other arguments than the rest.
KEPT = ["vit", "vit-pooler", "vit-bare", "deit", "deit-teacher", "dinov2", "registers-swiglu"]
KEPT += ["ijepa", "dinov3", "dinov3-gated", "dinov3-biased", "clip", "clip-vision"]
KEPT += ["beit", "beit-plain", "beit-shared"]
KEPT += ["bit", "bit-bare", "mae", "siglip", "siglip-whole"]


@pytest.mark.parametrize("name", slow_but(("vit",), KEPT))
def test_a_model_is_kept_by_a_keras_file_and_takes_a_new_head(name, written, tmp_path):
    _, folder = written(name, 64 if name.startswith("bit") else 20)
    model = vit_tf.load_pretrained(folder)
    model.save(tmp_path / "again.keras")
    again = vit_tf.load_model(tmp_path / "again.keras")
    assert again.preprocessing == model.preprocessing
    images = pictures(model.image_shape)
    np.testing.assert_array_equal(again(images), model(images))
    reopened = arrays(again)
    for weight, array in arrays(model).items():
        np.testing.assert_array_equal(reopened[weight], array, err_msg=weight)
    other = vit_tf.load_pretrained(folder, num_classes=7)
    for layer in (other.head, getattr(other, "distillation_head", None)):
        assert layer is None or not np.any(layer.kernel)
    assert other.num_classes == 7 and other.class_names is None and "pre_logits" not in other.taps


def expected_count(name, reference, model):
    """As many as transformers counts, without the token of masked patches and with our identity."""
    count = sum(p.numel() for n, p in reference.named_parameters() if "mask_token" not in n)
    classes = model.num_classes
    own = 0 if "classifier" in str(reference) else (model.head.kernel.shape[0] + 1) * classes
    # Biases that it does not have, which are zero here: of q, v, out, and the gated MLP.
    own += 2 * (3 * 24 + 2 * 40 + 24) if name == "dinov3-gated" else 0
    return count + own


@pytest.mark.parametrize("name", slow_but(("registers",), SIZED))
def test_positions_at_another_size_are_those_of_transformers(name, models, written):
    """Antialiased where there are registers, as in the code of each release."""
    reference, folder = written(name)
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    images = pictures((12, 28, 3))
    assert_matches(model, models.taps(reference, images), images)
    other = vit_tf.load_pretrained(folder, image_shape=(12, 28), positions="bilinear")
    embedded = errors_of(other, models.taps(reference, images), images)["embedding"]
    assert embedded < MOST if name.startswith("dinov3") else embedded > 1e-3


@pytest.mark.parametrize("name", ["dinov3", "dinov3-gated"])
def test_weights_are_those_after_rotation(name, models, written):
    import torch

    reference, folder = written(name)
    reference.set_attn_implementation("eager")
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    images = pictures((12, 28, 3))
    pixels = torch.tensor(images.transpose(0, 3, 1, 2))
    attentions = reference(pixels, output_attentions=True).attentions
    actual = model.intermediates(images)
    for i, expected in enumerate(attentions):
        expected = expected.detach().numpy()
        weights = np.asarray(actual[f"block{i:02d}/attention/weights"])
        assert np.abs(weights - expected).max() < MOST * expected.max()
    assert len(attentions) == 2


@pytest.mark.parametrize("name", slow_but(("dinov2",), ["dinov2", "registers"]))
def test_a_dinov2_opens_at_the_size_of_its_processor(name, models, written):
    """That of `facebook/dinov2-base` is 224, of weights for 518 pixels."""
    reference, folder = written(name)
    change(folder, "preprocessor_config.json", crop_size={"height": 12, "width": 12})
    with pytest.warns(UserWarning, match="12 x 12 pixels of its image processor.*20 x 20"):
        model = vit_tf.load_pretrained(folder)
    assert model.image_shape == (12, 12, 3) and model.preprocessing.size == (12, 12)
    images = pictures(model.image_shape)
    assert_matches(model, models.taps(reference, images), images)
    assert vit_tf.load_pretrained(folder, image_shape=(20, 20)).image_shape == (20, 20, 3)
    side = {"height": 180, "width": 180}
    change(folder, "preprocessor_config.json", crop_size=side, size={"shortest_edge": 180})
    with refuses(f"at most 160 pixels a side. Received: 180 .in '{re.escape(str(folder))}"):
        vit_tf.load_pretrained(folder)


@SLOW
def test_a_plain_vit_at_another_size(models, written):
    reference, folder = written("vit")
    square = reference.config.image_size = [16, 24]
    model = vit_tf.load_pretrained(folder, image_shape=(24, 32))
    assert model.image_shape == (24, 32, 3) and model.preprocessing.size == (24, 32)
    old = vit_tf.load_pretrained(folder)
    assert old.image_shape == (*square, 3)
    expected = vit_tf.at_resolution(old, (24, 32), method="torch")
    np.testing.assert_array_equal(model.embedding.positions, expected.embedding.positions)


def test_parts_with_an_index_are_the_whole(written, tmp_path):
    _, folder = written("dinov2")
    unsharded = vit_tf.load_pretrained(folder)
    _, parts = written("dinov2", max_shard_size="20KB")
    (tmp_path / "dinov2" / "model.safetensors").unlink(missing_ok=True)
    assert len(list(parts.glob("model-*.safetensors"))) > 1
    model = vit_tf.load_pretrained(parts)
    for name, weight in arrays(unsharded).items():
        np.testing.assert_array_equal(arrays(model)[name], weight)
    index = parts / "model.safetensors.index.json"
    index_fields = json.loads(index.read_text())
    names = list(index_fields["weight_map"])
    for change, message in (
        ({names[0]: "../model.safetensors"}, "no such file"),
        ({names[0]: 3}, "weight_map"),
        ({names[0]: "model-00009-of-00009.safetensors"}, "no such file"),
        ({"a.weight": index_fields["weight_map"][names[0]]}, "'a.weight' of model-"),
    ):
        index.write_text(json.dumps({"weight_map": index_fields["weight_map"] | change}))
        with refuses(message):
            vit_tf.load_pretrained(parts)
    index.unlink()
    with refuses("config.json, model-00001"):
        vit_tf.load_pretrained(parts)


def test_a_pooler_of_an_i_jepa_is_refused(models, tmp_path):
    """transformers applies it to the first patch, of which no model here makes its output."""
    models.torch.manual_seed(0)
    config = models.transformers.IJepaConfig(**models.PLAIN)
    model = models.transformers.IJepaModel(config, add_pooling_layer=True)
    folder = models.write(model, tmp_path / "pooled", models.processor("ijepa"))
    with refuses("unexpected tensors.*pooler.dense"):
        vit_tf.load_pretrained(folder)


@SLOW
def test_distillation_and_registers_are_inferred(written):
    teacher = vit_tf.load_pretrained(written("deit-teacher")[1])
    assert teacher.prefix_names == ("CLS", "distillation")
    assert teacher.get_config()["distillation"] == "heads"
    plain = vit_tf.load_pretrained(written("deit")[1])
    assert plain.get_config()["distillation"] == "token"
    registers = vit_tf.load_pretrained(written("registers")[1])
    assert registers.prefix_names[-1] == "register 4" and registers.token_grid.prefix == 5
    mean = vit_tf.load_pretrained(written("registers")[1], pooling="gap")
    taps = mean.intermediates(pictures(mean.image_shape))
    expected = np.mean(np.asarray(taps["norm"], "float64")[:, 5:], axis=1)
    np.testing.assert_allclose(taps["logits"], expected, atol=1e-5)
    gap = vit_tf.load_pretrained(written("dinov2")[1], pooling="gap")
    assert gap.token_grid.prefix == 0


def change(folder, file="config.json", **fields):
    """Rewrites fields of a JSON file; None takes one out."""
    path = folder / file
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("vit", {"model_type": "swin"}, "model_type.*'swin'.*vit"),
        ("vit", {"model_type": "vit_hybrid"}, "'vit_hybrid'.*epsilons: 1e-5, not 1e-6.*1e-8.*1e-5"),
        ("vit", {"model_type": None}, "model_type"),
        ("vit", {"hidden_act": "relu"}, "hidden_act.*'relu'"),
        ("vit", {"qkv_bias": False}, "qkv_bias.*False"),
        ("vit", {"num_attention_heads": 5}, "num_heads"),
        ("vit", {"num_attention_heads": "3"}, "num_attention_heads.*'3'"),
        ("vit", {"layer_norm_eps": -1}, "layer_norm_eps.*-1"),
        ("vit", {"num_hidden_layers": 3}, "missing tensors"),
        ("vit", {"num_hidden_layers": 1}, "unexpected tensors"),
        ("vit", {"num_hidden_layers": 10**7}, "num_hidden_layers"),
        ("vit", {"hidden_size": 32}, "misshapen|num_heads"),
        ("vit", {"image_size": [16, 26]}, "image_shape"),
        ("vit", {"image_size": 16}, "positions"),
        ("vit", {"image_size": [16, 24, 3]}, "image_size"),
        ("dinov3", {"rope_theta": 10000.0}, "rope_theta.*100.0.*10000"),
        ("dinov3", {"key_bias": 1}, "key_bias.*1"),
        ("dinov3", {"key_bias": True}, "missing tensors.*k_proj.bias"),
        ("dinov3", {"value_bias": False}, "unexpected tensors.*v_proj.bias"),
        ("dinov3", {"use_gated_mlp": True, "hidden_act": "silu"}, "missing.*gate_proj"),
        ("dinov3-gated", {"hidden_act": "gelu"}, "hidden_act.*'silu'.*'gelu'"),
        ("dinov3", {"image_size": 21}, "image_shape"),
        ("dinov3", {"num_attention_heads": 4}, "6 channels of a head"),
        ("beit", {"use_absolute_position_embeddings": True}, "use_absolute.*False.*True"),
        ("beit", {"use_relative_position_bias": False}, "use_relative_position_bias.*False"),
        ("beit", {"id2label": {"0": "a", "1": "b"}}, "id2label.*0 to 2"),
        ("beit", {"id2label": {"0": "a", "1": "b", "2": 3}}, "id2label.*0 to 2"),
        ("beit", {"id2label": ["a", "b", "c"]}, "id2label.*0 to 2"),
        ("beit", {"image_size": 24}, r"size.*\(24, 24\).*\(20, 20\)"),
        ("bit", {"layer_type": "bottleneck"}, "layer_type.*'preactivation'.*'bottleneck'"),
        ("bit", {"global_padding": "SAME"}, "global_padding.*None.*'SAME'"),
        ("bit", {"num_groups": 16}, "num_groups.*32.*16"),
        ("clip-vision", {"layer_norm_eps": 1e-6}, "layer_norm_eps"),
        ("clip-vision", {"hidden_act": "relu"}, "hidden_act.*'relu'"),
        ("mae", {"qkv_bias": False}, "qkv_bias.*False"),
        ("siglip", {"model_type": "siglip2"}, "NaFlex.*'siglip2'"),
        ("siglip", {"model_type": "siglip2_vision_model"}, "NaFlex"),
        ("siglip", {"model_type": "siglip"}, "KeyError: 'vision_config'"),
        ("siglip", {"model_type": "siglip_text_model"}, "model_type.*siglip_vision_model"),
        ("siglip", {"vision_use_head": False}, "vision_use_head.*False"),
        ("siglip", {"hidden_act": "relu"}, "hidden_act.*'relu'"),
        ("siglip", {"image_size": 4}, "at least one patch.*patch_size=6"),
        ("siglip", {"image_size": 25}, "misshapen.*position_embedding"),
        ("siglip", {"num_hidden_layers": 3}, "missing tensors"),
        ("siglip", {"num_hidden_layers": 1}, "unexpected tensors"),
        ("siglip", {"num_attention_heads": 5}, "num_heads"),
        ("siglip", {"intermediate_size": 41}, "misshapen"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(name, fields, message, written):
    _, folder = written(name, size=64 if name == "bit" else 20)
    change(folder, **fields)
    with refuses(message):
        vit_tf.load_pretrained(folder)


def test_what_no_model_here_has_is_refused(models, written, tmp_path):
    import transformers

    _, folder = written("vit-pooler")
    change(folder, pooler_act="gelu")
    with refuses("pooler_act.*'gelu'"):
        vit_tf.load_pretrained(folder)
    config = transformers.ViTConfig(**models.PLAIN)
    model = transformers.ViTForMaskedImageModeling(config)
    folder = models.write(model, tmp_path / "masked", models.processor("vit"))
    with refuses("unexpected tensors.*decoder"):
        vit_tf.load_pretrained(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "[" * 100_000, "\xff"])
def test_a_corrupt_config_is_one_error(text, written):
    _, folder = written("vit")
    (folder / "config.json").write_text(text, "latin1")
    with refuses("config.json|model_type"):
        vit_tf.load_pretrained(folder)


def test_a_name_on_the_hub_is_a_folder(written, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    _, folder = written("vit")
    calls = []

    def snapshot_download(repository, allow_patterns):
        calls.append((repository, allow_patterns))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    model = vit_tf.load_pretrained("hf://google/vit-base-patch16-224")
    assert model.num_classes == 5
    ((repository, patterns),) = calls
    assert repository == "google/vit-base-patch16-224"
    assert {"config.json", "preprocessor_config.json", "model*.safetensors"} < set(patterns)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: 1 / 0)
    with pytest.raises(ValueError, match=r"google/vit.*ZeroDivisionError"):
        vit_tf.load_pretrained("hf://google/vit-base-patch16-224")
    with refuses("'hf://google'"):
        vit_tf.load_pretrained("hf://google")


def test_tokens_and_images_of_dinov3(written):
    _, folder = written("dinov3")
    model = vit_tf.load_pretrained(folder)
    assert model.prefix_names[-1] == "register 4" and model.position_embedding is None
    assert model.get_config()["key_bias"] is False
    assert model.preprocessing.interpolation == "bilinear" and model.preprocessing.crop is None
    mean = vit_tf.load_pretrained(folder, pooling="gap")
    assert mean.prefix_names == model.prefix_names and mean.pooling == "gap"
    assert vit_tf.load_pretrained(written("dinov3-gated")[1]).prefix_names == ("CLS",)
    fields = json.loads((folder / "preprocessor_config.json").read_text())
    fields |= {"image_processor_type": "DINOv3ViTImageProcessorFast", "do_center_crop": None}
    fields |= {"image_mean": IMAGENET["mean"], "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    with pytest.warns(UserWarning, match="32 x 32 pixels of its image processor.*20 x 20"):
        model = vit_tf.load_pretrained(folder)
    assert model.preprocessing.size == (32, 32) and model.preprocessing.crop is None
    assert model.preprocessing.mean == IMAGENET["mean"]
    (folder / "preprocessor_config.json").unlink()
    # Those of web images and of satellites' differ.
    with refuses("differ in mean and standard deviation.*'dinov3_vit'"):
        vit_tf.load_pretrained(folder)


@pytest.mark.parametrize("name", slow_but(("beit-shared",), ["beit", "beit-plain", "beit-shared"]))
@pytest.mark.parametrize("size", slow_but([(12, 28)], [(28, 28), (12, 12), (12, 28)]))
def test_beit_at_another_size(name, size, models, written):
    reference, folder = written(name)
    model = vit_tf.load_pretrained(folder, image_shape=size)
    images = pictures(model.image_shape)
    assert_matches(model, models.taps(reference, images), images)


@SLOW
def test_bit_at_an_odd_size(models, written):
    reference, folder = written("bit", 64)
    model = vit_tf.load_pretrained(folder, image_shape=(45, 67))
    images = pictures((45, 67, 3))
    assert_matches(model, models.taps(reference, images), images)


@pytest.mark.parametrize("name", slow_but(("clip",), ["clip", "metaclip2", "mae"]))
def test_resampled_positions_are_those_of_transformers(name, models, written):
    import torch

    reference, folder = written(name)
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    inner = reference.vision_model if "clip" in name else reference.vit
    images = pictures((12, 28, 3))
    pixels = torch.tensor(images.transpose(0, 3, 1, 2).copy())
    options = {} if "clip" in name else {"noise": torch.arange(21).repeat(2, 1) / 21}
    with torch.no_grad():
        expected = inner.embeddings(pixels, **options, interpolate_pos_encoding=True)
    expected = (expected if "clip" in name else expected[0]).numpy()
    actual = np.asarray(model.intermediates(images)["embedding"])
    assert np.abs(actual - expected).max() < MOST * np.abs(expected).max()


def test_parts_and_silent_configs(models, written):
    reference, folder = written("clip", max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    images = pictures((20, 20, 3))
    expected = models.taps(reference, images)
    assert max(errors_of(vit_tf.load_pretrained(folder), expected, images).values()) < MOST
    (folder / "preprocessor_config.json").unlink()
    assert vit_tf.load_pretrained(folder).preprocessing.mean == CLIP["mean"]
    change(folder, vision_config=None)
    with refuses("vision_config"):
        vit_tf.load_pretrained(folder)
    change(folder, vision_config={})
    with refuses("positions|misshapen"):
        vit_tf.load_pretrained(folder)


def test_labels_that_are_made_up_are_no_names(written):
    _, folder = written("beit")
    change(folder, id2label={str(i): f"LABEL_{i}" for i in range(3)})
    assert vit_tf.load_pretrained(folder).class_names is None
    change(folder, id2label={str(i): name for i, name in enumerate("abc")})
    model = vit_tf.load_pretrained(folder)
    assert model.class_names == ("a", "b", "c")
    assert vit_tf.at_resolution(model, (24, 24)).class_names == ("a", "b", "c")


def test_siglip_does_not_read_pixels_beyond_its_patches(written):
    """Of 20 pixels patches of 6 leave 2."""
    reference, folder = written("siglip")
    model = vit_tf.load_pretrained(folder)
    assert model.image_shape == (20, 20, 3) and model.token_grid == vit_tf.TokenGrid(3, 3, 0, 6)
    assert model.preprocessing == vit_tf.Preprocessing((20, 20), interpolation="bicubic")
    images = pictures((20, 20, 3))
    images[:, 18:] = images[:, :, 18:] = 9
    np.testing.assert_array_equal(model(images), model(np.where(images == 9, 0, images)))
    assert model.count_params() == sum(p.numel() for p in reference.vision_model.parameters())


@SLOW
def test_positions_of_siglip_at_another_size(tmp_path):
    encoders = helper_or_skip("tower_models", "transformers")
    reference = encoders.siglip(patch_size=4, image_size=20)
    folder = encoders.write(reference, tmp_path / "folder")
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    images = pictures((12, 28, 3))
    expected = encoders.siglip_taps(reference, images, resampled=True)
    assert_matches(model, expected, images)
    other = vit_tf.load_pretrained(folder, image_shape=(12, 28), positions="bilinear")
    assert errors_of(other, expected, images)["embedding"] > 1e-3


def test_a_folder_of_a_base_siglip_leaves_its_sizes_out(tmp_path):
    """As google/siglip-base-patch16-224: all that it states is that it is a SigLIP."""
    config = {"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model"}}
    conversion = convert_siglip(Folder(str(tmp_path), config, None, [], None), LoadOptions())
    variant = vit_tf.SigLIPViT.variants["B/16"]
    assert {name: conversion.mapping.arguments[name] for name in variant} == variant
    assert conversion.mapping.arguments["image_shape"] == (224, 224, 3)


def test_a_classifier_of_siglip_reads_the_mean(tmp_path):
    encoders = helper_or_skip("tower_models", "transformers")
    transformers = encoders.transformers
    config = transformers.SiglipConfig(encoders.TEXT, encoders.VISION, num_labels=4)
    reference = encoders.randomize(transformers.SiglipForImageClassification(config))
    folder = encoders.write(reference, tmp_path / "classifier")
    with refuses("mean of the tokens"):
        vit_tf.load_pretrained(folder)
    assert vit_tf.load_pretrained(folder, num_classes=4).num_classes == 4
    with refuses("pooling='gap'"):
        vit_tf.load_pretrained(folder, pooling="gap")


@pytest.mark.parametrize("name", ["dinov2-linear", "registers-linear"])
def test_a_classifier_of_dinov2_reads_the_mean_too(name, models, written):
    reference, folder = written(name)
    with refuses("num_classes for a new head.*mean of the patches.*PyTorch module"):
        vit_tf.load_pretrained(folder)
    model = vit_tf.load_pretrained(folder, num_classes=3)
    assert model.num_classes == 3 and not np.any(model.head.kernel)
    images = pictures(model.image_shape)
    expected = models.taps(reference, images)
    actual = model.intermediates(images)
    np.testing.assert_allclose(
        actual["norm"], expected["norm"], atol=1e-5 * np.abs(expected["norm"]).max()
    )


@pytest.mark.parametrize("kind", ["aimv2", "aimv2_vision_model"])
def test_an_aimv2_is_measured_as_the_module(kind, written):
    _, folder = written("vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    with refuses(r"analysis.cka\(transformers.AutoModel.from_pretrained\(FOLDER\), images\)"):
        vit_tf.load_pretrained(folder)
