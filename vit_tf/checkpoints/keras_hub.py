"""Our models with the weights of KerasHub's, in memory."""

from functools import partial

import numpy as np
from keras import ops

import vit_tf
from vit_tf.checkpoints.files.tensors import TensorInfo
from vit_tf.checkpoints.filling import Source, fill
from vit_tf.checkpoints.loading import weights_by_name
from vit_tf.checkpoints.plans import Part, Wishes, dims, head_part, norm_part
from vit_tf.checkpoints.token_parts import in_a_row
from vit_tf.checkpoints.torch_blocks import no_bias, scales_part
from vit_tf.models.input_range import find_preprocessing
from vit_tf.names import choose

TASKS = {"ViTImageClassifier": "ViTBackbone", "DeiTImageClassifier": "DeiTBackbone"}
# Models of images and texts, by their image encoders.
PAIRS = {"CLIPBackbone": "CLIPVisionEncoder", "SigLIPBackbone": "SigLIPVisionEncoder"}
CLASSES = {"CLIPVisionEncoder": "CLIPViT", "SigLIPVisionEncoder": "SigLIPViT"}
# KerasHub's names of the forms of GELU, and ours.
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_approximate": "gelu_tanh"}


def from_keras_hub(model, preprocessing=None):
    """A model with the weights of a KerasHub backbone or image classifier, and so with its taps.

    `submodel` reads a KerasHub model too, but only the outputs of its layers. Dropout is left out.

    Args:
        model: a `ViTBackbone`, `DeiTBackbone`, `DINOV2Backbone` or `DINOV3Backbone` of
            `keras_hub.models`; a `ViTImageClassifier` or `DeiTImageClassifier`, whose logits the
            model then returns; or a `CLIPVisionEncoder`, `SigLIPVisionEncoder`, `CLIPBackbone` or
            `SigLIPBackbone`, of which the image encoder and CLIP's projection are used.
        preprocessing: the `vit_tf.Preprocessing` of its images; by default that of the image
            converter of a classifier, or of the public weights of the family.

    Returns:
        `ViT`, which for a backbone returns its class token, or the mean of its tokens, as logits;
        `CLIPViT`, which for an encoder alone returns its class token, or `SigLIPViT`.

    Raises:
        ValueError: for another model, or one with a feature that a `ViT` does not have.
    """
    name = type(model).__name__ if type(model).__module__.startswith("keras_hub.") else None
    backbone = model.backbone if name in TASKS else model
    backbone = model.vision_encoder if name in PAIRS else backbone
    kind = (TASKS | PAIRS).get(name, name)
    if kind not in _PARTS:
        known = ", ".join([*_PARTS, *TASKS, *PAIRS])
        raise ValueError(
            f"Expected model to be one of keras_hub.models: {known}. "
            f"Received: {type(model).__module__}.{type(model).__name__}"
        )
    # The encoders of CLIP and SigLIP keep it in their first layer.
    layers = backbone if kind not in CLASSES else backbone.embedding
    if getattr(layers, "data_format", "channels_last") != "channels_last":
        raise ValueError(
            "Expected a model whose data_format is 'channels_last'. "
            f"Received: {layers.data_format!r}"
        )
    weights = _Weights(backbone if name in PAIRS else model)
    if name == "CLIPBackbone":
        weights.add(model.vision_projection.weights)
    whole = _PARTS[kind](backbone, weights.tensors)
    if name in TASKS:
        whole |= _pooling_part(model, whole.arguments["pooling"], weights.tensors)
    if kind not in CLASSES:
        width = whole.arguments.get("representation_dim", whole.arguments["hidden_dim"])
        kernel, bias = "predictions/kernel", "predictions/bias"
        whole |= head_part(weights.tensors, width, Wishes(), kernel, bias, lambda n: (width, n))
    told = preprocessing or find_preprocessing(backbone if name in PAIRS else model)[0]
    vit = getattr(vit_tf, CLASSES.get(kind, "ViT"))(**whole.arguments, preprocessing=told)
    fill(weights_by_name(vit), weights, whole.sources, unused=whole.unused, new=whole.new)
    if whole.headless:
        vit.head.kernel.assign(np.eye(vit.num_classes))
    return vit


