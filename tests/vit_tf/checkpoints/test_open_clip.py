"""Folders of open_clip: `open_clip_config.json` beside its weights, against its own models."""

import dataclasses
import json
import shutil

import pytest
from archive_files import refuses, write_safetensors
from checkpoint_layouts import clip as openai_clip

import vit_tf
from vit_tf.checkpoints.released import CHECKPOINTS, fetch
from vit_tf.data.preprocessing import CLIP, HALF

MOST = 1e-5
SLOW = pytest.mark.slow
WIDER = {"mlp_ratio": 4, "head_width": 6, "patch_dropout": 0.5}
# Two heads of 12 channels, an MLP of 2.7 times as many.
VISION = {"image_size": 20, "layers": 2, "width": 24, "head_width": 12, "mlp_ratio": 2.7}
VISION |= {"patch_size": 4}
TEXT = {"context_length": 4, "vocab_size": 7, "width": 8, "heads": 2, "layers": 1}
MODEL = {"embed_dim": 10, "vision_cfg": VISION, "text_cfg": TEXT}
IMAGES = {"mean": [0.4] * 3, "std": [0.3] * 3}


@pytest.fixture
def open_clip():
    from without_torchvision import import_or_skip

    return import_or_skip("open_clip")


@pytest.fixture
def written(open_clip, tmp_path):
    """Function of what differs in the configuration to a model of open_clip's and its folder."""
    import torch
    from tower_models import randomize

    def written(vision=None, images=IMAGES, **fields):
        cfg = MODEL | fields | {"vision_cfg": VISION | (vision or {})}
        make = open_clip.model.CustomTextCLIP if cfg.pop("custom_text", 0) else open_clip.CLIP
        model = randomize(make(**cfg))
        torch.save(model.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
        write_config(tmp_path, {"model_cfg": cfg, "preprocess_cfg": images})
        return model, tmp_path

    return written


def write_config(folder, fields):
    (folder / "open_clip_config.json").write_text(json.dumps(fields))


def taps(model, images):
    """dict from tap to what open_clip makes of images (example, height, width, channel)."""
    from tower_models import caught

    tower = model.visual
    modules = {"pre_norm": tower.ln_pre, "norm": tower.ln_post}
    blocks = enumerate(tower.transformer.resblocks)
    modules |= {f"block{i:02d}/mlp/sum": block for i, block in blocks}
    actual, output = caught(tower, modules, images)
    return actual | {"projected": output.numpy()}


def errors_of(model, reference, seed=1):
    """The largest difference of each tap, relative to its largest number."""
    from checkpoint_families import errors_of, pictures

    images = pictures(model.image_shape, seed)
    return errors_of(model, taps(reference, images), images)


def worldwide(**fields):
    """Fields of MetaCLIP 2 (`ViT-H-14-worldwide*.json`), with a tiny vocabulary."""
    text = TEXT | {"hf_tokenizer_name": "facebook/xlm-v-base", "pool_type": "eos", "eos_id": 2}
    return {"text_cfg": text} | fields


@pytest.mark.parametrize(
    ("fields", "vision", "activation"),
    [
        ({}, {}, "gelu"),
        (worldwide(quick_gelu=True), {"head_width": 8}, "quick_gelu"),
        pytest.param(worldwide(), {"head_width": 8, "image_size": 28}, "gelu", marks=SLOW),
        pytest.param({"quick_gelu": True}, {}, "quick_gelu", marks=SLOW),
        pytest.param({"quick_gelu": False}, {"image_size": [12, 28]}, "gelu", marks=SLOW),
        ({"custom_text": True}, {"pos_embed_type": "sin_cos_2d"}, "gelu"),
        pytest.param({}, WIDER, "gelu", marks=SLOW),
    ],
)
def test_every_block_is_open_clips(fields, vision, activation, written):
    reference, folder = written(vision, **fields)
    model = vit_tf.load_pretrained(folder)
    assert model.get_config()["activation"] == activation
    errors = errors_of(model, reference)
    assert len(errors) == 5 and max(errors.values()) < MOST, errors
    assert model.preprocessing.mean == (0.4,) * 3 and model.preprocessing.std == (0.3,) * 3
    assert (model.preprocessing.interpolation, model.preprocessing.crop) == ("bicubic", 1.0)
    assert model.preprocessing.size == model.image_shape[:2]


def test_worldwide_fields_are_those_of_metaclip_2(open_clip):
    for name in ("H-14-worldwide", "H-14-worldwide-quickgelu"):
        config = open_clip.get_model_config(f"ViT-{name}")
        assert set(config["text_cfg"]) == set(worldwide()["text_cfg"])
        assert set(config["vision_cfg"]) <= set(VISION)
        assert config.get("quick_gelu", False) == name.endswith("quickgelu")


def test_safetensors_come_first(written):
    reference, folder = written()
    state = {name: t.detach().numpy() for name, t in reference.state_dict().items()}
    write_safetensors(folder / "open_clip_model.safetensors", state)
    (folder / "open_clip_pytorch_model.bin").write_bytes(b"damaged")
    assert max(errors_of(vit_tf.load_pretrained(folder), reference).values()) < MOST
    # As several devices trained it.
    state = {f"module.{name}": array for name, array in state.items()}
    write_safetensors(folder / "open_clip_model.safetensors", state)
    assert max(errors_of(vit_tf.load_pretrained(folder), reference).values()) < MOST


def test_positions_are_resampled_as_open_clip_does(written, open_clip):
    """Bicubic and antialiased, also where images are shrunk by another filter."""
    reference, folder = written(images=IMAGES | {"interpolation": "bilinear"})
    state = {name: t.detach().clone() for name, t in reference.state_dict().items()}
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    larger, _ = written({"image_size": [12, 28]})
    open_clip.model.resize_pos_embed(state, larger)
    larger.load_state_dict(state)
    assert max(errors_of(model, larger).values()) < MOST


def test_images(written):
    _, folder = written(images=IMAGES | {"interpolation": "bilinear", "resize_mode": "squash"})
    cfg = vit_tf.load_pretrained(folder).preprocessing
    assert (cfg.interpolation, cfg.crop) == ("bilinear", None)
    _, folder = written(images=None)
    assert vit_tf.load_pretrained(folder).preprocessing.mean == CLIP["mean"]
    own = vit_tf.Preprocessing((20, 20), **HALF)
    _, folder = written(images={"resize_mode": "longest"})
    assert vit_tf.load_pretrained(folder, preprocessing=own).preprocessing == own


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attentional_pool": True}, "attentional_pool.*False.*True"),
        ({"no_ln_pre": True}, "no_ln_pre.*False.*True"),
        ({"pool_type": "avg"}, "pool_type.*'tok'.*'avg'"),
        ({"final_ln_after_pool": True}, "final_ln_after_pool"),
        ({"ls_init_value": 0.1}, "ls_init_value.*None.*0.1"),
        ({"qk_norm": True}, "qk_norm.*False.*True"),
        ({"act_kwargs": {"approximate": "tanh"}}, "act_kwargs.*None.*tanh"),
        ({"norm_kwargs": {"eps": 1e-6}}, "norm_kwargs"),
        ({"timm_model_name": "convnext_base"}, "timm_model_name.*None.*'convnext_base'"),
        ({"moe": 8}, "supports in vision_cfg.*'moe'"),
        ({"head_width": 48}, "head_width.*24.*48"),
        ({"image_size": 24}, "positions"),
        ({"image_size": "20"}, "image_size of open_clip_config.json.*'20'"),
    ],
)
def test_other_encoders_are_named(fields, message, written):
    _, folder = written()
    cfg = MODEL | {"vision_cfg": VISION | fields}
    write_config(folder, {"model_cfg": cfg, "preprocess_cfg": IMAGES})
    with refuses(message):
        vit_tf.load_pretrained(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_cfg": None}, "the configuration and the tensors.*NoneType"),
        ({"model_cfg": {"embed_dim": 10}}, "vision_cfg"),
        ({"model_cfg": MODEL | {"quick_gelu": "yes"}}, "quick_gelu.*'yes'"),
        ({"preprocess_cfg": [1]}, "the configuration and the tensors"),
        ({"preprocess_cfg": {"resize_mode": "longest"}}, "resize_mode.*'longest'"),
        ({"preprocess_cfg": {"interpolation": "random"}}, "interpolation.*'random'"),
        ({"preprocess_cfg": {"mode": "L"}}, "mode.*'RGB'.*'L'"),
        ({"preprocess_cfg": {"mean": [0.5]}}, "mean"),
        ({"preprocess_cfg": {"size": 24}}, r"size.*\(20, 20\).*\(24, 24\)"),
    ],
)
def test_other_configurations_are_named(fields, message, written):
    _, folder = written()
    write_config(folder, {"model_cfg": MODEL, "preprocess_cfg": IMAGES} | fields)
    with refuses(message):
        vit_tf.load_pretrained(folder)


