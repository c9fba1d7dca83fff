"""Which layers of families of vision models are read, and their values against hooks by hand.

    python benchmarks/families.py [torch | keras] [NAME ...]

Prints a row of docs/guides/pytorch.md or docs/guides/your-own-model.md for each family, with random
weights. The blocks of a family are stated here by hand, as patterns of the paths of its submodules
or layers; what they return is kept by hooks, and compared with the values that are read.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vit_tf

TOLERANCE = 1e-4  # relative to the largest value; other layers differ by far more
VIT: dict[str, Any] = {"depth": 3, "embed_dim": 24, "num_heads": 2, "img_size": 64}
FLAT, STAGES = r"blocks\.\d+", r"stages\.\d+\.blocks\.\d+"
# A model of timm has the pattern of its blocks, and arguments that make it small.
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (FLAT, VIT),
    "deit_tiny_patch16_224": (FLAT, VIT),
    "deit3_small_patch16_224": (FLAT, VIT),
    "beit_base_patch16_224": (FLAT, VIT),
    "eva02_tiny_patch14_224": (FLAT, VIT | {"img_size": 56}),
    "cait_xxs24_224": (FLAT, {"depth": 4}),
    "xcit_nano_12_p16_224": (FLAT, {"depth": 4}),
    "convit_tiny": (FLAT, {"depth": 4}),
    "tnt_s_legacy_patch16_224": (FLAT, {"depth": 3}),
    "crossvit_tiny_240": (FLAT, {}),
    "hiera_tiny_224": (FLAT, {}),
    "mixer_s32_224": (FLAT, {}),
    "gmlp_ti16_224": (FLAT, {}),
    "resmlp_12_224": (FLAT, {}),
    "convmixer_768_32": (FLAT, {}),
    "volo_d1_224": (r"network\.\d+\.\d+", {}),
    "pit_ti_224": (r"transformers\.\d+\.blocks\.\d+", {}),
    "levit_128s": (STAGES, {}),
    "swin_tiny_patch4_window7_224": (r"layers\.\d+\.blocks\.\d+", {}),
    "swinv2_tiny_window8_256": (r"layers\.\d+\.blocks\.\d+", {}),
    "twins_svt_small": (r"blocks\.\d+\.\d+", {}),
    "pvt_v2_b0": (STAGES, {}),
    "coat_lite_tiny": (r"serial_blocks\d+\.\d+", {}),
    "coatnet_nano_rw_224": (STAGES, {}),
    "maxvit_rmlp_pico_rw_256": (STAGES, {}),
    "mobilevit_xxs": (r"stages\.\d+\.\d+", {}),
    "mobilevitv2_050": (r"stages\.\d+\.\d+", {}),
    "edgenext_xx_small": (STAGES, {}),
    "efficientformer_l1": (r"stages\.[0-2]\.blocks\.\d+|stages\.3\.blocks\.[0-24]", {}),
    "efficientformerv2_s0": (STAGES, {}),
    "nextvit_small": (STAGES, {}),
    "davit_tiny": (r"stages\.\d+\.blocks\.\d+\.\d+", {}),
    "focalnet_tiny_srf": (r"layers\.\d+\.blocks\.\d+", {}),
    "gcvit_xxtiny": (STAGES, {}),
    "mvitv2_tiny": (STAGES, {}),
    "nest_tiny": (r"levels\.\d+\.transformer_encoder\.\d+", {}),
    "poolformer_s12": (STAGES, {}),
    "caformer_s18": (STAGES, {}),
    "fastvit_t8": (STAGES, {}),
    "tiny_vit_5m_224": (STAGES, {}),
    "visformer_tiny": (r"stage\d\.\d+", {}),
    "sequencer2d_s": (r"stages\.\d+\.\d+", {}),
    "repvit_m0_9": (STAGES, {}),
    "convnext_atto": (STAGES, {}),
    "convnextv2_atto": (STAGES, {}),
    "resnet18": (r"layer\d\.\d", {}),
    "resnetv2_50": (STAGES, {}),
    "res2net50_14w_8s": (r"layer\d\.\d", {}),
    "regnety_002": (r"s\d\.b\d+", {}),
    "densenet121": (r"features\.denseblock\d", {}),
    "inception_v3": (r"Mixed_\w\w", {}),
    "inception_v4": (r"features\.([3-9]|\d\d)", {}),
    "xception41": (FLAT, {}),
    "efficientnet_b0": (r"blocks\.\d+\.\d+", {}),
    "mobilenetv3_small_100": (r"blocks\.\d+\.\d+", {}),
    "ghostnet_100": (r"blocks\.[0-8]\.\d+", {}),
    "ese_vovnet19b_dw": (r"stages\.\d+\.blocks\.\d+", {}),
    "cspresnet50": (r"stages\.\d+", {}),
    "rexnet_100": (r"features\.\d\d?", {}),
    "dla34": (r"level[2-5]", {}),
    "selecsls42b": (r"features\.\d+", {}),
    "nf_regnet_b0": (r"stages\.\d+\.\d+", {}),
    "vgg11": ("", {}),
}
HIDDEN = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 8}
HIDDEN |= {"image_size": 32, "intermediate_size": 40}
# A class of transformers has that of its configuration, the pattern, and the arguments.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViTModel": ("ViTConfig", r"encoder\.layer\.\d+", HIDDEN),
    "DeiTModel": ("DeiTConfig", r"encoder\.layer\.\d+", HIDDEN),
    "BeitModel": ("BeitConfig", r"encoder\.layer\.\d+", HIDDEN),
    "Dinov2Model": ("Dinov2Config", r"encoder\.layer\.\d+", HIDDEN),
    "DINOv3ViTModel": ("DINOv3ViTConfig", r"layer\.\d+", HIDDEN),
    "CLIPVisionModel": ("CLIPVisionConfig", r"vision_model\.encoder\.layers\.\d+", HIDDEN),
    "SiglipVisionModel": ("SiglipVisionConfig", r"vision_model\.encoder\.layers\.\d+", HIDDEN),
    "ConvNextModel": ("ConvNextConfig", r"encoder\.stages\.\d+\.layers\.\d+", {}),
    "ResNetModel": ("ResNetConfig", r"encoder\.stages\.\d+\.layers\.\d+", {}),
    "SwinModel": ("SwinConfig", r"encoder\.layers\.\d+\.blocks\.\d+", {}),
    "SegformerModel": ("SegformerConfig", r"encoder\.block\.\d+\.\d+", {}),
    "PvtV2Model": ("PvtV2Config", r"encoder\.layers\.\d+\.blocks\.\d+", {}),
    "PoolFormerModel": ("PoolFormerConfig", r"encoder\.block\.\d+\.\d+", {}),
    "RegNetModel": ("RegNetConfig", r"encoder\.stages\.\d+\.layers\.\d+", {}),
}
TOKENS = {"image_shape": (32, 32, 3), "patch_size": 8, "num_layers": 3, "num_heads": 2}
TOKENS |= {"hidden_dim": 12}
BASIC = {"image_shape": (64, 64, 3), "input_conv_filters": [64], "input_conv_kernel_sizes": [3]}
BASIC |= {"stackwise_num_filters": [64, 16, 16], "stackwise_num_blocks": [2, 2, 2]}
BASIC |= {"stackwise_num_strides": [1, 2, 2], "block_type": "basic_block"}
SWIN = {"image_shape": (32, 32, 3), "embed_dim": 12, "depths": (2, 2, 1), "num_heads": (2, 2, 2)}
# A backbone of KerasHub has the pattern of the names of its blocks, and arguments.
KERAS_HUB: dict[str, tuple[str, dict[str, Any]]] = {
    "ViTBackbone": (r"transformer_block_\d+", TOKENS | {"mlp_dim": 20}),
    "DeiTBackbone": (r"transformer_block_\d+", TOKENS | {"intermediate_dim": 20}),
    "DINOV2Backbone": (r"layers_\d+", TOKENS | {"intermediate_dim": 20}),
    "DINOV3Backbone": (r"layers_\d+", TOKENS | {"intermediate_dim": 20, "hidden_dim": 16}),
    "SwinTransformerBackbone": (r"blocks_\d+", SWIN | {"window_size": 4, "patch_size": 2}),
    "ResNetBackbone": (r"stack\d_block\d_out", BASIC),
}
KERAS_HUB |= {
    "CLIPVisionEncoder": (r"encoder_block_\d+", TOKENS | {"intermediate_dim": 20}),
    "SigLIPVisionEncoder": (r"encoder_block_\d+", TOKENS | {"intermediate_dim": 20}),
    "ViTDetBackbone": (
        r"windowed_transformer_encoder(_\d+)?",
        {"image_shape": (64, 64, 3), "hidden_size": 24, "num_layers": 3, "num_heads": 2}
        | {"intermediate_dim": 40, "global_attention_layer_indices": [1], "patch_size": 8}
        | {"window_size": 4, "num_output_channels": 8},
    ),
    "MiTBackbone": (
        r"hierarchical_encoder_\d_\d",
        {"image_shape": (64, 64, 3), "layerwise_depths": [2, 2], "layerwise_num_heads": [1, 2]}
        | {"layerwise_sr_ratios": [2, 1], "layerwise_patch_sizes": [7, 3], "num_layers": 2}
        | {"layerwise_strides": [4, 2], "hidden_dims": [8, 16], "max_drop_path_rate": 0.1},
    ),
    "DenseNetBackbone": (
        r"stack\d_block\d+_concat",
        {"image_shape": (64, 64, 3), "stackwise_num_repeats": [2, 3, 2], "growth_rate": 4},
    ),
    "CSPNetBackbone": (
        r".*_csp_transition_activation",
        {"image_shape": (64, 64, 3), "stem_filters": 8, "stem_kernel_size": 3, "stem_strides": 1}
        | {"stackwise_depth": [1, 2, 2], "stackwise_strides": [1, 2, 2]}
        | {"stackwise_num_filters": [8, 16, 24], "block_type": "dark_block", "stage_type": "csp"}
        | {"bottle_ratio": (0.5, 1.0, 1.0), "block_ratio": (1.0, 0.5, 0.5), "stem_padding": "same"}
        | {"expand_ratio": (2.0, 1.0, 1.0)},
    ),
    "HGNetV2Backbone": (
        r".*_stage_\d_block_\d",
        {"image_shape": (64, 64, 3), "depths": [1, 2, 2], "embedding_size": 8}
        | {"hidden_sizes": [16, 24, 32], "stem_channels": [3, 4, 8], "hidden_act": "relu"}
        | {"use_learnable_affine_block": False, "apply_downsample": [False, True, True]}
        | {"use_lightweight_conv_block": [False, False, False]}
        | {
            "stackwise_stage_filters": [
                (8, 4, 16, 1, 1, 3),
                (16, 6, 24, 2, 1, 3),
                (24, 6, 32, 2, 1, 3),
            ]
        },
    ),
    "MobileNetBackbone": (
        r"block_\d_\d",
        {"image_shape": (64, 64, 3), "stackwise_expansion": [[16, 20], [24, 24]]}
        | {"stackwise_num_blocks": [2, 2], "stackwise_num_filters": [[8, 8], [12, 12]]}
        | {"stackwise_kernel_size": [[3, 3], [5, 5]], "stackwise_num_strides": [[2, 1], [2, 1]]}
        | {"stackwise_se_ratio": [[None, None], [0.25, 0.25]], "output_num_filters": 32}
        | {"stackwise_activation": [["relu"] * 2, ["hard_swish"] * 2], "input_num_filters": 8}
        | {"input_activation": "hard_swish", "output_activation": "hard_swish"}
        | {"depthwise_filters": 8, "squeeze_and_excite": 0.5, "stackwise_padding": [[1, 1], [2, 2]]}
        | {"depthwise_stride": 2, "depthwise_residual": False, "last_layer_filter": 32},
    ),
    "EfficientNetBackbone": (
        r"block\d[a-z]_",
        {"input_shape": (64, 64, 3), "stackwise_kernel_sizes": [3, 3], "stackwise_strides": [1, 2]}
        | {"stackwise_num_repeats": [2, 2], "stackwise_input_filters": [8, 16]}
        | {"stackwise_output_filters": [16, 24], "stackwise_expansion_ratios": [1, 4]}
        | {"stackwise_squeeze_and_excite_ratios": [0.0, 0.25], "num_features": 32}
        | {"stackwise_block_types": ["fused", "unfused"], "stackwise_force_input_filters": [0, 0]}
        | {"stackwise_nores_option": [False, False]}
        | {"stackwise_width_coefficients": [1.0] * 2, "stackwise_depth_coefficients": [1.0] * 2},
    ),
    "XceptionBackbone": (
        r"block\d_residual_add",
        {"image_shape": (64, 64, 3), "stackwise_conv_filters": [[8, 16], [16, 24], [24, 24]]}
        | {"stackwise_pooling": [True, True, False]},
    ),
    "VGGBackbone": (
        r"block1_conv1|block[23]_conv2",
        {"image_shape": (64, 64, 3), "stackwise_num_repeats": [1, 2, 2]}
        | {"stackwise_num_filters": [8, 12, 16]},
    ),
}
# A function of keras.applications has the pattern of the names of its blocks.
APPLICATIONS = {
    "ResNet50": r"conv\d_block\d_out",
    "ResNet50V2": r"conv\d_block\d_out",
    "DenseNet121": r"conv\d_block\d+_concat",
    "MobileNet": r"conv_pw_\d+_relu",
    "MobileNetV2": r"block_\d+_add",
    "MobileNetV3Small": r"expanded_conv_\d+_add",
    "EfficientNetB0": r"block\d[a-z]_add",
    "EfficientNetV2B0": r"block\d[a-z]_add",
    "ConvNeXtTiny": r"add(_\d+)?",
    "Xception": r"add(_\d+)?",
    "InceptionV3": r"mixed\d+",
    "InceptionResNetV2": r"(mixed_\w+|block\d+_\d+_ac|block\d+_\d+)",
    "NASNetMobile": r"normal_concat_\d+",
    "VGG16": r"block[12]_conv2|block[345]_conv3",
}

# A model of one's own, as readers of keras.io write it: its function in tests/helpers, and more.
OWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "functional ViT": ("functional_vit", r"add(_\d+)?", {}),
    "functional MLP-Mixer": ("functional_mixer", r"(tokens|channels)_\d", {}),
    "functional ConvMixer": ("functional_convmixer", r"block_\d", {}),
    "functional DenseNet": ("functional_densenet", r"block_\d+", {}),
    "functional U-Net": ("functional_unet", r"down_\d|bottom|up_1", {}),
    "sequential CNN": ("sequential_cnn", r"conv_\d", {}),
    "subclassed ViT": ("subclassed_vit", r"block_\d", {}),
    "subclassed ViT with an encoder": ("subclassed_vit", r"block_\d", {"has_encoder": True}),
    "subclassed ViT of parallel blocks": ("subclassed_vit", r"block_\d", {"is_parallel": True}),
    "subclassed ResNet": ("subclassed_resnet", r"unit_\d_\d", {}),
}


def row(name: str, expected: Mapping[str, np.ndarray], read: Mapping[str, np.ndarray]) -> str:
    """A row of the table: layers read, blocks by hand, those of them that are read, difference."""
    differences = []
    for block in expected.values():
        forms = [block] if block.ndim != 4 else [block, np.moveaxis(block, 1, -1)]
        # A map may be returned as a sequence of positions, and the other way round.
        forms += [form.reshape(len(form), -1, form.shape[-1]) for form in forms if form.ndim == 4]
        same = [
            np.abs(form - value).max() / max(np.abs(form).max(), 1e-30)
            for value in read.values()
            for form in forms
            if form.shape == value.shape
        ]
        differences.append(min(same, default=np.inf))
    found = [difference for difference in differences if difference <= TOLERANCE]
    largest = f"{max(found):.0e}" if found else ""
    return f"| {name} | {len(read)} | {len(expected)} | {len(found)} | {largest} |"


def read_layers(model: Any, images: np.ndarray) -> tuple[dict[str, np.ndarray], bool]:
    """The values of a model's representations, and whether it warns that blocks are missed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = vit_tf.analysis.features_of(model).facts.layers
    values = vit_tf.submodel(model, *[re.sub(r"([\[\]*?])", r"[\1]", name) for name in layers])
    is_warned = any("blocks" in str(warning.message) for warning in caught)
    return {name: np.asarray(x) for name, x in values(images).items()}, is_warned