class _Weights:
    """The weights of a Keras model by their paths, as an `Archive` has them."""

    def __init__(self, model):
        self.path = model.name
        self._weights, self.tensors = {}, {}
        self.add(model.weights)

    def add(self, weights):
        for weight in weights:
            self._weights[weight.path] = weight
            self.tensors[weight.path] = TensorInfo(tuple(weight.shape), weight.dtype)

    def read(self, name):
        return ops.convert_to_numpy(self._weights[name])


def _vit_part(backbone, tensors):
    config = backbone.get_config()
    tokens = ["class_token"] if config["use_class_token"] else []
    names = {"fc1": "mlp/dense_1", "fc2": "mlp/dense_2"}
    return _google_part("vit", config, tensors, tokens, config["mlp_dim"], names)


def _deit_part(backbone, tensors):
    config = backbone.get_config()
    tokens = ["class_token", "distillation_token"]
    names = {"fc1": "mlp/dense", "fc2": "output_layer/output"}
    part = _google_part("deit", config, tensors, tokens, config["intermediate_dim"], names)
    unused = ("deit_patching_and_embedding/mask_token",)
    return part | Part({"distillation": "token"}, unused=unused)


def _google_part(kind, config, tensors, tokens, hidden, names):
    """The `Part` of a backbone whose layers are called as those of KerasHub's ViT."""
    first, encoder = f"{kind}_patching_and_embedding", f"{kind}_encoder"
    positions = f"{first}/position_embedding"
    positions += "/embeddings" if f"{positions}/embeddings" in tensors else ""
    names = {"norm1": "ln_1", "attention": "mha", "norm2": "ln_2"} | names
    return Part.join(
        [
            _sizes_part(config, config["image_shape"], hidden, bool(tokens)),
            Part({"epsilon": config["layer_norm_epsilon"]}),
            _embedding_part(tensors, f"{first}/patch_embedding", positions),
            _tokens_part(tensors, [f"{first}/{token}" for token in tokens]),
            *(
                _block_part(tensors, i, f"{encoder}/transformer_block_{i + 1}", names)
                for i in range(config["num_layers"])
            ),
            _norm_part("norm", f"{encoder}/ln", config["hidden_dim"]),
        ]
    )


def _dino_part(backbone, tensors):
    config = backbone.get_config()
    names = {"norm1": "norm1", "attention": "attention/attention", "norm2": "norm2"}
    gated = config["use_swiglu_ffn"]
    fc1, fc2 = ("weights_in", "weights_out") if gated else ("fc1", "fc2")
    names |= {"fc1": f"mlp/{fc1}", "fc2": f"mlp/{fc2}"}
    names |= {"scale1": "layer_scale1/lambda1", "scale2": "layer_scale2/lambda1"}
    hidden = dims(tensors, f"encoder/layers_0/{names['fc2']}/kernel", 2)[0]
    registers = config["num_register_tokens"]
    tokens = ["embeddings/cls_token", *(["embeddings/register_tokens"] if registers else [])]
    arguments = {"registers": registers, "layer_scale": config["layer_scale_init_value"]}
    arguments |= {"activation": "swiglu"} if gated else {}
    # Those that the images are resampled from are kept next to those that are added.
    unused = ("embeddings/position_embeddings", "embeddings/mask_token")
    positions = "embeddings/interpolated_position_embeddings"
    return Part.join(
        [
            _sizes_part(config, config["image_shape"], hidden, True),
            Part({"epsilon": 1e-6, **arguments}, unused=unused),
            _embedding_part(tensors, "embeddings/patch_embeddings/projection", positions),
            _tokens_part(tensors, tokens),
            *(
                _block_part(tensors, i, f"encoder/layers_{i}", names)
                for i in range(config["num_layers"])
            ),
            _norm_part("norm", "layernorm", config["hidden_dim"]),
        ]
    )


