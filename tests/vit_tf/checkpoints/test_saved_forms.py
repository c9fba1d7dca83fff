"""PyTorch files as trainings save them, and files of models that no class here computes."""

import argparse

import checkpoint_layouts as layouts
import numpy as np
import pytest
from archive_files import refuses, torch_or_skip
from checkpoint_families import write
from checkpoint_layouts import HEADS, SIZE, WIDTH

import vit_tf
from vit_tf.checkpoints.archives import open_archive


@pytest.fixture
def tensors():
    return layouts.timm_vit()


@pytest.fixture(scope="module")
def logits(tmp_path_factory):
    """Function of a file of `tensors`: whether its model's logits are those of a plain file."""
    images = np.random.default_rng(1).uniform(-1, 1, (2, SIZE, SIZE, 3)).astype("float32")
    plain = write(layouts.timm_vit(), tmp_path_factory.mktemp("plain"))
    expected = vit_tf.load_pretrained(plain, num_heads=HEADS)(images)

    def same(path):
        actual = vit_tf.load_pretrained(path, num_heads=HEADS)(images)
        return np.array_equal(actual, expected)

    return same


def in_torch(tensors):
    torch = torch_or_skip()
    return {name: torch.from_numpy(np.asarray(array)) for name, array in tensors.items()}


def renamed(state, form):
    """The tensors under the names of a compiled model, or of DINOv2's blocks in two chunks."""
    if form == "chunked":
        return {n.replace("blocks.0", "blocks.0.0").replace("blocks.1", "blocks.1.1"): x
                for n, x in state.items()}  # fmt: skip
    return {f"{form}{name}": x for name, x in state.items()}


