"""Files in timm's names as timm writes them, and DINOv3 in its authors' names, against timm."""

import re

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses, write_safetensors
from checkpoint_families import arrays, assert_matches, errors_of, pictures

import vit_tf
from vit_tf.checkpoints import timm
from vit_tf.checkpoints.released import CHECKPOINTS, timm_activation
from vit_tf.data.preprocessing import CLIP, IMAGENET

MOST = 1e-5
SLOW = pytest.mark.slow
GELU, QUICK = {"activation": "gelu"}, {"activation": "quick_gelu"}
TOKEN, MEAN = {"global_pool": "token"}, {"global_pool": "avg"}
GAP = {"pooling": "gap"}
# The model of the helper's table, arguments of timm's, and options of `load_pretrained`. timm's own
# pooling of DINOv3 is the mean of the patches.
FILES = {
    **{name: (name, MEAN, GAP) for name in ("dinov3", "dinov3-qkvb", "dinov3-plus")},
    "dinov3, token": ("dinov3-plus", TOKEN, {"pooling": "cls"}),
    "clip": ("clip", {}, GELU),
    "clip-quick": ("clip-quick", {}, QUICK),
    "mae": ("mae", {}, {}),
    "mae-tuned": ("mae-tuned", {}, {}),
}
# The same of other prefix tokens and scales.
TOKENS = [
    {"no_embed_class": True, "init_values": 0.1},
    {"reg_tokens": 2},
    {"reg_tokens": 2, "no_embed_class": True},
    {"reg_tokens": 4, "no_embed_class": True, "class_token": False},
    {"reg_tokens": 1, "class_token": False},
]
FILES |= {f"mae-tuned {i}": ("mae-tuned", fields, {}) for i, fields in enumerate(TOKENS)}


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("timm_models", "safetensors")


@pytest.fixture
def written(models, tmp_path):
    """Function of a name in the table of tiny models to a model of timm's and its file."""

    def written(name, **fields):
        model = models.make(name, **fields)
        return model, models.write(model, tmp_path / "model.safetensors")

    return written


def files_and_sizes():
    """Each file at its own size and at another; slow but for one of each of timm's classes."""
    quick = {("clip", False), ("mae-tuned", True), ("dinov3-plus", False)}
    for name in FILES:
        for size in (None, (12, 24)):
            marks = () if (name, size is not None) in quick else SLOW
            yield pytest.param(
                name, size, marks=marks, id=f"{name}-{'oblong' if size else 'own size'}"
            )


# No file here has as many positions as the other size has tokens, which would be ambiguous.
@pytest.mark.parametrize(("name", "size"), files_and_sizes())
def test_every_block_is_timms(name, size, models, written, tmp_path):
    """At the size of the file, and at another, to which timm resamples positions."""
    kind, fields, options = FILES[name]
    reference, path = written(kind, **fields)
    options = options | {"num_heads": 3, "image_shape": size or (20, 20)}
    model = vit_tf.load_pretrained(path, **options)
    if size:
        reference.set_input_size(size)
    images = pictures(model.image_shape)
    assert_matches(model, models.taps(reference, images), images, 5 if "clip" in kind[:5] else 4)
    values = CLIP if kind.startswith("clip") else IMAGENET
    if fields.get("class_token", True):
        assert model.preprocessing.mean == values["mean"]
    if size is None:
        model.save(tmp_path / "again.keras")
        again = vit_tf.load_model(tmp_path / "again.keras")
        np.testing.assert_array_equal(again(images), model(images))
        other = vit_tf.load_pretrained(path, **options, num_classes=7)
        assert other.num_classes == 7 and not np.any(other.head.kernel)
    if name.startswith("dinov3"):
        assert model.prefix_names == ("CLS", *(f"register {i}" for i in (1, 2, 3, 4)))


