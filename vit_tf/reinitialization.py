"""A randomly initialized model with the configuration of another."""

import random

import keras


def reinitialize(model, seed=0):
    """A randomly initialized model with the same configuration, such as an untrained baseline.

    The global random state is left as it was. A layer of another package whose initializer has its
    own seed keeps that seed.

    Args:
        model: a built `keras.Model` that can be rebuilt from its configuration.
        seed: seed of the weights; equal seeds give equal weights.

    Returns:
        A model of the same class, built and not compiled.

    Raises:
        ValueError: if `model` is not a `keras.Model` or is not built.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"Expected model to be a built keras.Model. Received: {model!r}")
    state = random.getstate()
    random.seed(seed)  # from which Keras draws the seed of every initializer
    try:
        untrained = type(model).from_config(model.get_config())
        if not untrained.built:
            untrained.build_from_config(model.get_build_config())
    finally:
        random.setstate(state)
    return untrained