def _dino3_part(backbone, tensors):
    config = backbone.get_config()
    gated, width = config["use_gated_mlp"], config["hidden_dim"]
    for name, value in (("rope_theta", 100.0), ("hidden_activation", "silu" if gated else "gelu")):
        if config[name] != value:
            raise ValueError(f"Expected {name} to be {value!r}. Received: {config[name]!r}")
    registers, hidden = config["num_register_tokens"], config["intermediate_dim"]
    tokens = ["embeddings/cls_token", *(["embeddings/register_tokens"] if registers else [])]
    arguments = {"registers": registers, "layer_scale": config["layer_scale_init_value"]}
    arguments |= {"epsilon": config["layer_norm_eps"], "position_type": "rotary"}
    arguments |= {"activation": "swiglu"} if gated else {}
    patches = "embeddings/patch_embeddings/projection"
    kernel = Source({f"{patches}/kernel": _shape(tensors, patches)})
    parts = [
        _sizes_part(config, config["image_shape"], hidden, True),
        Part(arguments, unused=("embeddings/mask_token",)),
        Part(sources={"embedding/patches/kernel": kernel}),
        Part(sources={"embedding/patches/bias": _bias(tensors, patches, width)}),
        _tokens_part(tensors, tokens),
        _norm_part("norm", "layernorm", width),
    ]
    for i in range(config["num_layers"]):
        layer, name = f"block{i:02d}", f"encoder/layers_{i}"
        names = {which: f"attention/{which[0]}_proj" for which in ("query", "key", "value")}
        names |= {"out": "attention/o_proj", "contract": "mlp/down_proj"}
        names |= {} if gated else {"expand": "mlp/up_proj"}
        for dense, inner in names.items():
            units = _shape(tensors, f"{name}/{inner}")[-1]
            inner = f"{name}/{inner}"
            parts.append(_dense_part(tensors, f"{layer}/{dense}", inner, units, np.asarray))
        if gated:
            parts.append(_gate_part(tensors, f"{layer}/expand", f"{name}/mlp", hidden))
        for norm, inner in (("attention_norm", "norm1"), ("mlp_norm", "norm2")):
            parts.append(_norm_part(f"{layer}/{norm}", f"{name}/{inner}", width))
        scales = (f"{name}/layer_scale{n}/lambda1" for n in (1, 2))
        parts.append(scales_part(layer, *scales, width))
    return Part.join(parts)


def _gate_part(tensors, layer, name, hidden):
    """The `Part` of an MLP's first layer, stored as that of a gate and what it gates."""
    both = (f"{name}/gate_proj", f"{name}/up_proj")
    kernels = {f"{one}/kernel": _shape(tensors, one) for one in both}
    biases = {f"{one}/bias": (hidden,) for one in both}
    stored = f"{both[0]}/bias" in tensors
    bias = Source(biases, _side_by_side) if stored else no_bias(2 * hidden)
    sources = {f"{layer}/kernel": Source(kernels, _side_by_side), f"{layer}/bias": bias}
    return Part(sources=sources)


def _side_by_side(*arrays):
    return np.concatenate(arrays, axis=-1)


def _clip_part(encoder, tensors):
    width, prefix = encoder.hidden_dim, encoder.embedding.name.removesuffix("embedding")
    names = {"norm1": "layer_norm_1", "attention": "attention", "norm2": "layer_norm_2"}
    names |= {"fc1": "dense_1", "fc2": "dense_2"}
    first = f"{prefix}embedding"
    token = Source({f"{first}/class_embedding": (width,)}, partial(_reshaped, shape=(1, 1, width)))
    if "vision_projection/kernel" in tensors:
        kernel = Source({"vision_projection/kernel": _shape(tensors, "vision_projection")})
        units = _shape(tensors, "vision_projection")[1]
    else:
        kernel, units = Source({}, partial(np.eye, width, dtype="float32")), width
    sources = {"embedding/prefix": token, "projection/kernel": kernel}
    return Part.join(
        [
            _encoder_part(encoder, tensors, prefix, names),
            Part({"projection_dim": units}, sources),
            _norm_part("pre_norm", f"{prefix}pre_layer_norm", width),
            _norm_part("norm", f"{prefix}layer_norm", width),
        ]
    )