def test_what_leaves_no_choice(written):
    _, folder = written()
    for options in ({"activation": "quick_gelu"}, {"num_heads": 3}, {"pooling": "gap"}):
        with refuses(next(iter(options))):
            vit_tf.load_pretrained(folder, **options)
    (folder / "open_clip_pytorch_model.bin").unlink()
    with refuses("open_clip_model.safetensors or open_clip_pytorch_model.bin"):
        vit_tf.load_pretrained(folder)


@pytest.mark.parametrize(
    "size", [(20, 20), pytest.param((24, 6), marks=SLOW), pytest.param((18, 20), marks=SLOW)]
)
def test_siglip_in_a_folder(size, tmp_path):
    """open_clip takes these encoders from timm; `image_size` includes pixels beyond the patches."""
    pytest.importorskip("torch", reason="torch is not installed")
    import tower_models

    reference = tower_models.timm_siglip(img_size=size)
    state = tower_models.state_of(reference, "visual.trunk.")
    write_safetensors(tmp_path / "open_clip_model.safetensors", state)
    vision = {"image_size": list(size), "timm_model_name": "vit_base_patch16_siglip_224"}
    vision |= {"timm_pool": "", "timm_proj": "none"}
    images = {**{n: list(v) for n, v in HALF.items()}, "resize_mode": "squash"}
    write_config(tmp_path, {"model_cfg": MODEL | {"vision_cfg": vision}, "preprocess_cfg": images})
    model = vit_tf.load_pretrained(tmp_path, num_heads=3)
    assert model.image_shape == (*size, 3) and model.preprocessing.crop is None
    images = tower_models.pictures((*size, 3))
    expected = tower_models.timm_taps(reference, images)
    expected["pooled"] = expected.pop("output")
    assert max(tower_models.errors_of(model, expected, images).values()) < MOST
    other = {"model_cfg": MODEL | {"vision_cfg": vision | {"image_size": [30, 24]}}}
    write_config(tmp_path, other)
    with refuses(r"\(30, 24\), the image_size in open_clip_config.json|as many positions"):
        vit_tf.load_pretrained(tmp_path, num_heads=3)


