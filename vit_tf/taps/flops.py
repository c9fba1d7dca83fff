"""Floating-point operations of a forward pass: counted in its graph, and by formula.

What counts are matrix products and convolutions, with two operations for each multiply-add, those
on padding included. Published counts are of the same products but are often in multiply-adds,
which are half as many. Biases, normalisations, softmax, activations, pooling and resizing do not
count.
"""

import math

import tensorflow as tf

from vit_tf.backend import require_tensorflow
from vit_tf.models.transformer import GATES
from vit_tf.models.vit import prefix_names
from vit_tf.names import lookup
from vit_tf.tokens import TokenGrid


def count_flops(model, image_shape=None):
    """Floating-point operations of a model on one image, counted in its TensorFlow graph.

    The graph is that of `model(images, training=False)` for a single image, restricted to what the
    outputs depend on. Each operation is either in the cost table or known to cost nothing.

    Args:
        model: a built Keras model of images, or a submodel of one.
        image_shape: (height, width, channels); the model's own if None.

    Raises:
        ValueError: for an operation of an unknown kind, such as a loop or a call of another graph,
            or with a data-dependent shape; the error names it. Also for a model that takes images
            of any size, if `image_shape` is None.
    """
    require_tensorflow("counting operations")
    shape = image_shape or getattr(model, "image_shape", None) or model.input_shape[1:]
    if None in tuple(shape):
        raise ValueError(
            f"Expected image_shape for a model of images of any size. Received: {image_shape}, "
            f"with {model.name!r} made for {tuple(shape)}"
        )
    forward = tf.function(lambda images: model(images, training=False), autograph=False)
    graph = forward.get_concrete_function(tf.TensorSpec((1, *shape), tf.float32)).graph
    return sum(_cost(op) for op in _needed(graph.outputs))


def formula(model) -> int:
    """Floating-point operations of one of our own models on one image, from its configuration.

    With T tokens, D channels and M hidden units, a block of a Vision Transformer takes
    `8 T D^2 + 4 T^2 D + 4 T D M`: four projections, scores and weighted values, and the MLP.
    """
    return lookup("model", type(model).__name__, _FORMULAS)(model.get_config())


def training_flops(forward, images):
    """Floating-point operations of training: three forward passes for each image that was seen.

    A backward pass takes about two of them, for the gradients of the activations and of the
    weights (Kaplan et al. 2020, https://arxiv.org/abs/2001.08361, section 2.1).
    """
    return 3 * forward * images


def _needed(outputs):
    """The operations that outputs depend on."""
    found, todo = {}, [tensor.op for tensor in outputs]
    while todo:
        op = todo.pop()
        if op.name not in found:
            found[op.name] = op
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found.values()


def _cost(op):
    if op.type in _FREE:
        return 0
    if op.type not in _COSTS:
        raise ValueError(
            f"Expected operations whose cost is known: {', '.join(_COSTS)}, and those without. "
            f"Received: {op.type} at {op.name!r}"
        )
    if not all(tensor.shape.is_fully_defined() for tensor in (*op.inputs, *op.outputs)):
        raise ValueError(f"Expected static shapes. Received: {op.type} at {op.name!r}")
    return _COSTS[op.type](op)


def _of_product(transposed):
    """Cost of `a @ b`, where an attribute states whether `a` is transposed."""

    def cost(op):
        inner = op.inputs[0].shape[-2 if op.get_attr(transposed) else -1]
        return 2 * inner * op.outputs[0].shape.num_elements()

    return cost


def _of_einsum(op):
    """Cost of a sum of products over labels; products without a sum do not count."""
    equation = op.get_attr("equation").decode()
    terms, result = equation.split("->")
    if "." in equation:
        raise ValueError(f"Expected labels of all axes. Received: {equation!r} at {op.name!r}")
    terms = terms.split(",")
    sizes = {
        label: size
        for term, tensor in zip(terms, op.inputs, strict=True)
        for label, size in zip(term, tensor.shape, strict=True)
    }
    if len(terms) < 2 or set(sizes) == set(result):
        return 0
    return 2 * math.prod(sizes.values())


def _of_convolution(op):
    """Each output is a sum over a kernel of shape (*positions, channel of the group, filter)."""
    return 2 * math.prod(op.inputs[1].shape[:-1]) * op.outputs[0].shape.num_elements()


def _of_depthwise(op):
    """Each output is a sum over the positions of a kernel (row, column, channel, multiplier)."""
    return 2 * math.prod(op.inputs[1].shape[:2]) * op.outputs[0].shape.num_elements()


def _of_transposed(op):
    """Each input goes into a kernel of shape (row, column, filter, channel of the input)."""
    return 2 * math.prod(op.inputs[1].shape[:-1]) * op.inputs[2].shape.num_elements()


_COSTS = {
    "MatMul": _of_product("transpose_a"),
    "BatchMatMul": _of_product("adj_x"),
    "BatchMatMulV2": _of_product("adj_x"),
    "BatchMatMulV3": _of_product("adj_x"),
    "Einsum": _of_einsum,
    "Conv2D": _of_convolution,
    "Conv3D": _of_convolution,
    "DepthwiseConv2dNative": _of_depthwise,
    "Conv2DBackpropInput": _of_transposed,
}

