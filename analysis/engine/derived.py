"""Features computed from others, which are called once for all of them."""

from .features import taps_of
from .results import model_name


class Derived:
    """Features computed from the taps of other features.

    `one_pass` calls those others once, whatever is derived from them.

    Args:
        features: callable from images to `{tap: tensor}`.
        compute: function of that dict to another.
        token_grid: `TokenGrid` of the tokens, or None.
    """

    def __init__(self, features, compute, token_grid):
        self.name = model_name(features)
        self.token_grid = token_grid
        self.features = features
        self.compute = compute

    def __call__(self, images):
        return self.compute(self.features(images))


def choose(features, names):
    """Some of the taps of `features`, in the order of `names`.

    Statistics in one pass that look at different taps of one model share its forward pass so.

    Args:
        features: callable from images to `{tap: tensor}`.
        names: names of taps.

    Returns:
        Callable from images to `{tap: tensor}`, with the name and `token_grid` of the features.

    Raises:
        ValueError: when called, for names that the features do not have.
    """
    names = tuple(names)
    grid = getattr(features, "token_grid", None)
    return Derived(features, lambda taps: select(taps, names), grid)


def select(taps, names):
    """The entries of a dict of taps that are named, in the order of the names.

    Raises:
        ValueError: for a name that is not there; those that are, are listed.
    """
    for name in names:
        if name not in taps:
            there = ", ".join(list(taps)[:8]) + (", ..." if len(taps) > 8 else "")
            raise ValueError(f"Expected a tap {name!r}. Received: {there}")
    return {name: taps[name] for name in names}


class Calls:
    """The taps of each features callable for one batch, computed when first asked for."""

    def __init__(self, images):
        self._images = images
        self._made = {}

    def __call__(self, features):
        key = id(features)
        if key not in self._made:
            derived = isinstance(features, Derived)
            self._made[key] = (
                features.compute(self(features.features))
                if derived
                else taps_of(features, self._images)
            )
        return self._made[key]
