"""The report: one self-contained page."""

import sys
from types import ModuleType
from typing import NoReturn


class _Package(ModuleType):
    """This package, whose name people call for a report."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raises a `TypeError` that names the function."""
        raise TypeError(
            "vit_tf.analysis.report is a package. Did you mean "
            "analysis.make_report(models, images)?"
        )


sys.modules[__name__].__class__ = _Package
