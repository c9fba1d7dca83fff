"""Class scores of a Keras model of any origin: what it returns, before its softmax or sigmoid."""

from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from vit_tf.common.backend import Tensor
from vit_tf.common.names import are_named
from vit_tf.features import recorder

# Ends of the names of taps that are no outputs of layers: scores before a softmax or the sigmoids
# of several classes; and of the two classes of a model that returns the probability of the second.
LOGITS, LOG_ODDS = "/logits", "/log_odds"
# What TensorFlow calls operations that do not change what scores are.
PASSED = ("Identity", "Cast", "StopGradient")
ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "softmax", "Sigmoid": "sigmoid"}
# Operations that leave probabilities in their order, if the other operand is a positive constant.
RESCALING = ("Mul", "RealDiv", "AddV2", "ClipByValue", "Maximum", "Minimum", "Log", "Rint")
# What TensorFlow calls the operations behind a kernel: its bias, its scale, a mean over positions.
BEHIND_KERNELS = ("BiasAdd", "AddV2", "Sub", "Mul", "RealDiv", "Reshape", "Squeeze", "Mean")
# Operations whose results are no scores of classes where nothing with a kernel comes after them.
CHANNELS = ("Max", "MaxPool", "AvgPool", "Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Tanh")
CHANNELS += ("FusedBatchNormV3", "StridedSlice", "GatherV2", "ConcatV2", "AddN", "Rsqrt")
PARAMETERS = ("ReadVariableOp", "Const")
# After these, values are not probabilities by construction.
LINEAR = ("BiasAdd", "MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "Mean", "Max", "Relu")
SMALLEST = 1e-30  # probability, below which float32 has few digits
ROUNDING = 1e-3  # by which the sum of probabilities may differ from 1, in half precision


@dataclass(frozen=True)
class Scores:
    """Where a model computes its class scores."""

    tap: str  # "" where it is not known which of several outputs they are
    # The path, call and leaf (as sites have them) from which it is computed.
    source: tuple[str, int, str] = ("", 1, "")
    activation: str = ""  # that the model applies to the scores: "softmax", "sigmoid" or ""
    is_inverted: bool = False  # whether the source is the probabilities
    # If the model returns several vectors and none is called "logits": from their names, or indices
    # in a list, to the taps that hold them, "" for none.
    vectors: dict[str, str] = field(default_factory=dict)
    # Whether a layer with a kernel, or what is before a softmax or sigmoid, computes them; what
    # another layer returns, such as a pooling, are channels and no scores of classes.
    is_head: bool = True

    @property
    def is_binary(self) -> bool:
        """Whether the model returns one number, the probability of the second of two classes."""
        return self.tap.endswith(LOG_ODDS)

    def compute(self, source: Tensor) -> Tensor:
        """The scores, a symbolic tensor, from the symbolic tensor of the source."""
        if not self.is_inverted and not self.is_binary:
            return source
        inverted = self.activation if self.is_inverted else ""
        return ScoresLayer(inverted, self.is_binary, dtype="float32")(source)


@keras.saving.register_keras_serializable("vit_tf", name="ClassScores")
class ScoresLayer(keras.layers.Layer):
    """Class scores of probabilities, and of both classes of a binary classifier.

    log p            of a softmax
    log p / (1 - p)  of a sigmoid, and -z, z for the only such z
    """

    def __init__(self, inverted: str = "", is_binary: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.inverted, self.is_binary = inverted, is_binary

    def call(self, x: Tensor) -> Tensor:
        if self.inverted:
            x = ops.cast(x, "float32")
            other = 1 - x if self.inverted == "sigmoid" else 1.0
            x = ops.log(ops.maximum(x, SMALLEST)) - ops.log(ops.maximum(other, SMALLEST))
        return ops.concatenate([-x, x], axis=-1) if self.is_binary else x

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"inverted": self.inverted, "is_binary": self.is_binary}


def find_scores(model: keras.Model, output: str | None = None) -> Scores:
    """Where a built Keras model computes its class scores.

    They are what it returns (of several outputs the one called `"logits"`, else the only vector or
    the first one of a list; of several named vectors, none is known to be the scores), or what it
    applies its softmax or sigmoid to, as its graph shows. What cannot be read inside the model,
    such as the argument of a softmax in a layer's own code, is computed from its probabilities.
    `output` is the name of one of several outputs.
    """
    if recorder.names_its_layers(model):
        # Models of this package without a head end in a norm, or in what they pool.
        return Scores(model.taps[-1], is_head=model.taps[-1] == "logits")
    shape, dtype = recorder.input_spec(model)
    traced = []

    def trace(images: Tensor) -> list[Tensor]:
        layers = recorder.named_operations(model)
        records = recorder.record(model, images, inner=(recorder.MODEL, *range(len(layers))))
        records = recorder.select_in_graph(images, records)
        traced.append(_trace_back(records, [path for path, _ in layers], output))
        return list(records.values())

    keras.layers.Lambda(trace, **recorder.UNCAST)(keras.KerasTensor(shape, dtype))
    scores, name, may_be_probabilities = traced[-1]
    if may_be_probabilities:
        images = np.random.default_rng(0).uniform(-1, 1, [4, *(size or 32 for size in shape[1:])])
        outputs = tree.flatten_with_path(recorder.infer(model, images.astype(dtype)))
        values = {"/".join(map(str, path)): value for path, value in outputs}[name]
        if are_distributions(ops.convert_to_numpy(values)):
            tap = (scores.source[0] or "output") + LOGITS
            return replace(scores, tap=tap, activation="softmax", is_inverted=True)
    return scores


def are_distributions(values: np.ndarray) -> bool:
    """Whether the rows of an array of shape (example, class) may be probabilities of classes."""
    values = np.asarray(values, np.float64)
    sums = values.sum(axis=1)
    return values.shape[1] > 1 and values.min() >= 0 and bool(np.all(abs(sums - 1) < ROUNDING))


def _trace_back(records: dict, paths: list[str], output: str | None) -> tuple[Scores, str, bool]:
    """The scores, which of a model's outputs they are, and whether they may be probabilities."""
    returned = {place[2]: value for place, value in records.items() if place[0] == recorder.MODEL}
    vectors = [name for name, value in returned.items() if len(value.shape) == 2]
    logits = [name for name in vectors if name.split("/")[-1] == "logits"]
    name = output or next(iter([*logits, *vectors, *returned]))
    candidates: dict[str, str] = {}
    if not output and not logits and len(vectors) > 1:
        sources = {vector: _source_of(returned[vector], records, paths) for vector in vectors}
        candidates = {v: _tap_of(source) for v, source in sources.items()}
        if are_named(vectors):
            return Scores("", vectors=candidates), "", False
    source = _source_of(returned[name], records, paths) or ("", 1, name)
    scores = Scores(_tap_of(source) or "output", source, vectors=candidates)
    activation, argument = find_activation(returned[name])
    if not activation or name not in vectors:
        operation = operation_of(returned[name])
        scores = replace(scores, is_head=name in vectors and _follows_kernel(operation))
        is_linear = operation is not None and operation.type in LINEAR
        return scores, name, name in vectors and not is_linear
    is_binary = activation == "sigmoid" and returned[name].shape[-1] == 1
    before = None
    while before is None:
        before = _source_of(argument, records, paths)
        if argument.op.type not in PASSED:
            break
        argument = argument.op.inputs[0]
    tap = "" if is_binary else _tap_of(before)
    tap = tap or (source[0] or "output") + (LOG_ODDS if is_binary else LOGITS)
    is_inverted = before is None
    scores = Scores(tap, before or source, activation, is_inverted, vectors=candidates)
    return scores, name, False


def _source_of(tensor: Tensor, records: dict, paths: list[str]) -> tuple[str, int, str] | None:
    """The layer that returns a tensor; else that of which it is an argument; None for neither."""
    same = [p for p, value in records.items() if value is tensor and p[0] != recorder.MODEL]
    same.sort(key=lambda place: place[2] in recorder.ARGUMENTS)
    return (paths[same[0][0]], *same[0][1:]) if same else None


def _tap_of(source: tuple[str, int, str] | None) -> str:
    """The tap of what a layer returns; "" for an argument of it, and for nothing."""
    is_output = source is not None and source[0] and source[2] not in recorder.ARGUMENTS
    return recorder.tap_name(*source) if source is not None and is_output else ""


def find_activation(tensor: Tensor) -> tuple[str, Any]:
    """The softmax or sigmoid that computes a tensor of a TensorFlow graph, and its argument.

    Its probabilities may be scaled, clipped or logarithms. `""` and None for a tensor of another
    operation, and outside of a graph.
    """
    import tensorflow as tf

    operation = operation_of(tensor)
    while operation is not None and operation.type in RESCALING:
        numbers = [tf.get_static_value(x) for x in operation.inputs]
        sources = [x for x, n in zip(operation.inputs, numbers, strict=True) if n is None]
        # One number for all classes keeps their order; a factor must be above 0.
        least = 1e-30 if operation.type in ("Mul", "RealDiv") else 0
        is_positive = all(n is None or least <= np.min(n) == np.max(n) for n in numbers)
        # A division by probabilities reverses their order.
        is_divisor = operation.type == "RealDiv" and numbers[0] is not None
        if len(sources) != 1 or not is_positive or is_divisor:
            break
        operation = operation_of(sources[0])
    if operation is None or operation.type not in ACTIVATIONS:
        return "", None
    return ACTIVATIONS[operation.type], operation.inputs[0]


def _follows_kernel(operation: Any) -> bool:
    """Whether a layer with a kernel computes a result, behind which are its bias or scale alone.

    True where the operation shows neither this nor the opposite.
    """
    while operation is not None and operation.type in BEHIND_KERNELS:
        inputs = [tensor for tensor in operation.inputs if not is_parameter(tensor)]
        if operation.type in ("AddV2", "Sub", "Mul", "RealDiv") and len(inputs) > 1:
            return False  # a sum or product of two paths, as in a normalization
        operation = operation_of(inputs[0]) if inputs else None
    return operation is None or operation.type not in CHANNELS


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor of a graph is a weight or a constant, cast or reshaped."""
    operation = tensor.op
    while operation.type in (*PASSED, "Reshape", "Squeeze", "ExpandDims") and operation.inputs:
        operation = operation.inputs[0].op
    return operation.type in PARAMETERS


def operation_of(tensor: Tensor) -> Any:
    """The operation of TensorFlow's graph that computes a tensor, None on other backends."""
    operation = getattr(tensor, "op", None)
    while operation is not None and operation.type in PASSED:
        operation = operation.inputs[0].op
    return operation
