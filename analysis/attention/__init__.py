"""Where do attention heads look?"""

import sys
from types import ModuleType

from .image_attention import attention as _attention


class _CallablePackage(ModuleType):
    """This package, which is the measurement `attention` too: `analysis.attention(model, photo)`.

    Python binds a package to its name as soon as one of its modules is imported, so that the
    function of the same name would be found or hidden depending on what was called before.
    """

    __call__ = staticmethod(_attention)


_package = sys.modules[__name__]
_package.__class__ = _CallablePackage
_package.__doc__, _package.__wrapped__ = _attention.__doc__, _attention
for _attribute in ("kind", "declaration", "statistic"):
    setattr(_package, _attribute, getattr(_attention, _attribute))