@pytest.mark.parametrize(
    ("name", "fields", "options", "message"),
    [
        ("mae-tuned", {}, {"pooling": "cls"}, "pooling='gap'.*pooling='cls'"),
        ("mae-tuned", {"qk_norm": True}, {}, "unexpected tensors.*q_norm"),
        ("clip", {"global_pool": "avg"}, GELU, "unexpected tensors.*fc_norm"),
        ("clip", {"reg_tokens": 2}, GELU, "28 positions"),
        ("clip", {"no_embed_class": True}, GELU, "class token that has a position.*25"),
        ("clip", {"qk_norm": True}, GELU, "unexpected tensors.*q_norm"),
        ("clip", {"init_values": 0.1}, GELU, "unexpected tensors.*ls1"),
        ("clip", {"qkv_bias": False}, GELU, "missing tensors.*qkv.bias"),
        ("clip", {}, {}, "activation='quick_gelu'.*'gelu'.*None"),
        ("clip", {}, {"activation": "relu"}, "activation.*'relu'"),
        # timm's DINOv3 takes the mean of the patches, LingBot-Vision the class token.
        ("dinov3-qkvb", {}, {}, "pooling='gap' .* or 'cls'.*LingBot"),
        # The tensors of a pre-norm and of a post-norm ViT have the same names and shapes.
        ("mae-tuned", {"class_token": False}, {}, "before attention and MLP, or after.*_rpn_"),
        ("rpn", {}, {}, "before attention and MLP, or after.*_rpn_"),
    ],
)
def test_what_no_model_here_computes_is_refused(name, fields, options, message, written):
    _, path = written(name, **fields)
    with refuses(message):
        vit_tf.load_pretrained(path, **{"num_heads": 3} | options)


def test_released_models_with_the_tensors_of_others_are_refused_by_name(models, tmp_path):
    for name, model in (("rpn_224", models.make("rpn", class_token=True)), ("lingbot", None)):
        model = model or models.make("dinov3-qkvb")
        path = models.write(model, tmp_path / f"vit_base_patch16_{name}.safetensors")
        with refuses("has the name of a model that"):
            vit_tf.load_pretrained(path, num_heads=3, pooling="cls")


