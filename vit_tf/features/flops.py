"""Floating-point operations of a forward pass, counted in its graph.

What counts are matrix products and convolutions, with two operations for each multiply-add, those
on padding included. Published counts are of the same products but are often in multiply-adds,
which are half as many. Biases, normalisations, softmax, activations, pooling and resizing do not
count.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from vit_tf.common.backend import require_tensorflow
from vit_tf.features.recorder import infer


def count_flops(model: keras.Model, image_shape: Sequence[int] | None = None) -> int:
    """Floating-point operations of a model on one image, counted in its TensorFlow graph.

    The graph is that of inference on a single image. Matrix products and convolutions are counted,
    with two operations for each multiply-add, also on padding. Other operations, such as biases,
    normalisations and activations, cost nothing. Only operations on which the outputs depend count.

    Args:
        model: a built Keras model that takes images, or a submodel of such a model.
        image_shape: (height, width, channels) of the image. None means the image shape of the
            model.

    Returns:
        The number of operations.

    Raises:
        ValueError: if an operation is of an unknown kind or has a data-dependent shape (the message
            names the operation). Unknown kinds are, for example, loops, and calls of other graphs
            that contain products. It is also raised if the model takes images of any size and
            `image_shape` is None.
    """
    require_tensorflow("counting operations")
    shape = image_shape or getattr(model, "image_shape", None) or model.input_shape[1:]
    if None in tuple(shape):
        raise ValueError(
            f"Expected image_shape for a model that takes images of any size. Received: "
            f"{image_shape}, "
            f"with {model.name!r} made for {tuple(shape)}"
        )
    forward = tf.function(lambda images: infer(model, images), autograph=False)
    graph = forward.get_concrete_function(tf.TensorSpec((1, *shape), tf.float32)).graph
    library = graph.as_graph_def(add_shapes=True).library
    functions = {function.signature.name: function for function in library.function}
    return sum(_cost(op, functions) for op in _needed(graph.outputs))


def training_flops(forward: int, images: int) -> int:
    """Floating-point operations of training: three times those of a forward pass for each image.

    A backward pass takes about as many operations as two forward passes, for the gradients of the
    activations and of the weights (Kaplan et al. 2020, https://arxiv.org/abs/2001.08361, section
    2.1).
    """
    return 3 * forward * images


def _needed(outputs: Iterable[tf.Tensor]) -> Iterable[tf.Operation]:
    """The operations that outputs depend on."""
    operations, todo = {}, [tensor.op for tensor in outputs]
    while todo:
        op = todo.pop()
        if op.name not in operations:
            operations[op.name] = op
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return operations.values()


def _cost(op: tf.Operation, functions: dict) -> int:
    """The cost of an operation of a graph with these functions, by name."""
    if op.type in _FREE or (op.type in _CALLS and _is_free(op.get_attr("f").name, functions)):
        return 0
    if op.type in _CALLS and _is_convolution(op.get_attr("f").name, functions):
        return _cost_of_convolutions(functions[op.get_attr("f").name])
    if op.type not in _COSTS:
        raise ValueError(
            f"Expected operations whose cost is known: {', '.join(_COSTS)}, and those without "
            f"cost. Received: {op.type} at {op.name!r}"
        )
    if not all(tensor.shape.is_fully_defined() for tensor in (*op.inputs, *op.outputs)):
        raise ValueError(f"Expected tensors of static shapes. Received: {op.type} at {op.name!r}")
    return _COSTS[op.type](op)


def _is_free(name: str, functions: dict) -> bool:
    """Whether a function, such as a normalization with its own gradient, costs nothing."""
    return all(
        node.op in _FREE or (node.op in _CALLS and _is_free(node.attr["f"].func.name, functions))
        for node in functions[name].node_def
    )


def _is_convolution(name: str, functions: dict) -> bool:
    """Whether a function costs what its convolutions do, as that of a grouped one on a CPU."""
    return all(node.op in (*_FREE, "Conv2D", "Conv3D") for node in functions[name].node_def)


def _cost_of_convolutions(function: Any) -> int:
    """The cost of the convolutions in the definition of a function, with the shapes of results."""
    arguments = enumerate(function.signature.input_arg)
    attributes = {x.name: function.arg_attr[index].attr for index, x in arguments}
    attributes |= {node.name: node.attr for node in function.node_def}
    shapes = {
        name: [axis.size for axis in shape.dim]
        for name, attribute in attributes.items()
        for shape in attribute["_output_shapes"].list.shape[:1]
    }
    convolutions = [node for node in function.node_def if node.op in ("Conv2D", "Conv3D")]
    return sum(
        2 * math.prod(shapes[node.input[1].partition(":")[0]][:-1]) * math.prod(shapes[node.name])
        for node in convolutions
    )


def _count_product(transposed: str) -> Callable[[tf.Operation], int]:
    """Cost of `a @ b`, where an attribute states whether `a` is transposed."""

    def cost(op: tf.Operation) -> int:
        inner = op.inputs[0].shape[-2 if op.get_attr(transposed) else -1]
        return 2 * inner * op.outputs[0].shape.num_elements()

    return cost


def _count_einsum(op: tf.Operation) -> int:
    """Cost of a sum of products over labels; products without a sum do not count."""
    equation = op.get_attr("equation").decode()
    terms, result = equation.split("->")
    if "." in equation:
        raise ValueError(
            "Expected an einsum equation with a label for each axis, without '...'. "
            f"Received: {equation!r} at {op.name!r}"
        )
    terms = terms.split(",")
    sizes = {
        label: size
        for term, tensor in zip(terms, op.inputs, strict=True)
        for label, size in zip(term, tensor.shape, strict=True)
    }
    if len(terms) < 2 or set(sizes) == set(result):
        return 0
    return 2 * math.prod(sizes.values())


def _count_convolution(op: tf.Operation) -> int:
    """Each output is a sum over a kernel of shape (*positions, channel of the group, filter).

    The kernel of a depthwise convolution has a multiplier in place of filters, and no sum over
    channels; a transposed convolution sums over the values that each input goes into.
    """
    is_depthwise, is_transposed = "Depthwise" in op.type, op.type.endswith("BackpropInput")
    summed = op.inputs[1].shape[: -2 if is_depthwise else -1]
    result = op.inputs[2] if is_transposed else op.outputs[0]
    # A dilated convolution is one of the pixels that are apart, whose results are then merged and
    # cut to size.
    consumers = cast(Any, result).consumers()  # which the stubs lack
    while len(consumers) == 1 and consumers[0].type in ("Squeeze", "BatchToSpaceND"):
        (result,) = consumers[0].outputs
        consumers = cast(Any, result).consumers()
    return 2 * math.prod(summed) * result.shape.num_elements()


_COSTS = {
    "MatMul": _count_product("transpose_a"),
    "BatchMatMul": _count_product("adj_x"),
    "BatchMatMulV2": _count_product("adj_x"),
    "BatchMatMulV3": _count_product("adj_x"),
    "Einsum": _count_einsum,
    "Conv2D": _count_convolution,
    "Conv3D": _count_convolution,
    "DepthwiseConv2dNative": _count_convolution,
    "Conv2DBackpropInput": _count_convolution,
}

# Values, their shapes and positions; arithmetic on each number; sums and means; pooling, resizing.
_NAMES = """
    Placeholder Const ReadVariableOp Identity IdentityN NoOp StopGradient PreventGradient Cast
    Reshape Transpose ExpandDims Squeeze Pack Unpack ConcatV2 Split SplitV Slice StridedSlice
    BroadcastTo Tile Pad PadV2 MirrorPad GatherV2 GatherNd ResourceGather Shape ShapeN Size Fill
    Range ZerosLike OnesLike ReverseV2 SpaceToDepth DepthToSpace
    SpaceToBatchND BatchToSpaceND
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
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