@pytest.mark.parametrize(
    "form", ["_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "chunked"]
)
def test_wrapped_names(form, tensors, logits, tmp_path):
    path = tmp_path / "model.pth"
    torch_or_skip().save(renamed(in_torch(tensors), form), path)
    assert logits(path)


def test_two_names_of_one_tensor_are_refused(tensors, tmp_path):
    state, path = in_torch(tensors), tmp_path / "model.pth"
    torch_or_skip().save(state | renamed(state, "_orig_mod."), path)
    with refuses("two tensors for"):
        vit_tf.load_pretrained(path)


@pytest.mark.parametrize(
    "saved",
    [
        {"args": argparse.Namespace(lr=0.1, model="vit", layers=[1, 2]), "epoch": 3},
        {"best": np.float64(0.7), "count": np.int64(3), "epoch": 3},
        {"history": np.arange(4.0), "rng": {"state": np.arange(3, dtype="uint8")}},
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_what_trainings_save_beside_tensors(saved, legacy, tensors, logits, tmp_path):
    torch, path = torch_or_skip(), tmp_path / "model.pth"
    file = {"model": in_torch(tensors)} | saved
    torch.save(file, path, _use_new_zipfile_serialization=not legacy)
    assert logits(path)


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict_ema", "model_ema"])
def test_where_the_weights_lie(key, tensors, logits, tmp_path):
    """Averaged weights are those that timm opens, `load_state_dict(path, use_ema=True)`."""
    state, path = in_torch(tensors), tmp_path / "model.pth"
    others = {name: x + 1 for name, x in state.items()}
    file = {"optimizer": {"state": {}}, key: state}
    torch_or_skip().save(file | ({"state_dict": others} if "ema" in key else {}), path)
    assert logits(path)
    with open_archive(path) as archive:
        assert archive.container == key


class Chosen:
    """Whose unpickling would call a function."""

    def __reduce__(self):
        return (argparse.ArgumentParser, ())


def test_what_is_no_plain_data_is_still_refused(tensors, tmp_path):
    path = tmp_path / "model.pth"
    torch_or_skip().save({"model": in_torch(tensors), "args": Chosen()}, path)
    with refuses("argparse.*ArgumentParser"):
        vit_tf.load_pretrained(path)


OTHERS = {
    "an AIMv2": ("preprocessor.patchifier.norm.weight",),
    "a CaiT": ("blocks_token_only.0.gamma_1",),
    "a Hiera": ("blocks.1.proj.weight", "blocks.1.proj.bias"),
    "a Perception Encoder": (
        "visual.attn_pool.probe",
        "visual.transformer.resblocks.0.ln_1.weight",
    ),
}


@pytest.mark.parametrize("model", OTHERS)
def test_other_models_are_refused_for_one_reason(model, tensors, tmp_path):
    for name in OTHERS[model]:
        tensors.draw(name, WIDTH)
    with refuses(f"{model}, which"):
        vit_tf.load_pretrained(write(tensors, tmp_path))


def test_real_files_of_other_models_are_refused(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    torch_or_skip()
    import timm_models

    sizes = {"embed_dim": 48, "num_heads": 2}
    for name, options, model in (
        ("cait_xxs24_224", sizes | {"depth": 1}, "CaiT"),
        ("hiera_tiny_224", {"embed_dim": 24, "num_heads": 1, "stages": (1, 1, 1, 1)}, "Hiera"),
        ("vit_pe_spatial_tiny_patch16_512", sizes | {"depth": 1}, "Perception Encoder"),
        ("vit_pe_lang_large_patch14_448", sizes | {"depth": 1}, "Perception Encoder"),
    ):
        reference = timm_models.timm.create_model(name, **options)
        path = timm_models.write(reference, tmp_path / "model.safetensors")
        with refuses(f"{model}, which"):
            vit_tf.load_pretrained(path)


def test_a_name_of_the_hub_is_recognized():
    with pytest.raises(ValueError, match="'hf://OWNER/NAME' a folder on the Hugging Face hub"):
        vit_tf.load_pretrained("facebook/dinov2-base")


@pytest.mark.parametrize("rows, columns", [(14, 16), (12, 14)])
def test_a_file_of_googles_is_of_the_shape_that_is_given(rows, columns, tmp_path):
    """14 x 16 positions and one are 15 x 15."""
    tensors = layouts.google_vit()
    patch = layouts.PATCH
    tensors.draw("Transformer/posembed_input/pos_embedding", 1, rows * columns + 1, WIDTH)
    shape = (rows * patch, columns * patch)
    model = vit_tf.load_pretrained(write(tensors, tmp_path), image_shape=shape)
    assert model.token_grid.rows == rows and model.token_grid.columns == columns
    stored = tensors["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(model.embedding.positions, stored)


# Architectures of timm's of patches alone, and what their tensors do not show.
BARE = {
    "vit_giantopt_patch16_siglip_gap_256": (16, "gelu_tanh"),
    "vit_so400m_patch14_siglip_gap_224": (16, "gelu"),
    "vit_base_patch32_siglip_gap_256": (12, "gelu_tanh"),
    "vit_large_patch16_siglip_gap_512": (16, "gelu_tanh"),
    "vit_large_patch16_siglip_gap_256": (16, "gelu"),
    "vit_huge_patch14_gap_224": (16, "gelu"),
    "vit_base_patch16_gap_224": (16, "gelu"),
    "vit_base_patch16_siglip_gap_224": (12, "gelu"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if "large" in name or "huge" in name else ())
        for name in BARE
    ],
)
def test_files_of_patches_alone_require_what_an_architecture_carries(name):
    """Two have the tensors of a third with the other form of GELU, or with other heads."""
    torch = torch_or_skip()
    import timm_models

    from vit_tf.checkpoints import configs, timm
    from vit_tf.checkpoints.weight_maps import LoadOptions

    with torch.device("meta"):
        state = timm_models.timm.create_model(name, depth=None).state_dict()
    heads, gelu = BARE[name]
    with refuses("activation='gelu' or 'gelu_tanh'"):
        timm.convert_vit(state, LoadOptions(num_heads=heads))
    stated = LoadOptions(num_heads=heads, activation=gelu)
    config = configs.read_timm_config({"architecture": name, "pretrained_cfg": {}})
    for options in (stated, LoadOptions(config=config)):
        actual = timm.convert_vit(state, options).mapping.arguments
        assert (actual["num_heads"], actual["activation"]) == BARE[name]