@pytest.mark.parametrize("kind", ["transformers", "safetensors", "bin"])
def test_a_name_on_the_hub(kind, written, tmp_path, monkeypatch):
    """Weights are downloaded once, in the first kind that there is."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    reference, remote = written()
    state = {name: t.detach().numpy() for name, t in reference.state_dict().items()}
    if kind != "bin":
        write_safetensors(remote / "open_clip_model.safetensors", state)
    if kind == "transformers":
        (remote / "model.safetensors").write_bytes(b"damaged")
        (remote / "config.json").write_text("{}")
    calls, local = [], tmp_path / "local"
    local.mkdir()

    def snapshot_download(repository, allow_patterns):
        calls.append(allow_patterns)
        for path in (path for pattern in allow_patterns for path in remote.glob(pattern)):
            shutil.copy(path, local)
        return str(local)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    name = "hf://laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    if kind == "transformers":
        with refuses("model.safetensors"):
            vit_tf.load_pretrained(name)
    else:
        assert max(errors_of(vit_tf.load_pretrained(name), reference).values()) < MOST
    assert "open_clip_config.json" not in calls[0]
    kinds = ["transformers", "safetensors", "bin"]
    ends = ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"][: kinds.index(kind)]
    assert calls[1:] == [["open_clip_config.json", end] for end in ends]


def test_bare_files(tmp_path):
    """Only OpenAI's own hold the numbers that their code was traced with."""
    path = tmp_path / "model.safetensors"
    state = openai_clip()
    write_safetensors(path, state)
    model = vit_tf.load_pretrained(path, num_heads=3)
    assert model.get_config()["activation"] == "quick_gelu"
    write_safetensors(path, {n: x for n, x in state.items() if n != "context_length"})
    with refuses("activation='quick_gelu'.*'gelu'.*open_clip_config.json.*None"):
        vit_tf.load_pretrained(path, num_heads=3)
    for form in ("gelu", "quick_gelu"):
        model = vit_tf.load_pretrained(path, num_heads=3, activation=form)
        assert model.get_config()["activation"] == form


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "gelu"),
        ("apple/DFN2B-CLIP-ViT-B-16", "quick_gelu"),
        ("timm/vit_base_patch16_clip_224.openai", "quick_gelu"),
    ],
)
def test_names_determine_the_form_of_gelu(name, activation, tmp_path, monkeypatch):
    """A file by its name, which does not tell it itself."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {n: x for n, x in openai_clip().items() if n != "context_length"})
    actual = (str(path), dataclasses.replace(CHECKPOINTS[name], resolution=None))
    monkeypatch.setattr("vit_tf.checkpoints.released.fetch", lambda _: actual)
    model = vit_tf.load_pretrained(name, num_heads=3)
    assert model.get_config()["activation"] == activation
    assert fetch(str(path)) == (str(path), None)


def test_names_have_the_fields_that_open_clip_lists(open_clip):
    """Every field of each of its repositories in the table, by `pretrained.py` of open_clip."""
    listed = {}
    for model, trainings in open_clip.pretrained._PRETRAINED.items():
        for config in trainings.values():
            listed.setdefault(config["hf_hub"].strip("/"), []).append((model, config))
    names = [name for name in CHECKPOINTS if name.startswith(("laion/", "apple/"))]
    assert len(names) == 17
    for name in names:
        checkpoint, rows = CHECKPOINTS[name], listed[name]
        for model, config in rows:
            cfg = open_clip.get_model_config(model)
            vision = cfg["vision_cfg"]
            sizes = vit_tf.CLIPViT.variants[checkpoint.variant]
            assert vision["image_size"] == checkpoint.resolution
            heads = vision["width"] // vision.get("head_width", 64)
            hidden = int(vision["width"] * vision.get("mlp_ratio", 4))
            actual = [sizes[n] for n in ("patch_size", "num_layers", "hidden_dim", "num_heads")]
            assert actual == [*(vision[n] for n in ("patch_size", "layers", "width")), heads]
            assert (sizes["mlp_dim"], sizes["projection_dim"]) == (
                hidden,
                cfg["embed_dim"],
            )
            quick = config.get("quick_gelu", False)
            assert checkpoint.activation == ("quick_gelu" if quick else "gelu"), name
            assert checkpoint.values["mean"] == config["mean"], name
            assert checkpoint.values["std"] == config["std"], name
            assert checkpoint.interpolation == config["interpolation"]
            squeezed = config["resize_mode"] == "squash"
            assert checkpoint.crop == (None if squeezed else 1.0), name
