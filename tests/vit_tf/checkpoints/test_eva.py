"""DINOv3 and EVA-02 as timm writes them, and DINOv3 in its authors' names, against timm."""

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses, write_safetensors
from checkpoint_families import assert_matches, errors_of, pictures

import vit_tf
from vit_tf.checkpoints.weight_maps import CLIP, IMAGENET

MOST = 1e-5


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("timm_models", "safetensors")


@pytest.mark.parametrize("size", [(20, 20), (12, 28)])
@pytest.mark.parametrize("name", ["dinov3", "dinov3-qkvb", "dinov3-plus"])
def test_every_block_of_dinov3_is_that_of_timm(name, size, models, tmp_path):
    images, options = pictures((*size, 3)), {"num_heads": 3, "image_shape": size}
    # timm's own pooling is the mean of the patches.
    for pool, wish in (("token", {"pooling": "cls"}), ("avg", {"pooling": "gap"}), ("avg", {})):
        reference = models.make(name, global_pool=pool)
        path = models.write(reference, tmp_path / "model.safetensors")
        model = vit_tf.load_pretrained(path, **options, **wish)
        assert_matches(model, models.taps(reference, images), images, 4)
    assert model.prefix_names == ("CLS", *(f"register {i}" for i in (1, 2, 3, 4)))
    assert model.preprocessing.mean == IMAGENET["mean"] and model.preprocessing.crop == 1.0


@pytest.mark.parametrize("size", [(20, 20), (28, 16)])
@pytest.mark.parametrize("name", ["eva02-small", "eva02-base", "eva02-clip"])
def test_every_block_of_eva02_is_that_of_timm(name, size, models, tmp_path):
    reference = models.make(name)
    path = models.write(reference, tmp_path / "model.safetensors")
    model = vit_tf.load_pretrained(path, num_heads=3, image_shape=size)
    images = pictures((*size, 3))
    reference.set_input_size(size)
    assert_matches(model, models.taps(reference, images), images, 4)
    assert model.preprocessing.mean == CLIP["mean"] and model.num_classes == 5
    config = model.get_config()
    assert (
        config.get("sub_norm", ())
        == {
            "eva02-small": (),
            "eva02-base": ("mlp",),
            "eva02-clip": ("attention", "mlp"),
        }[name]
    )
    model.save(tmp_path / "again.keras")
    again = vit_tf.load_model(tmp_path / "again.keras")
    np.testing.assert_array_equal(again(images), model(images))
    assert model.count_params() == sum(p.numel() for p in reference.parameters())


def as_authors(state):
    """The tensors of timm's small DINOv3 in the names of the authors' code."""
    found = {"mask_token": np.ones((1, 24), "float32")}
    found["rope_embed.periods"] = np.ones(2, "float32")
    for name, array in state.items():
        if name.endswith("attn.q_bias"):
            block = name.removesuffix(".q_bias")
            # What the mask takes out, as the authors' code multiplies by it.
            thirds = [array, np.full(24, 7.0, "float32"), state[f"{block}.v_bias"]]
            found[f"{block}.qkv.bias"] = np.concatenate(thirds)
            found[f"{block}.qkv.bias_mask"] = np.repeat(np.float32([1, 0, 1]), 24)
        elif not name.endswith("v_bias"):
            for ours, theirs in AUTHORS.items():
                name = name.replace(ours, theirs)
            found[name] = array
    return found


AUTHORS = {"reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
AUTHORS |= {"fc1_g": "w1", "fc1_x": "w2"}


@pytest.mark.parametrize("name", ["dinov3-qkvb", "dinov3-plus"])
def test_dinov3_in_the_names_of_its_authors(name, models, tmp_path):
    reference = models.make(name)
    state = {key: x.numpy() for key, x in reference.state_dict().items()}
    found = as_authors(state)
    if name == "dinov3-plus":
        found = {key.replace("mlp.fc2", "mlp.w3"): x for key, x in found.items()}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, found)
    model = vit_tf.load_pretrained(path, image_shape=(20, 20))
    images = pictures((20, 20, 3))
    assert_matches(model, models.taps(reference, images), images)
    with refuses("num_heads.*3.*num_heads=2"):
        vit_tf.load_pretrained(path, num_heads=2)
    write_safetensors(path, found | {"rope_embed.periods": np.ones(5, "float32")})
    with refuses("periods.*5 of 24"):
        vit_tf.load_pretrained(path)


def test_what_is_of_another_model_is_refused(models, tmp_path):
    path = tmp_path / "model.safetensors"
    state = {key: x.numpy() for key, x in models.make("eva02-small").state_dict().items()}
    width = {"num_heads": 3}
    plain = state | {
        f"blocks.{i}.mlp.fc1.{end}": state[f"blocks.{i}.mlp.fc1.{end}"][:64]
        for i in range(2)
        for end in ("weight", "bias")
    }
    write_safetensors(path, plain)
    with refuses("MLP is gated.*another EVA"):
        vit_tf.load_pretrained(path, **width)
    write_safetensors(path, state)
    with refuses("multiple of 4.*num_heads=4"):
        vit_tf.load_pretrained(path, num_heads=4)
    with refuses("num_heads"):
        vit_tf.load_pretrained(path)
    state = {key: x.numpy() for key, x in models.make("dinov3").state_dict().items()}
    write_safetensors(path, state | {"fc_norm.weight": np.ones(24, "float32")})
    with refuses("'fc_norm"):
        vit_tf.load_pretrained(path, **width)
    write_safetensors(path, state | {"head.weight": np.ones((5, 24), "float32")})
    with refuses("unexpected tensors.*head.weight"):
        vit_tf.load_pretrained(path, **width)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "size", "variant"),
    [
        ("vit_small_patch16_dinov3_qkvb", (224, 160), "DINOv3-S/16"),
        ("vit_small_plus_patch16_dinov3_qkvb", (224, 224), "DINOv3-S+/16"),
        ("eva02_tiny_patch14_224", (224, 224), "EVA02-Ti/14"),
        ("eva02_base_patch14_224", (196, 280), "EVA02-B/14"),
    ],
)
def test_a_released_size(architecture, size, variant, models, record_property, tmp_path):
    options = {"num_classes": 0, "img_size": size}
    reference = models.randomize(models.timm.create_model(architecture, **options), 0.05)
    path = models.write(reference, tmp_path / "model.safetensors")
    model = vit_tf.load_pretrained(path, image_shape=size)
    images = pictures((*size, 3))
    errors = errors_of(model, models.taps(reference, images), images)
    assert len(errors) == model.get_config()["num_layers"] + 2
    record_property("max relative error", max(errors.values()))
    assert max(errors.values()) < MOST, errors
    published = type(model).from_variant(variant, image_shape=(*size, 3), num_classes=1)
    shapes = {w.path.partition("/")[2]: tuple(w.shape) for w in published.weights}
    loaded = {w.path.partition("/")[2]: tuple(w.shape) for w in model.weights}
    heads = ("head/kernel", "head/bias")
    assert {n: s for n, s in shapes.items() if n not in heads} == {
        n: s for n, s in loaded.items() if n not in heads
    }
