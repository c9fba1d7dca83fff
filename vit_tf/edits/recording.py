"""How layers record their taps, and continue with edited values."""

import contextlib
import contextvars

_IN_FORCE = contextvars.ContextVar("edits in force", default=None)


@contextlib.contextmanager
def in_force(edits):
    """Within it, layers of this package apply edits: dict from tap to function."""
    before = _IN_FORCE.set(edits)
    try:
        yield
    finally:
        _IN_FORCE.reset(before)


def edits_in_force():
    """The edits that are to be applied, dict from tap to function; empty where there are none."""
    return _IN_FORCE.get() or {}


class Taps:
    """The intermediates of a layer, recorded as they are computed: `x = taps("norm", f(x))`.

    What is computed next is made of what the call returns, which is another value where an edit is
    in force.

    Args:
        site: the first part of the taps' names, which the layer leaves out, such as `"block03"`.

    Attributes:
        values: dict from name to tensor.
    """

    def __init__(self, site=None):
        self._prefix, self.values = f"{site}/" if site else "", {}

    def __call__(self, name, value):
        edit = edits_in_force().get(self._prefix + name)
        self.values[name] = value = value if edit is None else edit(value)
        return value
