"""Files that are whole but do not fit, and wishes that no file fulfils: one clear error each."""

from contextlib import nullcontext

import checkpoint_layouts as layouts
import numpy as np
import pytest
from archive_files import raises
from checkpoint_families import FILES, write
from checkpoint_layouts import HEADS, SIZE, WIDTH

import vit_tf


@pytest.mark.parametrize("family", ["vit", "bit", "mixer", "timm", "clip", "beit"])
def test_every_tensor_has_to_fit(family, load):
    layout, options = FILES[family]
    names = [name for name in layout() if not name.startswith(("token_", "transformer.", "logit"))]
    ends = ("LayerNorm_0/scale", "norm1.weight", "ln_1.weight", "c/group_norm/gamma")
    name = next(name for name in names if name.endswith(ends))
    tensors = layout()
    tensors[f"{name}_renamed"] = tensors.pop(name)
    with raises(rf"missing tensors \(1\): {name}; unexpected tensors \(1\): {name}_renamed"):
        load(tensors, **options)
    tensors = layout()
    tensors[name] = tensors[name][..., :-1]
    with raises(rf"misshapen \(1\): '{name}'"):
        load(tensors, **options)
    tensors = layout()
    tensors[name] = np.zeros(tensors[name].shape, np.int32)
    with raises(f"'{name}' of int32, expected floats"):
        load(tensors, **options)
    tensors = layout()
    tensors[name] = np.full_like(tensors[name], np.nan)
    with raises(f"NaN or infinite weights in {name}"):
        load(tensors, **options)


def test_units_of_another_width_than_the_root_are_named(load):
    tensors = layouts.google_bit(width=96)
    root = "resnet/root_block/standardized_conv2d/kernel"
    tensors[root] = tensors[root][..., :64]
    with pytest.raises(ValueError, match=r"misshapen.*block1/unit01/a/.*\(1, 1, 96, 96\)"):
        load(tensors, image_shape=(SIZE, SIZE))
    config = load(layouts.google_bit(width=96), image_shape=(SIZE, SIZE)).get_config()
    assert config["width_factor"] == 1.5


def test_what_the_models_cannot_express_is_named(load):
    tensors = layouts.google_vit("big_vision", cls=False)
    tensors.draw("MAPHead_0/probe", 1, 1, WIDTH)
    with raises("unexpected tensors .*MAPHead_0/probe"):
        load(tensors)
    tensors = layouts.timm_vit()
    tensors.draw("blocks.0.ls1.gamma", WIDTH)
    with raises("missing tensors .*blocks.0.ls2.gamma"):
        load(tensors, num_heads=HEADS)
    tensors = layouts.beit()
    for i in range(layouts.LAYERS):
        tensors.linear(f"blocks.{i}.mlp.fc1", WIDTH, 2 * layouts.HIDDEN)
    with raises("with a gated MLP"):
        load(tensors)


def test_options_that_cannot_be(load):
    for layout in (layouts.google_bit, layouts.google_mixer, layouts.clip):
        with raises("pooling='gap'"):
            load(layout(), pooling="gap")
    with raises("num_heads=3"):
        load(layouts.google_bit(), num_heads=3)
    for options in (
        {"pooling": "max"},
        {"num_classes": -1},
        {"num_heads": 1.5},
        {"image_shape": 32},
    ):
        with raises(next(iter(options))):
            load(layouts.google_vit(), **options)
    for shape in ((33, 33), (SIZE, SIZE, 1)):
        with raises("image_shape"):
            load(layouts.google_vit(), image_shape=shape)
        with raises("image_shape") if shape[2:] else nullcontext():
            load(layouts.google_bit(), image_shape=shape)


def test_other_files(load, tmp_path):
    with raises("a.weight"):
        load({"a.weight": np.zeros(3, np.float32)})
    with raises("no such file"):
        vit_tf.load_pretrained(tmp_path / "none.npz")
    path = write(layouts.google_vit(), tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with raises("zip"):
        vit_tf.load_pretrained(path)
    np.savez(path, **layouts.google_vit(), extra=np.array([{}]))
    with raises("pickled objects"):
        vit_tf.load_pretrained(path)


def test_a_file_cannot_ask_for_a_model_larger_than_itself(load):
    """The width is that of a tensor, and is believed only where all others agree."""
    tensors = layouts.google_vit()
    tensors.draw("embedding/kernel", 1, 1, 1, HEADS * 10**5)
    with raises("misshapen"):
        load(tensors)
    tensors = layouts.timm_vit() | {f"blocks.{i}.x": np.zeros(1) for i in range(1001)}
    with raises("missing tensors"):
        load(tensors, num_heads=HEADS)
    stages = {f"resnet/block{i}/unit01/x": np.zeros(1) for i in range(1, 12)}
    with raises("missing tensors"):
        load(layouts.google_bit() | stages)
    tensors = layouts.beit("cls", shared=True)
    tensors.draw("rel_pos_bias.relative_position_bias_table", 399**2 + 3, HEADS)
    with raises("159204 entries"):
        load(tensors)


def test_a_folder_without_a_configuration_lists_what_it_holds(tmp_path):
    with pytest.raises(ValueError, match=r"to hold config\.json.*Received: an empty folder"):
        vit_tf.load_pretrained(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"pass its own path.*a\.safetensors, b\.safetensors"):
        vit_tf.load_pretrained(tmp_path)