def _siglip_part(encoder, tensors):
    # That of the last normalisation is fixed.
    if encoder.layer_norm_epsilon != 1e-6:
        received = encoder.layer_norm_epsilon
        raise ValueError(f"Expected layer_norm_epsilon to be 1e-06. Received: {received}")
    width, prefix = encoder.hidden_dim, encoder.embedding.name.removesuffix("embedding")
    head, mlp = f"{prefix}head", {"fc1": "mlp/fc1", "fc2": "mlp/fc2"}
    names = {"norm1": "layer_norm1", "attention": "self_attn", "norm2": "layer_norm2"} | mlp
    bias = _bias(tensors, f"{prefix}embedding/patch_embedding", width)
    probe = Source({encoder.head.probe.path: (1, 1, width)})
    return Part.join(
        [
            _encoder_part(encoder, tensors, prefix, names),
            Part(sources={"embedding/patches/bias": bias, "pooling/probe": probe}),
            _norm_part("norm", f"{prefix}post_layer_norm", width),
            _norm_part("pooling/norm", f"{head}/layernorm", width),
            _layers_part(tensors, "pooling", head, {"attention": "attention"} | mlp),
        ]
    )


def _encoder_part(encoder, tensors, prefix, names):
    """The `Part` that the image encoders of CLIP and SigLIP share; layers begin with `prefix`."""
    sizes = ("num_layers", "num_heads", "hidden_dim", "patch_size")
    arguments = {name: getattr(encoder, name) for name in sizes}
    arguments |= {"image_shape": tuple(encoder.image_shape), "mlp_dim": encoder.intermediate_dim}
    activation = encoder.intermediate_activation
    arguments["activation"] = choose("intermediate_activation", activation, ACTIVATIONS)
    first = f"{prefix}embedding"
    patches, positions = f"{first}/patch_embedding", f"{first}/position_embedding/embeddings"
    sources = {
        "embedding/patches/kernel": Source({f"{patches}/kernel": _shape(tensors, patches)}),
        "embedding/positions": Source({positions: tensors[positions].shape}, _chosen(encoder)),
    }
    parts = [Part(arguments, sources, unused=(f"{first}/position_ids",))]
    for i in range(encoder.num_layers):
        parts.append(_block_part(tensors, i, f"{prefix}encoder_block_{i}", names))
    return Part.join(parts)


def _chosen(encoder):
    """Function that takes positions in the order of KerasHub's ids, all 0 in an untrained CLIP."""
    ids = ops.convert_to_numpy(encoder.embedding.position_ids)
    return lambda positions: positions[ids]


_PARTS = {"ViTBackbone": _vit_part, "DeiTBackbone": _deit_part, "DINOV2Backbone": _dino_part}
_PARTS |= {"DINOV3Backbone": _dino3_part}
_PARTS |= {"CLIPVisionEncoder": _clip_part, "SigLIPVisionEncoder": _siglip_part}


def _sizes_part(config, image_shape, hidden, has_class):
    """The `Part` of a model's size, and of its pooling."""
    patch = np.broadcast_to(config["patch_size"], 2)
    if patch[0] != patch[1]:
        raise ValueError(f"Expected square patches. Received: patch_size={config['patch_size']}")
    arguments = {name: config[name] for name in ("num_layers", "num_heads", "hidden_dim")}
    arguments |= {"image_shape": tuple(image_shape), "patch_size": int(patch[0])}
    return Part(arguments | {"mlp_dim": hidden, "pooling": "cls" if has_class else "gap"})


