"""A model as it was before any training: the same configuration, new weights."""

import random

import keras


def fresh_copy(model, seed=0):
    """A model of the same configuration with weights drawn anew, such as a random baseline.

    The global random state is left as it was. A layer of another package whose initializer was
    given a seed of its own keeps it.

    Args:
        model: a built `keras.Model` that can be made from its configuration.
        seed: of the weights: equal seeds give equal weights, so that several copies of one model
            need seeds of their own.

    Returns:
        A model of the same class, built and not compiled.

    Raises:
        ValueError: if `model` is no `keras.Model` or is not built.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"Expected model to be a built keras.Model. Received: {model!r}")
    state = random.getstate()
    random.seed(seed)  # from which Keras draws the seed of every initializer
    try:
        fresh = type(model).from_config(model.get_config())
        if not fresh.built:
            fresh.build_from_config(model.get_build_config())
    finally:
        random.setstate(state)
    return fresh