@pytest.mark.parametrize(
    ("name", "tensors", "message"),
    [
        ("mae-tuned", {"norm.weight": 24}, "unexpected tensors.*norm.weight"),
        ("dinov3", {"fc_norm.weight": 24}, "fc_norm.*is no DINOv3"),
        ("dinov3", {"head.weight": (5, 24)}, "unexpected tensors.*head.weight"),
    ],
)
def test_tensors_of_other_models_are_refused(name, tensors, message, models, tmp_path):
    state = arrays_of(models.make(name)) | {n: np.ones(x, "float32") for n, x in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", state)
    with refuses(message):
        vit_tf.load_pretrained(tmp_path / "model.safetensors", num_heads=3, pooling="gap")


def arrays_of(model):
    return {name: x.numpy() for name, x in model.state_dict().items()}


def as_authors(state):
    """The tensors of timm's small DINOv3 in the names of the authors' code."""
    tensors = {"mask_token": np.ones((1, 24), "float32")}
    tensors["rope_embed.periods"] = np.float32([1, 10])
    for name, array in state.items():
        if name.endswith("attn.q_bias"):
            block = name.removesuffix(".q_bias")
            # What the mask takes out, as the authors' code multiplies by it.
            thirds = [array, np.full(24, 7.0, "float32"), state[f"{block}.v_bias"]]
            tensors[f"{block}.qkv.bias"] = np.concatenate(thirds)
            tensors[f"{block}.qkv.bias_mask"] = np.repeat(np.float32([1, 0, 1]), 24)
        elif not name.endswith("v_bias"):
            for ours, theirs in AUTHORS.items():
                name = name.replace(ours, theirs)
            tensors[name] = array
    return tensors


AUTHORS = {"reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
AUTHORS |= {"fc1_g": "w1", "fc1_x": "w2"}


@pytest.mark.parametrize("name", ["dinov3-qkvb", pytest.param("dinov3-plus", marks=SLOW)])
def test_dinov3_in_the_names_of_its_authors(name, models, tmp_path):
    reference = models.make(name)
    tensors = as_authors(arrays_of(reference))
    if name == "dinov3-plus":
        tensors = {key.replace("mlp.fc2", "mlp.w3"): x for key, x in tensors.items()}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors)
    model = vit_tf.load_pretrained(path, image_shape=(20, 20))
    images = pictures((20, 20, 3))
    assert_matches(model, models.taps(reference, images), images)
    with refuses("num_heads.*3.*num_heads=2"):
        vit_tf.load_pretrained(path, num_heads=2)
    write_safetensors(path, tensors | {"rope_embed.periods": np.ones(5, "float32")})
    with refuses("periods"):
        vit_tf.load_pretrained(path)
    # Another base of the rotary positions, and keys with a bias.
    write_safetensors(path, tensors | {"rope_embed.periods": np.float32([1, 100])})
    with refuses(r"periods.*\[ *1., *10.\].*Received: \[ *1., *100"):
        vit_tf.load_pretrained(path)
    masks = {name: np.ones_like(x) for name, x in tensors.items() if name.endswith("bias_mask")}
    write_safetensors(path, tensors | masks)
    if masks:
        with refuses("attn.qkv.bias_mask.*only supported"):
            vit_tf.load_pretrained(path)


def under(prefix, tensors):
    return {f"{prefix}{name}": x for name, x in tensors.items()}


@pytest.mark.parametrize(
    ("version", "container"),
    [
        ("DINOv2", "teacher"),
        ("DINOv3", "model"),
        pytest.param("DINOv2", "model", marks=SLOW),
        pytest.param("DINOv3", "teacher", marks=SLOW),
    ],
)
def test_a_training_of_dino_opens_as_the_encoder_of_its_teacher(
    version, container, models, tmp_path
):
    """As `teacher_checkpoint.pth`, and as the whole of the training, where a student is as well."""
    if version == "DINOv2":
        reference = models.make("mae", init_values=0.1)
        tensors = arrays_of(reference) | {"mask_token": np.ones((1, 24), "float32")}
    else:
        reference = models.make("dinov3-qkvb")
        tensors = as_authors(arrays_of(reference))
    heads = {"mlp.0.weight": np.ones((8, 24)), "last_layer.weight_g": np.ones((9, 1))}
    heads = under("dino_head.", heads) | under("ibot_head.", heads)
    saved = under("backbone.", tensors) | heads
    if container == "model":
        student = under("backbone.", {name: 2 * x for name, x in tensors.items()}) | heads
        centres = {"dino_loss.center": np.ones((1, 9)), "ibot_patch_loss.center": np.ones((1, 9))}
        saved = under("student.", student) | under("teacher.", saved) | centres
    saved = {name: models.torch.tensor(x) for name, x in saved.items()}
    path = tmp_path / "teacher_checkpoint.pth"
    models.torch.save({container: saved, "iteration": 5}, path)
    model = vit_tf.load_pretrained(path, num_heads=3, image_shape=(20, 20))
    images = pictures((20, 20, 3))
    assert_matches(model, models.taps(reference, images), images)
    prefix = "" if container == "teacher" else "teacher."
    extra = {f"{prefix}backbone.blocks.0.attn.q_norm.weight": models.torch.ones(8)}
    models.torch.save({container: saved | extra}, path)
    with refuses("unexpected tensors.*q_norm"):
        vit_tf.load_pretrained(path, num_heads=3)


# Tiny DINOv2 in the names of its authors, who keep the position of the class token apart.
GATED = {"mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3", "reg_token": "register_tokens"}


@pytest.mark.parametrize(
    ("size", "registers"),
    [
        pytest.param("small", 0, marks=SLOW),
        ("giant", 4),
        pytest.param("small", 4, marks=SLOW),
        pytest.param("giant", 0, marks=SLOW),
    ],
)
def test_dinov2_in_the_names_of_its_authors(size, registers, models, tmp_path):
    """The MLP of the giant is gated; files without registers have their own resampling."""
    fields = models.SIZES | {"num_classes": 0} | ({"reg_tokens": registers} if registers else {})
    kind = f"vit_{size}_patch14{'_reg4' * bool(registers)}_dinov2"
    torch, reference = (
        models.torch,
        models.timm.create_model(kind, **fields),
    )
    images, state = pictures((20, 20, 3)), arrays_of(models.randomize(reference))
    expected = models.taps(reference, images)
    if registers:
        position = np.ones((1, 1, 24), "float32")
        state["pos_embed"] = np.concatenate([position, state["pos_embed"]], axis=1)
        state["cls_token"] = state["cls_token"] - position
    names = GATED if size == "giant" else {"reg_token": "register_tokens"}
    for ours, theirs in names.items():
        state = {name.replace(ours, theirs): x for name, x in state.items()}
    path = tmp_path / "model.pth"
    state["mask_token"] = np.ones((1, 24), "float32")
    torch.save({name: torch.from_numpy(x) for name, x in state.items()}, path)
    model = vit_tf.load_pretrained(path, num_heads=3)
    assert_matches(model, expected, images, 4)
    config = model.get_config()
    assert config.get("activation", "gelu") == ("swiglu" if size == "giant" else "gelu")
    assert model.preprocessing.mean == IMAGENET["mean"]
    other = vit_tf.load_pretrained(path, num_heads=3, image_shape=(28, 16))
    resampled = vit_tf.at_resolution(model, (28, 16), method="bicubic" if registers else "dino")
    np.testing.assert_array_equal(other.embedding.positions, resampled.embedding.positions)


def test_deit3_in_the_names_of_its_authors(models, tmp_path):
    torch = models.torch
    sizes = models.SIZES | {"num_classes": 5}
    reference = models.timm.create_model("deit3_small_patch16_224", **sizes)
    state = arrays_of(models.randomize(reference))
    for n in (1, 2):
        state = {name.replace(f"ls{n}.gamma", f"gamma_{n}"): x for name, x in state.items()}
    write_safetensors(tmp_path / "model.safetensors", state)
    # As timm's ViTs with rotary positions, besides learned ones, have these names too.
    with refuses("rotary positions.*DeiT-3"):
        vit_tf.load_pretrained(tmp_path / "model.safetensors", num_heads=3)
    path, images = tmp_path / "deit_3.pth", pictures((20, 20, 3))
    torch.save({"model": {name: torch.from_numpy(x) for name, x in state.items()}}, path)
    model = vit_tf.load_pretrained(path, num_heads=3)
    assert_matches(model, models.taps(reference, images), images, 4)
    assert model.get_config()["class_position"] is False
    assert model.preprocessing.std == IMAGENET["std"]


def test_a_distilled_deit_keeps_or_replaces_both_heads(models, tmp_path):
    sizes = models.SIZES | {"num_classes": 5}
    reference = models.timm.create_model("deit_small_distilled_patch16_224", **sizes)
    path = models.write(models.randomize(reference), tmp_path / "model.safetensors")
    model, images = vit_tf.load_pretrained(path, num_heads=3), pictures((20, 20, 3))
    assert_matches(model, models.taps(reference, images), images, 4)
    assert model.prefix_names == ("CLS", "distillation")
    assert model.preprocessing.mean == IMAGENET["mean"]
    other = vit_tf.load_pretrained(path, num_heads=3, num_classes=7, image_shape=(24, 28))
    assert not np.any(other.head.kernel) and not np.any(other.distillation_head.kernel)
    assert other.distillation_head.kernel.shape[-1] == 7 and other.token_grid.prefix == 2
    with refuses("'gap'.*dist_token"):
        vit_tf.load_pretrained(path, num_heads=3, pooling="gap")
    state = arrays_of(reference)
    del state["head_dist.bias"]
    write_safetensors(path, state)
    with refuses("unexpected tensors .*head_dist.weight"):
        vit_tf.load_pretrained(path, num_heads=3)


def test_the_other_form_of_gelu_is_another_model(models, written):
    reference, path = written("clip")
    model = vit_tf.load_pretrained(path, num_heads=3, activation="quick_gelu")
    images = pictures(model.image_shape)
    errors = errors_of(model, models.taps(reference, images), images)
    assert max(errors.values()) > 100 * MOST


def test_a_head_of_the_size_of_the_projection_is_the_projection(models, written, monkeypatch):
    monkeypatch.setitem(timm.PROJECTIONS, 24, 10)
    options = {"num_heads": 3, "activation": "gelu"}
    reference, path = written("clip")
    with refuses("head.bias.*zero bias"):
        vit_tf.load_pretrained(path, **options)
    reference.head.bias.data.zero_()
    models.write(reference, path)
    encoder = vit_tf.load_pretrained(path, **options)
    images = pictures(encoder.image_shape)
    expected = models.taps(reference, images)
    expected["projected"] = expected.pop("logits")
    assert_matches(encoder, expected, images)
    assert encoder.head is None and encoder.embedding_dim == 10
    classifier = vit_tf.load_pretrained(path, num_classes=4, **options)
    assert classifier.embedding_dim == 10 and not np.any(classifier.head.kernel)


def test_an_encoder_without_a_head_returns_its_class_token(models, written):
    reference, path = written("clip", num_classes=0)
    model = vit_tf.load_pretrained(path, num_heads=3, activation="gelu")
    images = pictures(model.image_shape)
    expected = models.taps(reference, images)
    expected["projected"] = expected.pop("logits")
    assert_matches(model, expected, images)
    assert model.head is None


def test_names_have_the_form_of_gelu_that_timm_notes(models):
    """timm notes which of its CLIPs were trained with the quick form."""
    noted = 0
    for name in models.timm.list_pretrained("vit_*_clip_*"):
        notes = models.timm.get_pretrained_cfg(name).notes or ()
        noted += (quick := any("natively QuickGELU" in note for note in notes))
        assert timm_activation(name) == ("quick_gelu" if quick else "gelu"), name
    assert noted > 20
    names = [name for name in CHECKPOINTS if re.search("timm/vit_.*_clip_", name)]
    assert len(names) == 59
    for name in names:
        assert CHECKPOINTS[name].activation == timm_activation(name.removeprefix("timm/"))


# SigLIP, also in open_clip's files and in big_vision's names.


def siglip_file(names, encoders, folder):
    """A model of timm's with the pooling of SigLIP, its file, and options to load it."""
    reference = encoders.timm_siglip()
    state, path = encoders.state_of(reference), folder / "model.safetensors"
    if names.startswith("big_vision"):
        path = folder / "model.npz"
        np.savez(path, **encoders.big_vision_siglip(state, 3, names.endswith("stacked")))
        return reference, path, {}
    if names == "open_clip":
        text = {"text.ln_final.bias": np.ones(3, "float32"), "logit_bias": np.ones((), "float32")}
        state = encoders.state_of(reference, "visual.trunk.") | text
    write_safetensors(path, state)
    return reference, path, {"num_heads": 3}


def siglip_taps(encoders, reference, images):
    expected = encoders.timm_taps(reference, images)
    return expected | {"pooled": expected.pop("output")}


@pytest.fixture
def encoders():
    """The helper of tiny image encoders."""
    return helper_or_skip("tower_models", "transformers")


@pytest.mark.parametrize(
    "names",
    [
        "timm",
        pytest.param("open_clip", marks=SLOW),
        "big_vision",
        pytest.param("big_vision-stacked", marks=SLOW),
    ],
)
def test_every_block_of_siglip_is_timms(names, encoders, tmp_path):
    reference, path, options = siglip_file(names, encoders, tmp_path)
    model = vit_tf.load_pretrained(path, image_shape=(20, 20), **options)
    images = pictures((20, 20, 3))
    assert_matches(model, siglip_taps(encoders, reference, images), images, 5)
    google = names.startswith("big_vision")
    assert model.preprocessing.interpolation == ("bilinear" if google else "bicubic")
    assert model.preprocessing.mean == (0.5,) * 3 and model.preprocessing.crop is None
    # The file itself shows patches only: images without what is beyond them.
    bare = vit_tf.load_pretrained(path, **options)
    assert bare.image_shape == (18, 18, 3)
    np.testing.assert_array_equal(bare(images[:, :18, :18]), model(images))
    assert model.count_params() == sum(p.numel() for p in reference.parameters())


@SLOW
def test_siglip_of_oblong_images_at_another_size_and_with_another_head(encoders, tmp_path):
    """Bicubic and antialiased, as timm resamples positions."""
    path, options = tmp_path / "model.safetensors", {"num_heads": 3}
    write_safetensors(path, encoders.state_of(encoders.timm_siglip(img_size=(24, 30))))
    with refuses("20 positions"):
        vit_tf.load_pretrained(path, **options)
    assert vit_tf.load_pretrained(path, image_shape=(24, 30), **options).token_grid.columns == 5
    reference = encoders.timm_siglip(img_size=24, num_classes=5)
    write_safetensors(path, encoders.state_of(reference))
    model = vit_tf.load_pretrained(path, image_shape=(18, 42), **options)
    other = vit_tf.load_pretrained(path, image_shape=(18, 42), num_classes=7, **options)
    reference.set_input_size((18, 42))
    images = pictures((18, 42, 3))
    expected = encoders.timm_taps(reference, images)
    assert_matches(model, expected | {"logits": expected.pop("output")}, images)
    assert other.num_classes == 7 and not np.any(other.head.kernel)
    for name, weight in arrays(other).items():
        if not name.startswith("head/"):
            np.testing.assert_array_equal(arrays(model)[name], weight)
    with refuses("pooling='cls'"):
        vit_tf.load_pretrained(path, num_heads=3, pooling="cls")
    with refuses("num_heads"):
        vit_tf.load_pretrained(path)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("attn_pool.kv.weight", None, "missing tensors.*attn_pool.kv.weight"),
        ("attn_pool.q_norm.weight", 8, "unexpected tensors.*q_norm"),
        ("attn_pool.latent", (1, 2, 24), "misshapen.*latent"),
        ("cls_token", (1, 1, 24), "unexpected tensors.*cls_token"),
        ("blocks.1.ls1.gamma", 24, "unexpected tensors.*ls1"),
    ],
)
def test_every_tensor_of_siglip_has_to_fit(name, shape, message, encoders, tmp_path):
    state = encoders.state_of(encoders.timm_siglip())
    state.pop(name, None)
    state |= {} if shape is None else {name: np.ones(shape, "float32")}
    write_safetensors(tmp_path / "model.safetensors", state)
    with refuses(message):
        vit_tf.load_pretrained(tmp_path / "model.safetensors", num_heads=3)