# Values, their shapes and positions; arithmetic on each number; sums and means; pooling, resizing.
_NAMES = """
    Placeholder Const ReadVariableOp Identity IdentityN NoOp StopGradient PreventGradient Cast
    Reshape Transpose ExpandDims Squeeze Pack Unpack ConcatV2 Split SplitV Slice StridedSlice
    BroadcastTo Tile Pad PadV2 MirrorPad GatherV2 GatherNd ResourceGather Shape ShapeN Size Fill
    Range ZerosLike OnesLike ReverseV2 SpaceToDepth DepthToSpace
    SelectV2
    Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr LogicalNot AddV2
    AddN BiasAdd Sub Mul DivNoNan RealDiv FloorDiv FloorMod Neg Abs Sign Pow Square
    SquaredDifference Sqrt Rsqrt Reciprocal Exp Expm1 Log Log1p Erf Erfc Tanh Sigmoid Softplus
    Softsign Sin Cos Floor Ceil Round Maximum Minimum ClipByValue Relu Relu6 LeakyRelu Elu Selu
    Softmax LogSoftmax L2Loss FusedBatchNormV3
    Sum Mean Prod Max Min All Any ArgMax ArgMin Cumsum MaxPool AvgPool ResizeBilinear
    ResizeBicubic ResizeNearestNeighbor
"""
_FREE = frozenset(_NAMES.split())


def _vit(config):
    height, width, channels = config["image_shape"]
    units, stride, total = config.get("stem_units"), 1, 0
    if units is not None:
        size = _halved((height, width))
        total = _convolution(size, 7, channels, 64)
        more, channels = _stages(units, 64, _halved(size), config["without_skips"])
        total, stride = total + more, 4 * 2 ** max(len(units) - 1, 0)
    total += _encoder(config, channels, len(prefix_names(config)), stride)
    inputs = config["hidden_dim"]
    if config.get("representation_dim") is not None:
        total += _dense(1, inputs, config["representation_dim"])
        inputs = config["representation_dim"]
    heads = 2 if config.get("distillation") == "heads" else 1
    return total + heads * _dense(1, inputs, config["num_classes"])


def _clip(config):
    total = _encoder(config, config["image_shape"][2], prefix=1)
    total += _dense(1, config["hidden_dim"], config["projection_dim"])
    return total + _dense(1, config["projection_dim"], config["num_classes"] or 0)


def _siglip(config):
    size, width, hidden = (config[name] for name in ("patch_size", "hidden_dim", "mlp_dim"))
    *pixels, channels = config["image_shape"]
    # What lies beyond the last whole patch is not seen.
    seen = tuple(n // size * size for n in pixels)
    tokens = math.prod(n // size for n in seen)
    total = _encoder(config | {"image_shape": seen}, channels, prefix=0)
    total += 2 * _dense(tokens, width, width) + 2 * _dense(1, tokens, width)
    total += 2 * _dense(1, width, width) + 2 * _dense(1, width, hidden)
    return total + _dense(1, width, config["num_classes"] or 0)


def _beit(config):
    total = _encoder(config, config["image_shape"][2], prefix=1)
    return total + _dense(1, config["hidden_dim"], config["num_classes"])


def _encoder(config, channels, prefix, stride=1):
    """The embedding of patches of a map of so many channels, and all blocks."""
    size, width = config["patch_size"], config["hidden_dim"]
    grid = TokenGrid.of_patches(config["image_shape"], size, prefix, stride)
    tokens = grid.num_tokens
    products = 3 if config.get("activation") in GATES else 2
    block = 4 * _dense(tokens, width, width)
    block += products * _dense(tokens, width, config["mlp_dim"])
    block += 2 * _dense(tokens, tokens, width)
    patches = _dense(grid.num_spatial, size * size * channels, width)
    return patches + config["num_layers"] * block


def _mixer(config):
    size, width = config["patch_size"], config["hidden_dim"]
    tokens = TokenGrid.of_patches(config["image_shape"], size).num_tokens
    patches = _dense(tokens, size * size * config["image_shape"][2], width)
    block = 2 * _dense(width, tokens, config["tokens_mlp_dim"])
    block += 2 * _dense(tokens, width, config["channels_mlp_dim"])
    return patches + config["num_layers"] * block + _dense(1, width, config["num_classes"])


def _bit(config):
    height, width, channels = config["image_shape"]
    filters, size, root = round(64 * config["width_factor"]), (height, width), 3
    if config["stem"] == "imagenet":
        size, root = _halved(size), 7
    total = _convolution(size, root, channels, filters)
    if config["stem"] == "imagenet":
        size = _halved(size)
    more, last = _stages(config["units"], filters, size, config["without_skips"])
    return total + more + _dense(1, last, config["num_classes"])


def _stages(units, filters, size, without_skips):
    """Bottleneck units from a map of `filters` channels on: operations, and channels at the end."""
    total, channels = 0, filters
    for stage, depth in enumerate(units):
        inside, name = filters * 2**stage, f"stage{stage + 1}"
        projected = not {name, f"{name}/unit01"} & set(without_skips)
        for unit in range(depth):
            total += _convolution(size, 1, channels, inside)
            size = _halved(size) if stage and not unit else size
            total += _convolution(size, 3, inside, inside)
            total += _convolution(size, 1, inside, 4 * inside)
            if not unit and projected:
                total += _convolution(size, 1, channels, 4 * inside)
            channels = 4 * inside
    return total, channels


def _halved(size):
    return tuple(-(-side // 2) for side in size)


def _dense(rows, inputs, units):
    return 2 * rows * inputs * units


def _convolution(size, kernel, channels, filters):
    """Operations of a convolution whose result has this (height, width)."""
    return _dense(math.prod(size), kernel * kernel * channels, filters)


_FORMULAS = {
    "ViT": _vit,
    "CLIPViT": _clip,
    "SigLIPViT": _siglip,
    "BEiT": _beit,
    "BiT": _bit,
    "Mixer": _mixer,
}