def torch_row(name: str, module: Any, pattern: str) -> str:
    """The row of a PyTorch module."""
    import torch

    from vit_tf.torch_models.traced import as_model

    module.eval()
    size = as_model(module).image_shape
    images = np.random.default_rng(0).normal(size=(2, *size)).astype(np.float32)
    expected: dict[str, np.ndarray] = {}

    def keep(path: str) -> Callable:
        def hook(_: Any, inputs: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple | list) else output
            expected.setdefault(path, output.detach().numpy().copy())

        return hook

    paths = [p for p, _ in module.named_modules() if pattern and re.fullmatch(pattern, p)]
    handles = [module.get_submodule(path).register_forward_hook(keep(path)) for path in paths]
    with torch.no_grad():
        module(torch.from_numpy(np.moveaxis(images, -1, 1).copy()))
    for handle in handles:
        handle.remove()
    read, is_warned = read_layers(module, images)
    return row(name, expected, read) + (" warned" if is_warned else "")


def keras_row(name: str, model: Any, pattern: str) -> str:
    """The row of a Keras model, whose layers are called one by one."""
    shape = model.inputs[0].shape if getattr(model, "inputs", None) else (None, 32, 32, 3)
    size = [side or 64 for side in shape[1:]]
    images = np.random.default_rng(0).normal(size=(2, *size)).astype(np.float32)
    expected: dict[str, np.ndarray] = {}

    def keep(path: str, call: Callable) -> Callable:
        def kept(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            expected[path] = np.asarray(output[0] if isinstance(output, tuple) else output)
            return output

        return kept

    layers = [x for x in model._flatten_layers() if re.fullmatch(pattern, x.name)]
    for operation in getattr(model, "operations", []):  # such as a sum of `keras.ops`
        if operation not in layers and re.fullmatch(pattern, operation.name):
            inner = type(model)(model.inputs, operation.output)
            expected[operation.name] = np.asarray(inner(images))
    for layer in layers:
        object.__setattr__(layer, "call", keep(layer.path or layer.name, layer.call))
    model(images, training=False)
    for layer in layers:
        object.__delattr__(layer, "call")
    read, is_warned = read_layers(model, images)
    return row(name, expected, read) + (" warned" if is_warned else "")


def torch_families() -> dict[str, tuple[Callable[[], Any], str]]:
    """Functions that make PyTorch modules, and the patterns of their blocks."""
    timm, transformers = importlib.import_module("timm"), importlib.import_module("transformers")

    def of_transformers(name: str, config: str, fields: dict[str, Any]) -> Any:
        return getattr(transformers, name)(getattr(transformers, config)(**fields))

    of_timm = {
        f"timm {name}": (partial(timm.create_model, name, num_classes=5, **fields), pattern)
        for name, (pattern, fields) in TIMM.items()
    }
    return of_timm | {
        f"transformers {name}": (partial(of_transformers, name, config, fields), pattern)
        for name, (config, pattern, fields) in TRANSFORMERS.items()
    }


def keras_families() -> dict[str, tuple[Callable[[], Any], str]]:
    """Functions that make Keras models, and the patterns of their blocks."""
    import keras

    hub = importlib.import_module("keras_hub").models
    sizes = {"input_shape": (96, 96, 3), "weights": None, "classes": 5}
    applications = {
        f"keras.applications {name}": (partial(getattr(keras.applications, name), **sizes), pattern)
        for name, pattern in APPLICATIONS.items()
    }
    of_hub = {
        f"KerasHub {name}": (partial(getattr(hub, name), **fields), pattern)
        for name, (pattern, fields) in KERAS_HUB.items()
    }
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
    own = importlib.import_module("functional_models")
    return (
        applications
        | of_hub
        | {name: (partial(getattr(own, f), **x), p) for name, (f, p, x) in OWN.items()}
    )


def main(kind: str = "torch", *names: str) -> None:
    """Prints the rows of the families whose names contain one of `names`, or of all."""
    make_row = torch_row if kind == "torch" else keras_row
    families = torch_families() if kind == "torch" else keras_families()
    print("| family | layers read | blocks | of these read | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for name, (make, pattern) in families.items():
        if names and not any(part in name for part in names):
            continue
        start = time.perf_counter()
        try:
            print(make_row(name, make(), pattern), flush=True)
        except Exception as error:  # the next families are still of interest
            print(f"| {name} | {type(error).__name__}: {str(error)[:200]} |", flush=True)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