def _embedding_part(tensors, patches, positions):
    *_, width = tensors[f"{patches}/kernel"].shape
    shape = tensors[positions].shape
    return Part(
        sources={
            "embedding/patches/kernel": Source({f"{patches}/kernel": _shape(tensors, patches)}),
            "embedding/patches/bias": _bias(tensors, patches, width),
            "embedding/positions": Source({positions: shape}, _with_example),
        }
    )


def _with_example(positions):
    return positions.reshape(1, *positions.shape[-2:])


def _tokens_part(tensors, names):
    """The `Part` of the prefix tokens."""
    if not names:
        return Part()
    shapes = {name: tensors[name].shape for name in names}
    return Part(sources={"embedding/prefix": Source(shapes, in_a_row)})


def _block_part(tensors, number, name, names):
    """The `Part` of a block; `names` are those of its layers, and of its scales if it has some."""
    layer = f"block{number:02d}"
    inner = {part: f"{name}/{inside}" for part, inside in names.items()}
    width = _shape(tensors, f"{inner['attention']}/query")[0]
    parts = [_norm_part(f"{layer}/attention_norm", inner["norm1"], width)]
    parts += [_norm_part(f"{layer}/mlp_norm", inner["norm2"], width)]
    parts += [_layers_part(tensors, layer, name, names)]
    if "scale1" in inner:
        parts.append(scales_part(layer, inner["scale1"], inner["scale2"], width))
    return Part.join(parts)


def _layers_part(tensors, layer, name, names):
    """The `Part` of the attention and the MLP of a block, or of a pooling."""
    inner = {part: f"{name}/{inside}" for part, inside in names.items()}
    width, heads, channels = _shape(tensors, f"{inner['attention']}/query")
    parts = []
    joined = partial(_reshaped, shape=(width, heads * channels))
    for which in ("query", "key", "value"):
        dense = f"{inner['attention']}/{which}"
        parts.append(_dense_part(tensors, f"{layer}/{which}", dense, heads * channels, joined))
    out = f"{inner['attention']}/attention_output"
    apart = partial(_reshaped, shape=(heads * channels, width))
    parts.append(_dense_part(tensors, f"{layer}/out", out, width, apart))
    for dense, which in (("expand", "fc1"), ("contract", "fc2")):
        units = _shape(tensors, inner[which])[-1]
        parts.append(_dense_part(tensors, f"{layer}/{dense}", inner[which], units, np.asarray))
    return Part.join(parts)


def _reshaped(array, shape):
    return array.reshape(shape)


def _dense_part(tensors, layer, name, units, convert):
    kernel = Source({f"{name}/kernel": _shape(tensors, name)}, convert)
    return Part(sources={f"{layer}/kernel": kernel, f"{layer}/bias": _bias(tensors, name, units)})


def _bias(tensors, name, units):
    """The `Source` of a bias, which is zero where the layer has none."""
    if f"{name}/bias" not in tensors:
        return no_bias(units)
    return Source({f"{name}/bias": tensors[f"{name}/bias"].shape}, np.ravel)


def _norm_part(layer, name, width):
    return norm_part(layer, f"{name}/gamma", f"{name}/beta", width)


def _shape(tensors, name):
    return tensors[f"{name}/kernel"].shape


def _pooling_part(task, pooling, tensors):
    """The `Part` of what a classifier does before its head, if a `ViT` does the same."""
    expected = {"cls": "token", "gap": "gap"}[pooling]
    if task.pooling != expected:
        raise ValueError(
            f"Expected pooling to be {expected!r}, for a backbone "
            f"{'with' if pooling == 'cls' else 'without'} a class token. "
            f"Received: pooling={task.pooling!r}"
        )
    if "pre_logits/kernel" not in tensors:
        return Part()
    units = tensors["pre_logits/kernel"].shape[1]
    part = _dense_part(tensors, "pre_logits", "pre_logits", units, np.asarray)
    return part | Part({"representation_dim": units})
