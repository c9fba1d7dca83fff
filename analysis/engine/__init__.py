"""The engine: runs any statistic over data, in one pass, on any number of devices.

What a measurement of one's own is made of: a `Statistic`, `one_pass`, and features derived from
others.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
