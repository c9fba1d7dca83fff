"""Converts KerasHub models in memory to models of this package."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from keras import ops

from vit_tf import models
from vit_tf.checkpoints.archives import CheckpointFile, TensorInfo
from vit_tf.checkpoints.loading import weights_by_name
from vit_tf.checkpoints.timm import identity_projection
from vit_tf.checkpoints.weight_maps import (
    FLAX,
    Kinds,
    LoadOptions,
    Sizes,
    Tensors,
    Transform,
    WeightMap,
    concat_tokens,
    dims,
    fill,
    head_map,
    no_bias,
    read_blocks,
    read_table,
)
from vit_tf.common.names import lookup
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.input_range import find_preprocessing
from vit_tf.models.model import VisionModel

TASKS = {"ViTImageClassifier": "ViTBackbone", "DeiTImageClassifier": "DeiTBackbone"}
# Models of images and texts, by their image encoders.
PAIRS = {"CLIPBackbone": "CLIPVisionEncoder", "SigLIPBackbone": "SigLIPVisionEncoder"}
CLASSES = {
    "CLIPVisionEncoder": "CLIPViT",
    "SigLIPVisionEncoder": "SigLIPViT",
    "DeiTBackbone": "DistilledViT",
    "DINOV3Backbone": "RotaryViT",
}
# KerasHub's names of the forms of GELU, and ours.
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_approximate": "gelu_tanh"}


def from_keras_hub(model: Any, preprocessing: Preprocessing | None = None) -> VisionModel:
    """Converts a KerasHub backbone or image classifier to a model of this package.

    `submodel` returns every intermediate activation of the converted model by name. (`submodel`
    also accepts a KerasHub model without conversion, but then returns only outputs of its layers.)
    Dropout is not converted.

    Args:
        model: model of `keras_hub.models`. Backbones are `ViTBackbone`, `DeiTBackbone`,
            `DINOV2Backbone` and `DINOV3Backbone`. Classifiers are `ViTImageClassifier` and
            `DeiTImageClassifier`. Image encoders are `CLIPVisionEncoder` and `SigLIPVisionEncoder`.
            From a `CLIPBackbone` or `SigLIPBackbone`, only the image encoder is converted (for
            CLIP, with its projection).
        preprocessing: `vit_tf.Preprocessing` of the model's images. By default, a classifier has
            the preprocessing of its image converter. Other models have the preprocessing of the
            public weights of their family.

    Returns:
        A `ViT`, `CLIPViT` or `SigLIPViT`. A converted classifier returns its logits. A converted
        backbone returns its CLS token, or the mean of its tokens, as logits. A converted
        `CLIPVisionEncoder` returns its CLS token.

    Raises:
        ValueError: if the class of the model is not listed under `model`, or if the model has a
            feature that `ViT` does not support.
    """
    name = type(model).__name__ if type(model).__module__.startswith("keras_hub.") else ""
    backbone = model.backbone if name in TASKS else model
    backbone = model.vision_encoder if name in PAIRS else backbone
    kind = (TASKS | PAIRS).get(name, name)
    if kind not in _CONVERTERS:
        classes = ", ".join([*_CONVERTERS, *TASKS, *PAIRS])
        raise ValueError(
            f"Expected model to be one of keras_hub.models: {classes}. "
            f"Received: {type(model).__module__}.{type(model).__name__}"
        )
    variables = list((backbone if name in PAIRS else model).weights)
    if name == "CLIPBackbone":
        variables += model.vision_projection.weights
    entries = {
        variable.path: (
            TensorInfo(tuple(variable.shape), variable.dtype),
            partial(ops.convert_to_numpy, variable),
        )
        for variable in variables
    }
    weights = CheckpointFile(model.name, "keras_hub", entries, ExitStack())
    mapping = _CONVERTERS[kind](backbone, weights.tensors)
    if name in TASKS:
        mapping |= _classifier_map(model, mapping.arguments, weights.tensors)
    if kind not in PAIRS.values():
        width = mapping.arguments.get("representation_dim", mapping.arguments["hidden_dim"])
        mapping |= head_map(weights.tensors, width, LoadOptions(), "predictions", FLAX)
    if preprocessing is None:
        preprocessing, reason = find_preprocessing(backbone if name in PAIRS else model)
        if preprocessing is None:
            raise ValueError(
                "Specify preprocessing=vit_tf.Preprocessing(...): the preprocessing of the model "
                f"is {reason}. Received: preprocessing=None"
            )
    arguments = mapping.arguments | {"preprocessing": preprocessing}
    vit = getattr(models, CLASSES.get(kind, "ViT"))(**arguments)
    fill(weights_by_name(vit), weights, mapping)
    if mapping.identity_head:
        vit.head.kernel.assign(np.eye(vit.num_classes))
    return vit


def _kinds(tensors: Tensors) -> Kinds:
    """The kinds of layers of a table: those of KerasHub have the shapes that the model has."""

    def stored(name: str, convert: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Transform:
        return Transform({name: tensors[name].shape}, convert)

    def bias(name: str, units: int) -> Transform:
        name = f"{name}/bias"
        return stored(name, np.ravel) if name in tensors else no_bias(units)

    def kernel(name: str, path: str) -> dict[str, Transform]:
        return {f"{path}/kernel": stored(f"{name}/kernel")}

    def patches(name: str, path: str, width: int) -> dict[str, Transform]:
        return kernel(name, path) | {f"{path}/bias": bias(name, width)}

    def dense(name: str, path: str, inputs: int, outputs: int) -> dict[str, Transform]:
        """A linear layer, whose units may be split into heads."""
        kernel = stored(f"{name}/kernel", lambda x: x.reshape(inputs, outputs))
        return {f"{path}/kernel": kernel, f"{path}/bias": bias(name, outputs)}

    def gate(names: str, path: str, hidden: int) -> dict[str, Transform]:
        gate_and_value = names.split(",")
        kernels = {f"{name}/kernel": tensors[f"{name}/kernel"].shape for name in gate_and_value}
        biases = Transform({f"{name}/bias": (hidden,) for name in gate_and_value}, _side_by_side)
        biases = biases if f"{gate_and_value[0]}/bias" in tensors else no_bias(2 * hidden)
        return {f"{path}/kernel": Transform(kernels, _side_by_side), f"{path}/bias": biases}

    def tokens(names: str, path: str) -> dict[str, Transform]:
        shapes = {name: tensors[name].shape for name in names.split(",")}
        return {path: Transform(shapes, concat_tokens)}

    def positions(name: str, path: str) -> dict[str, Transform]:
        return {path: stored(name, lambda x: x.reshape(1, *x.shape[-2:]))}

    kinds = {"dense": dense, "kernel": kernel, "patches": patches, "gate": gate}
    return FLAX | kinds | {"tokens": tokens, "positions": positions, "norm": FLAX["group_norm"]}


def _side_by_side(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays, axis=-1)


ATTENTION = """
    ATTENTION/query             query  dense  D D
    ATTENTION/key               key    dense  D D
    ATTENTION/value             value  dense  D D
    ATTENTION/attention_output  out    dense  D D