@pytest.mark.parametrize(
    "architecture",
    [
        "eva02_base_patch14_224",
        "eva_giant_patch14_224",
        "aimv2_large_patch14_224",
        "vit_pe_core_base_patch16_224",
        "vit_small_patch16_rope_224",
        "vit_small_patch16_rope_mixed_ape_224",
        "vit_betwixt_patch16_rope_reg4_gap_256",
    ],
)
def test_other_families_are_measured_as_modules(architecture, models, tmp_path):
    """Their file, their folder and their name end in the line that measures timm's module."""
    from timm.models import _hub

    sizes = models.SIZES | {"embed_dim": 48, "img_size": 28}
    model = models.randomize(models.timm.create_model(architecture, **sizes))
    path = models.write(model, tmp_path / "model.safetensors")
    line = r"analysis.cka\(timm.create_model\('{}', pretrained=True\), images\)"
    with refuses(r"timm.create_model\(|rotation|rotary"):
        vit_tf.load_pretrained(path, num_heads=3, pooling="gap")
    _hub.save_config_for_hf(model, tmp_path / "config.json")
    with refuses(line.format(architecture)):
        vit_tf.load_pretrained(tmp_path)
    with refuses(line.format(f"{architecture}.some_tag")):
        vit_tf.load_pretrained(f"timm/{architecture}.some_tag")


@pytest.mark.parametrize("together", [False, True])
def test_a_head_of_dinov2s_hub_is_replaced_or_refused(together, models, tmp_path):
    """It reads class tokens and the mean of the patches."""
    torch, reference = models.torch, models.make("mae", init_values=0.1)
    saved = under("backbone." if together else "", dict(reference.state_dict()))
    if together:
        saved |= {"linear_head.weight": torch.ones(7, 48), "linear_head.bias": torch.ones(7)}
    torch.save(saved, tmp_path / "model.pth")
    if together:
        with refuses("num_classes for a new head.*mean of the patches.*PyTorch module"):
            vit_tf.load_pretrained(tmp_path / "model.pth", num_heads=3)
    model = vit_tf.load_pretrained(tmp_path / "model.pth", num_heads=3, num_classes=0)
    images = pictures((20, 20, 3))
    assert_matches(model, models.taps(reference, images), images)
