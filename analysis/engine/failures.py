"""What fails does not end a report: words for its reader, and tracebacks of bugs for the log."""

import logging
import re
import traceback

from vit_tf.common.errors import error_message, is_tensorflow_error

log = logging.getLogger(__name__)
MAX_LETTERS = 400  # of an error's message in a report
NO_MEMORY = (
    "It needs more memory than there is. Fewer or smaller images, or fewer layers, need less."
)
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
    if isinstance(error, ValueError) and _is_raised_on_purpose(error):
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


def _is_raised_on_purpose(error: ValueError) -> bool:
    """Whether it is about a value given, and not an operation on arrays that do not fit."""
    if "Expected" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].line or "").startswith("raise ")