"""
VIT_BLOCK = (
    ATTENTION.replace("ATTENTION", "mha")
    + """
    ln_1  attention_norm  norm   D
    ln_2  mlp_norm        norm   D
    FC1   expand          dense  D M
    FC2   contract        dense  M D
"""
)
VIT_ENDS = """
    KIND_patching_and_embedding/patch_embedding  embedding/patches    patches    D
    POSITIONS                                    embedding/positions  positions
    KIND_encoder/ln                              norm                 norm       D
"""
DINO_BLOCK = (
    ATTENTION.replace("ATTENTION", "attention/attention")
    + """
    norm1                 attention_norm   norm   D
    norm2                 mlp_norm         norm   D
    FC1                   expand           dense  D E
    FC2                   contract         dense  M D
    layer_scale1/lambda1  attention_scale  same   D
    layer_scale2/lambda1  mlp_scale        same   D
"""
)
DINO_ENDS = """
    embeddings/patch_embeddings/projection  embedding/patches  patches  D
    layernorm                               norm               norm     D
"""
DINO3_BLOCK = """
    norm1                 attention_norm   norm   D
    norm2                 mlp_norm         norm   D
    layer_scale1/lambda1  attention_scale  same   D
    layer_scale2/lambda1  mlp_scale        same   D
    attention/q_proj      query            dense  D D
    attention/k_proj      key              dense  D D
    attention/v_proj      value            dense  D D
    attention/o_proj      out              dense  D D
    mlp/down_proj         contract         dense  M D
