"""The error for an argument that a function does not have, with near matches."""

from collections.abc import Iterable

from vit_tf.common.names import near_names


def argument_error(
    function_name: str, given: Iterable[str], known: Iterable[str]
) -> TypeError | None:
    """The error for the first argument given that a function does not have, but nearly."""
    known = list(known)
    for name in given:
        near = [] if name in known else near_names(name, known)
        if near:
            hint = f"Did you mean {' or '.join(near)}?"
            return TypeError(f"{function_name}() has no argument {name!r}. {hint}")
    return None
