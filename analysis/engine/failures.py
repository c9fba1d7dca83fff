"""What fails does not end a report: words for its reader, and tracebacks of bugs for the log."""

import linecache
import logging
import re
import traceback
from types import TracebackType
from typing import Any, cast

from vit_tf.common.names import without_password

log = logging.getLogger(__name__)
MAX_LETTERS = 400  # of an error's message in a report
NO_MEMORY = (
    "It needs more memory than there is. Fewer or smaller images, or fewer layers, need less."
)
NO_GRADIENT = "TensorFlow has no gradient of the operation {}, which the model uses."
NOT_COMPUTED = "TensorFlow cannot compute it for this model and these images ({})."
UNEXPECTED = "It failed with an unexpected error; the log has its traceback ({})."
# Keras puts the message of an error within a layer in bold, between the layer and its arguments.
IN_KERAS_LAYER = re.compile(
    r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m", re.DOTALL
)


def explain(error: Exception, what: str) -> str:
    """Why something could not be made, as a sentence; the traceback of a bug goes to the log."""
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
    if isinstance(error, ValueError) and _is_raised_on_purpose(error):
        return as_reason(message), ""
    if isinstance(error, OSError):
        return message, ""
    if _is_of_tensorflow(error):
        return NOT_COMPUTED.format(f"{name}: {message}"), ""
    named = f"{name}: {message}" if message else name
    return UNEXPECTED.format(named), "".join(traceback.format_exception(error))


def as_reason(message: str) -> str:
    """An error's "Expected A. Received: B" as a sentence for readers who called no function."""
    parts = re.fullmatch(r"Expected (.+?)\.? Received:? (.+?)\.?", message, re.DOTALL)
    return f"It needs {parts[1]}, but received {parts[2]}." if parts else message


def message_of(error: BaseException) -> str:
    """The message of an error on one line, without the graph that TensorFlow adds to it."""
    text = str(error)
    if _is_of_tensorflow(error):
        text = cast(Any, error).message
        asserted = re.search(r"assertion failed: \[(.*?)\]\s*(\[\[|$)", text, re.DOTALL)
        text = asserted[1] if asserted else text.split("available>")[-1].split("[[")[0]
        text = re.sub(r"\{\{\w+ \S*\}\}", "", text)
    if in_layer := IN_KERAS_LAYER.search(text):
        text = in_layer[1]
    if text.startswith("in user code:"):
        text = text.rstrip().splitlines()[-1]
    text = without_password(" ".join(text.split()))
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]} ..."


def _is_of_tensorflow(error: BaseException) -> bool:
    """Whether it is an error of an operation, found without importing TensorFlow."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "OpError" in kinds and hasattr(error, "message")


def _is_raised_on_purpose(error: ValueError) -> bool:
    """Whether it is about a value given, and not an operation on arrays that do not fit."""
    if "Expected" in str(error):
        return True
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return line.lstrip().startswith("raise ")
