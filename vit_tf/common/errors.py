"""Messages of exceptions on one line, without what TensorFlow and Keras put around them."""

import re
from typing import Any, cast

from vit_tf.common.names import without_password

# Keras puts the message of an error within a layer in bold, between the layer and its arguments.
_IN_KERAS_LAYER = re.compile(
    r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m", re.DOTALL
)
# What precedes the message of an operation in a graph: "Detected at node ... defined at ...".
_CREATED_AT = re.compile(r'.*(?:available>|^  File "[^\n]*\n)', re.DOTALL | re.MULTILINE)


def error_message(error: BaseException) -> str:
    """The message of an exception on one line, without the graph that TensorFlow adds to it."""
    text = str(error)
    if is_tensorflow_error(error):
        text = cast(Any, error).message
        # A failed assertion lists its data. The message of another operation comes after the lines
        # of code that created it, where these are known, and before the nodes that it belongs to.
        asserted = re.search(r"assertion failed: \[(.*?)\]\s*(\[\[|$)", text, re.DOTALL)
        # The error of a Python function that runs in a graph ends with the function's traceback.
        without_trace = text.partition("Traceback (most recent call last)")[0] or text
        text = asserted[1] if asserted else _CREATED_AT.sub("", without_trace).split("[[")[0]
        # The names of the function and of the operation that failed.
        text = re.sub(r"\{\{[^{}]*\}\}|\[Op:\w+\]( name:)?", "", text)
    if in_layer := _IN_KERAS_LAYER.search(text):
        text = in_layer[1]
    if text.startswith("in user code:"):
        # AutoGraph puts the traceback of the Python code that it converted before the message.
        text = text.rstrip().splitlines()[-1]
    return without_password(" ".join(text.split()))


def is_tensorflow_error(error: BaseException) -> bool:
    """Whether an operation of TensorFlow raised it, found without importing TensorFlow."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "OpError" in kinds and hasattr(error, "message")