"""
DINO3_MLPS = {
    False: "mlp/up_proj expand dense D M",
    True: "mlp/gate_proj,mlp/up_proj expand gate M",
}
CLIP_PATCHES = "embedding/patch_embedding embedding/patches kernel\n"
CLIP_BLOCK = (
    ATTENTION.replace("ATTENTION", "attention")
    + """
    layer_norm_1  attention_norm  norm   D
    layer_norm_2  mlp_norm        norm   D
    dense_1       expand          dense  D M
    dense_2       contract        dense  M D
"""
)
MLP = """
    mlp/fc1  expand    dense  D M
    mlp/fc2  contract  dense  M D
"""
SIGLIP_BLOCK = (
    ATTENTION.replace("ATTENTION", "self_attn")
    + MLP
    + """
    layer_norm1  attention_norm  norm  D
    layer_norm2  mlp_norm        norm  D
"""
)
SIGLIP_POOLING = ATTENTION.replace("ATTENTION", "attention") + MLP + "layernorm norm norm D"


# The rows hold, for the backbones whose layers are named as in KerasHub's ViT, the beginning of the
# names, the prefix tokens, the field of the MLP's hidden units, and the names of the MLP's layers.
VIT_NAMES = {
    "ViTBackbone": ("vit", ("class_token",), "mlp_dim", "mlp/dense_1", "mlp/dense_2"),
    "DeiTBackbone": (
        "deit",
        ("class_token", "distillation_token"),
        "intermediate_dim",
        "mlp/dense",
        "output_layer/output",
    ),
}


def _convert_vit(backbone: Any, tensors: Tensors) -> WeightMap:
    config = backbone.get_config()
    kind, tokens, hidden_field, *mlp = VIT_NAMES[type(backbone).__name__]
    tokens = tokens if config.get("use_class_token", True) else ()
    first, hidden = f"{kind}_patching_and_embedding", config[hidden_field]
    positions = f"{first}/position_embedding"
    positions += "/embeddings" if f"{positions}/embeddings" in tensors else ""
    ends = VIT_ENDS.replace("KIND", kind).replace("POSITIONS", positions)
    if tokens:
        ends += ",".join(f"{first}/{token}" for token in tokens) + " embedding/prefix tokens"
    block = VIT_BLOCK.replace("FC1", mlp[0]).replace("FC2", mlp[1])
    sizes, kinds = {"D": config["hidden_dim"], "M": hidden}, _kinds(tensors)
    stem, layers = f"{kind}_encoder/transformer_block_#/", config["num_layers"]
    return (
        _arguments(config, hidden, bool(tokens), epsilon=config["layer_norm_epsilon"])
        | ({"distillation": "token"} if len(tokens) > 1 else {})
        | read_table(ends, kinds, sizes)
        | read_blocks(block, kinds, sizes, stem, layers, first=1)
        | WeightMap(unused_tensors=(f"{first}/mask_token",))
    )


def _convert_dino(backbone: Any, tensors: Tensors) -> WeightMap:
    config = backbone.get_config()
    gated = config["use_swiglu_ffn"]
    names = ("mlp/weights_in", "mlp/weights_out") if gated else ("mlp/fc1", "mlp/fc2")
    hidden = dims(tensors, f"encoder/layers_0/{names[1]}/kernel", 2)[0]
    expanded = dims(tensors, f"encoder/layers_0/{names[0]}/kernel", 2)[1]
    block = DINO_BLOCK.replace("FC1", names[0]).replace("FC2", names[1])
    # Those that the images are resampled from are kept next to those that are added.
    unused = ("embeddings/position_embeddings", "embeddings/mask_token")
    positions = "embeddings/interpolated_position_embeddings embedding/positions positions\n"
    sizes = {"D": config["hidden_dim"], "M": hidden, "E": expanded}
    more = {"epsilon": 1e-6} | ({"activation": "swiglu"} if gated else {})
    mapping = _dino_map(config, hidden, tensors, DINO_ENDS + positions, block, sizes, more)
    return mapping | WeightMap(unused_tensors=unused)


def _convert_dino3(backbone: Any, tensors: Tensors) -> WeightMap:
    config = backbone.get_config()
    gated, hidden = config["use_gated_mlp"], config["intermediate_dim"]
    _require(config, rope_theta=100.0, hidden_activation="silu" if gated else "gelu")
    more = {"epsilon": config["layer_norm_eps"], "key_bias": config["use_key_bias"]}
    more |= {"activation": "swiglu"} if gated else {}
    block, sizes = DINO3_BLOCK + DINO3_MLPS[gated], {"D": config["hidden_dim"], "M": hidden}
    mapping = _dino_map(config, hidden, tensors, DINO_ENDS, block, sizes, more)
    return mapping | WeightMap(unused_tensors=("embeddings/mask_token",))


def _dino_map(
    config: dict, hidden: int, tensors: Tensors, ends: str, block: str, sizes: Sizes, more: Any
) -> WeightMap:
    registers = config["num_register_tokens"]
    tokens = "embeddings/cls_token" + (",embeddings/register_tokens" if registers else "")
    ends += f"{tokens} embedding/prefix tokens"
    kinds, layers = _kinds(tensors), config["num_layers"]
    return (
        _arguments(config, hidden, True, **more)
        | {"registers": registers, "layer_scale": config["layer_scale_init_value"]}
        | read_table(ends, kinds, sizes)
        | read_blocks(block, kinds, sizes, "encoder/layers_#/", layers)
    )


def _require(config: dict, **values: object) -> None:
    """Raises a ValueError for the first field of another value than is supported."""
    for name, value in values.items():
        if config[name] != value:
            raise ValueError(
                f"Expected {name} of the KerasHub backbone to be {value!r}, the only supported "
                f"value. Received: {config[name]!r}"
            )


def _arguments(config: dict, hidden: int, has_class: bool, **more: object) -> WeightMap:
    """The arguments of a ViT, as a `WeightMap`."""
    patch = np.broadcast_to(config["patch_size"], 2)
    if patch[0] != patch[1]:
        raise ValueError(f"Expected square patches. Received: patch_size={config['patch_size']}")
    arguments = {
        **{name: config[name] for name in ("num_layers", "num_heads", "hidden_dim")},
        "image_shape": tuple(config["image_shape"]),
        "patch_size": int(patch[0]),
        "mlp_dim": hidden,
        "pooling": "cls" if has_class else "gap",
    }
    return WeightMap(arguments | more)


def _convert_clip(encoder: Any, tensors: Tensors) -> WeightMap:
    width = encoder.hidden_dim
    ends = "pre_layer_norm pre_norm norm D\nlayer_norm norm norm D"
    mapping, prefix = _encoder_map(encoder, tensors, CLIP_BLOCK, ends)
    class_token = f"{prefix}embedding/class_embedding"
    token = Transform({class_token: (width,)}, lambda x: x.reshape(1, 1, width))
    projection = identity_projection(width)
    if "vision_projection/kernel" in tensors:
        row = "vision_projection projection kernel"
        units = tensors["vision_projection/kernel"].shape[1]
        projection = read_table(row, _kinds(tensors), {}) | {"projection_dim": units}
    return mapping | WeightMap(weights={"embedding/prefix": token}) | projection


def _convert_siglip(encoder: Any, tensors: Tensors) -> WeightMap:
    # That of the last normalisation is fixed.
    _require({"layer_norm_epsilon": encoder.layer_norm_epsilon}, layer_norm_epsilon=1e-6)
    mapping, prefix = _encoder_map(encoder, tensors, SIGLIP_BLOCK, "post_layer_norm norm norm D")
    sizes, kinds = {"D": encoder.hidden_dim, "M": encoder.intermediate_dim}, _kinds(tensors)
    probe = f"{encoder.head.probe.path} pooling/probe same 1 1 D\n"
    patches = f"{prefix}embedding/patch_embedding embedding/patches patches D"
    return (
        mapping
        | read_table(SIGLIP_POOLING, kinds, sizes, f"{prefix}head/{{}}", "pooling/{}")
        | read_table(probe + patches, kinds, sizes)
    )


def _encoder_map(encoder: Any, tensors: Tensors, block: str, ends: str) -> tuple[WeightMap, str]:
    """(what the encoders of CLIP and SigLIP share, what the names of their layers begin with)."""
    prefix, kinds = encoder.embedding.name.removesuffix("embedding"), _kinds(tensors)
    names = ("num_layers", "num_heads", "hidden_dim", "patch_size")
    activation = encoder.intermediate_activation
    arguments = {
        **{name: getattr(encoder, name) for name in names},
        "image_shape": tuple(encoder.image_shape),
        "mlp_dim": encoder.intermediate_dim,
        "activation": lookup("intermediate_activation", activation, ACTIVATIONS),
    }
    first = f"{prefix}embedding"
    positions = f"{first}/position_embedding/embeddings"
    # Positions are in the order of KerasHub's ids, all 0 in an untrained CLIP.
    ids = ops.convert_to_numpy(encoder.embedding.position_ids)
    reordered = Transform({positions: tensors[positions].shape}, lambda values: values[ids])
    sizes = {"D": encoder.hidden_dim, "M": encoder.intermediate_dim}
    mapping = (
        WeightMap(arguments, {"embedding/positions": reordered}, (f"{first}/position_ids",))
        | read_table(CLIP_PATCHES + ends, kinds, sizes, f"{prefix}{{}}")
        | read_blocks(block, kinds, sizes, f"{prefix}encoder_block_#/", encoder.num_layers)
    )
    return mapping, prefix


def _classifier_map(task: Any, arguments: dict, tensors: Tensors) -> WeightMap:
    """The `WeightMap` of what a classifier does before its head, if a `ViT` does the same."""
    pooling = arguments["pooling"]
    expected = {"cls": "token", "gap": "gap"}[pooling]
    if task.pooling != expected:
        raise ValueError(
            f"Expected pooling to be {expected!r}, for a backbone "
            f"{'with' if pooling == 'cls' else 'without'} a class token. "
            f"Received: pooling={task.pooling!r}"
        )
    if "pre_logits/kernel" not in tensors:
        return WeightMap()
    units = tensors["pre_logits/kernel"].shape[1]
    sizes = {"D": arguments["hidden_dim"], "R": units}
    row = read_table("pre_logits pre_logits dense D R", _kinds(tensors), sizes)
    return row | {"representation_dim": units}


_CONVERTERS = {
    "ViTBackbone": _convert_vit,
    "DeiTBackbone": _convert_vit,
    "DINOV2Backbone": _convert_dino,
    "DINOV3Backbone": _convert_dino3,
    "CLIPVisionEncoder": _convert_clip,
    "SigLIPVisionEncoder": _convert_siglip,
}
