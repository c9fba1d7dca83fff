"""The engine: runs any statistic over data, in one pass, on any number of devices.

It contains the parts of your own measurement: `Statistic`, `one_pass`, and functions that derive
features from other features.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
