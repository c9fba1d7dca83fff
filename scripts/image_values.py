"""Which images a model expects: as told on the command line, or as found out."""

from vit_tf.preprocessing import Preprocessing, interval


def add_values(add):
    """Adds the options that tell which values a model expects of its images."""
    add(
        "--range",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="values that the model expects for black and white, such as 0 255; found out if not "
        "given, and -1 1 where that is not possible",
    )
    for name, example in (("mean", "0.485 0.456 0.406"), ("std", "0.229 0.224 0.225")):
        add(
            f"--{name}",
            nargs=3,
            type=float,
            metavar=tuple("RGB"),
            help=f"the same as {name} of each channel, for values in [0, 1], such as {example}",
        )


def given_values(options, size=None):
    """The `Preprocessing` that the options tell, of images of a size, or None."""
    if (options.mean is None) != (options.std is None) or (options.mean and options.range):
        raise ValueError(
            "Expected --mean and --std together, or --range alone. "
            f"Received: --mean {options.mean} --std {options.std} --range {options.range}"
        )
    if options.range:
        return Preprocessing.from_range(size, *options.range)
    return Preprocessing(size, options.mean, options.std) if options.mean else None


def expected_images(options, model, overrule=True):
    """The `Preprocessing` of a model's images, and where it is known from, in words.

    Args:
        options: of the command line, with those of `add_values`.
        model: a Keras model, or the features of a SavedModel.
        overrule: whether the options count for a model that tells by itself too.
    """
    # Only here, since it imports Keras.
    from vit_tf.models.input_range import find_preprocessing, input_size

    is_keras = hasattr(model, "count_params")
    if is_keras:
        found, why = find_preprocessing(model)
    else:
        found, why = getattr(model, "preprocessing", None), "told in its folder"
    shape = [None] * 4 if is_keras else model.input_shape or [None] * 4
    size = found.size if found else input_size(model) if is_keras else tuple(shape[1:3])
    size = None if size is None or None in size else size
    given = given_values(options, size)
    if given and (overrule or found is None or not why.startswith("told")):
        return given, "told by the options"
    if found:
        return found, why
    return Preprocessing(size), f"assumed: {why if is_keras else 'not told'}"


def values_of(preprocessing, why):
    """Which values images have and where that is known from, as text."""
    order = "" if preprocessing.channel_order == "rgb" else ", blue first"
    return f"values in {interval(*preprocessing.value_range)}{order} ({why})"
