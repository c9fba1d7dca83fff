"""Opening the models under analysis: any Keras model, checkpoint or SavedModel."""

import hashlib
from pathlib import Path

import vit_tf
from vit_tf.analysis.study.models import ROLES, distinct, slug
from vit_tf.analysis.study.opening.opened import Opened
from vit_tf.checkpoints.released import fetch
from vit_tf.preprocessing import Preprocessing
from vit_tf.scripts import common, image_values

PARTS = ("vit", "gap", "resnet", "mixer", "-")


def open_all(options):
    """The models of files, folders and public names, and the images that all of them are shown.

    Where there are several, the options of `image_values` count for those that do not tell.

    Returns:
        List of (`Opened`, where the values of its images are known from), and a `Preprocessing`.

    Raises:
        ValueError: for what cannot be opened, is no model of RGB images, or options that do not fit
            the models.
    """
    sources = options.models
    for flag, values in (("--names", options.names), ("--roles", options.roles)):
        if values and len(values) != len(sources):
            raise ValueError(
                f"Expected {flag} to tell of each of the {len(sources)} models. "
                f"Received: {len(values)}"
            )
    if unknown := set(options.roles) - set(PARTS):
        raise ValueError(f"Expected --roles among {', '.join(PARTS)}. Received: {sorted(unknown)}")
    taken, opened, origins = set(), [], []
    for index, source in enumerate(sources):
        name = distinct(options.names[index] if options.names else own_name(source), taken)
        taken.add(slug(name))
        model = open_any(source)  # which first says what is wrong with a path
        expects, why = image_values.expected_images(options, model, overrule=len(sources) == 1)
        part = options.roles[index] if options.roles else None
        told = (tuple(options.taps or ()), options.patch_size, options.prefix)
        part = part if part in ROLES else None
        one = Opened(name, model, expects, digest(source), source, *told, part)
        shape = input_shape(one)
        if len(shape) != 4 or shape[3] not in (3, None):
            raise ValueError(
                "Expected models of images of shape (example, height, width, 3). "
                f"Received: {source} of input shape {shape}"
            )
        opened.append(one)
        origins.append(why)
    require_use(opened, options)
    size = common_size(opened, options.image_size)
    first = opened[0].expects
    # All models see the same part of an image, which is all of it where they were to see others.
    crop = first.crop if {one.expects.crop for one in opened} == {first.crop} else None
    images = Preprocessing(size, interpolation=first.interpolation, crop=crop)
    return list(zip(opened, origins, strict=True)), images


def require_use(opened, options):
    """Raises a `ValueError` for options that none of the models has use for."""
    received = f"Received: {', '.join(options.models)}"
    if options.taps and not any(model.is_foreign for model in opened):
        raise ValueError(
            "Expected --taps only for models whose layers have no names of their own in this "
            f"package. {received}"
        )
    if options.patch_size and all(getattr(model.model, "token_grid", None) for model in opened):
        raise ValueError(
            "Expected --patch-size only with a model that does not tell where its tokens lie. "
            f"{received}"
        )


def own_name(source):
    """The name of a model without the folders and the ending of its file."""
    path = Path(source)
    return path.stem if path.is_file() else path.name


def open_any(source):
    """The Keras model or SavedModel of a path, or of a public name."""
    if common.is_saved_model(source):
        return vit_tf.load_features(source)
    return common.open_model(source)


def digest(source):
    """SHA-256 of a file's content, or of the names and contents of a folder's files."""
    if not Path(source).exists():
        source, _ = fetch(source)
    root = Path(source)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            part = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(root)} {part}\n".encode())
    return total.hexdigest()


def input_shape(opened):
    """Shape (example, height, width, channel) of a model's images, None for what is free."""
    if not opened.is_keras:
        return opened.model.input_shape or ()
    if hasattr(opened.model, "image_shape") and not opened.is_foreign:
        return (None, *opened.model.image_shape)
    return tuple(opened.model.input_shape)


def common_size(opened, asked):
    """(height, width) of the images that all models are compared on.

    Raises:
        ValueError: if they take images of different sizes, or any and none is `asked` for.
    """
    sizes = {model.name: tuple(input_shape(model)[1:3]) for model in opened}
    sizes = {name: size for name, size in sizes.items() if None not in size}
    if asked:
        sizes["--image-size"] = (asked, asked)
    if not sizes:
        raise ValueError("Expected --image-size, as the models take images of any. Received none")
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{name} {height} x {width}" for name, (height, width) in sizes.items())
        raise ValueError(f"Expected models that take images of one size. Received: {each}")
    return next(iter(sizes.values()))
