"""Errors in words: why something failed, as a sentence, and the message of an error on one line."""

import logging
import re
import traceback
from typing import Any, cast

from vit_tf.common.names import without_password

log = logging.getLogger(__name__)
MAX_LETTERS = 400  # of an error's message in a report
NO_MEMORY = "It needs more memory than is available. Use fewer or smaller images, or fewer layers."
NO_GRADIENT = "TensorFlow has no gradient of the operation {}, which the model uses."
NOT_COMPUTED = "TensorFlow cannot compute it for this model and these images ({})."
UNEXPECTED = "It failed with an unexpected error; the log has its traceback ({})."


def explain(error: Exception, what: str) -> str:
    """The reason of a failure, as a sentence; the traceback of a bug goes to the log."""
    reason, trace = describe_failure(error)
    if trace:
        log.error("%s failed:\n%s", what, trace)
    return reason


def describe_failure(error: Exception) -> tuple[str, str]:
    """Why something failed, as a sentence, and the traceback where it is a bug, else no text."""
    name, message = type(error).__name__, message_of(error)
    if isinstance(error, MemoryError) or name == "ResourceExhaustedError":
        return NO_MEMORY, ""
    without_gradient = re.search(r"No gradient defined for operation.*?\(op type: (\w+)\)", message)
    if without_gradient:
        return NO_GRADIENT.format(without_gradient[1]), ""
    # A check of a value that was given, and not an operation on arrays that do not fit.
    frames = traceback.extract_tb(error.__traceback__)
    is_raised = bool(frames) and (frames[-1].line or "").startswith("raise ")
    if isinstance(error, ValueError) and (is_raised or "Expected" in str(error)):
        return as_reason(message), ""
    if isinstance(error, OSError):
        return message, ""
    if is_tensorflow_error(error):
        return NOT_COMPUTED.format(f"{name}: {message}"), ""
    named = f"{name}: {message}" if message else name
    return UNEXPECTED.format(named), "".join(traceback.format_exception(error))


def as_reason(message: str) -> str:
    """An error's "Expected A. Received: B" as a sentence for readers who called no function."""
    parts = re.fullmatch(r"Expected (.+?)\.? Received:? (.+?)\.?", message.strip(), re.DOTALL)
    return f"It needs {parts[1]}, but received {parts[2]}." if parts else message


def message_of(error: BaseException) -> str:
    """The message of an error on one line, cut where it would be too long for a report."""
    text = error_message(error)
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]} ..."


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
