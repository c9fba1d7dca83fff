"""A model with the weights of a public checkpoint."""

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from vit_tf import models
from vit_tf.checkpoints import configs, google, hugging_face_models, open_clip, released, timm
from vit_tf.checkpoints.archives import (
    OPEN_CLIP,
    CheckpointFile,
    Folder,
    open_archive,
    open_folder,
)
from vit_tf.checkpoints.saving import TRAINED, Features, load_features, load_model
from vit_tf.checkpoints.weight_maps import (
    Conversion,
    LoadOptions,
    at_most,
    check,
    fill,
    module_only_message,
)
from vit_tf.common.names import as_sizes, format_list, lookup
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.source import check_numbers
from vit_tf.models.model import VisionModel, name_after, weights_by_name
from vit_tf.models.resolution import METHODS, at_resolution
from vit_tf.models.transformer import ACTIVATIONS, POOLINGS
from vit_tf.torch_models.timm_names import PREFIX, open_timm

if TYPE_CHECKING:
    from torch.nn import Module

# An image processor's size is at most so many times that of the weights: a limit, since the file
# could demand any size.
LARGEST_RESIZE = 8
# The first family that recognises a file reads it: some have all names of tensors of others, and
# come before them.
FAMILIES = timm.FAMILIES + open_clip.FAMILIES + google.FAMILIES


class Unsupported(NamedTuple):
    """A model that no class here computes, though its tensors have the names of a family here."""

    advice: str  # what to do instead
    pattern: str  # matched against the sorted tensor names, one per line


UNSUPPORTED = {
    "an AIMv2": Unsupported(
        module_only_message("aimv2_..."),
        r"patchifier\.norm\.|^patch_embed\.norm\.weight$",
    ),
    "an EVA": Unsupported(
        module_only_message("eva02_..."),
        r"(?s)\A(?=.*^pos_embed$)(?=.*^blocks\.0\.attn\.(q_bias|q_proj\.weight)$)",
    ),
    "a CaiT": Unsupported(module_only_message("cait_..."), r"^(module\.)?blocks_token_only"),
    "a Hiera": Unsupported(
        module_only_message("hiera_..."), r"^(model\.)?blocks\.\d+\.proj\.weight$"
    ),
    "a Perception Encoder": Unsupported(
        module_only_message("vit_pe_..."),
        r"(?s)\A(?!.*^(fc_)?norm\.weight$).*^norm_pre\."
        r"|\A(?=.*^norm_pre\.weight$)(?=.*^attn_pool\.latent$)"
        r"|^visual\.attn_pool\..*^visual\.transformer\.resblocks\.",
    ),
}

# Released models that only their file name distinguishes: a part of this name, and the advice.
UNSUPPORTED_NAMES = {
    "_rpn_": module_only_message("vit_..._rpn_..."),
    "_lingbot": module_only_message("vit_base_patch16_lingbot"),
}


def load(source: str | os.PathLike) -> "Features | Module":
    """Opens a Keras model, submodel or SavedModel by path, or a pretrained model by name.

    Args:
        source: path or name of a model. A valid path is a `.keras` file, the folder of a
            SavedModel, the folder of a training run (its `model.keras` is opened), or a checkpoint
            that `load_pretrained` can open. A valid name is in `list_pretrained`, or has the form
            `timm:NAME`, for a PyTorch module of timm.

    Raises:
        ValueError: if the path does not exist or the name is unknown (the message lists near
            matches). Other errors are as for `load_model`, `load_features` and `load_pretrained`.

    Examples:
        model = vit_tf.load("vit-cls-cifar10")
    """
    if os.fspath(source).startswith(PREFIX):
        return open_timm(os.fspath(source))
    path = os.path.expanduser(source)
    if path.endswith(".keras"):
        return load_model(path)
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return load_features(path)
    if os.path.isfile(os.path.join(path, TRAINED)):
        return load_model(path)
    return load_pretrained(path)


def load_pretrained(
    path_or_name: str | os.PathLike,
    num_classes: int | None = None,
    image_shape: Iterable[int] | None = None,
    pooling: str | None = None,
    num_heads: int | None = None,
    positions: str | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
) -> keras.Model:
    """Loads a pretrained model from a public checkpoint, in the format that its authors released.

    Small bundled models open by their names: `list_pretrained("*cifar10")`. A `.keras` file opens
    as with `vit_tf.load_model`. The other formats are:

    * Google's `.npz` files: ViT (of vision_transformer and big_vision), hybrids, BiT, Mixer and
      SigLIP
    * `.safetensors` files or PyTorch files with the tensor names of timm: ViT (supervised, DeiT,
      DeiT-3, DINO, DINOv2, DINOv3, MAE, MoCo-v3), BEiT, BiT, Mixer, CLIP and SigLIP; also CLIP with
      the tensor names of OpenAI
    * folders of open_clip with `open_clip_config.json`
    * folders of timm, where `architecture` and `model_args` define the model
    * folders of Hugging Face: ViT, DeiT, I-JEPA, MAE, DINOv2, DINOv3, CLIP, MetaCLIP 2, SigLIP,
      BEiT and BiT. They contain `config.json` and the weights, as `model.safetensors` or
      `pytorch_model.bin`, in one file or in shards

    The architecture of a file is inferred from the names and shapes of its tensors. Every tensor of
    the file is loaded, except for tensors whose names belong to a text encoder, a decoder, the
    state of an optimizer, or a head that is replaced. (A tanh layer before a replaced head is not
    loaded either.) Every weight of the model is loaded, unless it belongs to a new head.

    A known name determines the `preprocessing` of the model. For a folder, the preprocessing comes
    from Hugging Face's `preprocessor_config.json`, or from the configuration of timm or open_clip.
    Otherwise, the family of the model determines it, with two exceptions:

    * If a folder of a ViT, I-JEPA, DINOv3, BEiT or BiT of Hugging Face has no
      `preprocessor_config.json`, the argument `preprocessing` is required.
    * A ViT file with timm's tensor names does not state how pixel values were scaled in training.
      If the ViT has a head, a scale of [-1, 1] is assumed. For a DeiT without distillation token,
      pass `preprocessing`, because it was trained with the mean and standard deviation of ImageNet.

    A folder of DINOv2 or DINOv3 opens at the image size of its image processor, with a warning if
    the weights are for another size.

    Args:
        path_or_name: path of a file or folder; a name in `list_pretrained`, whose file is
            downloaded once; or `"hf://owner/name"` for a folder on the Hugging Face hub.
        num_classes: number of logits. If the head of the file has another number of logits, the
            model gets a new head, which is initialized with zeros. None keeps the head of the file.
            If the file has no head, the logits are the pooled token (a CLIP model then has no
            logits). 0 removes the head, as in timm.
        image_shape: size of the images in pixels, (height, width) or (height, width, channels).
            Position embeddings are resampled to this size; the argument `positions` selects the
            method. None keeps the image size that the file was made for. (The file of a BiT
            specifies no image size. The size then follows from the name of the checkpoint, or is
            224 if the name does not determine it.) A file holds the number of tokens but not the
            shape of their grid. The file is assumed to have the grid of `image_shape` if the
            numbers of tokens agree, and a square grid otherwise.
        pooling: `"cls"` or `"gap"`, for a ViT or BEiT. None keeps the pooling of the file. `"gap"`
            removes the class token of a ViT, with two exceptions: if the file has registers or
            already uses `"gap"`, the model has all tokens of the file.
        num_heads: number of attention heads. This argument is required if neither the file nor the
            size of the model determines the number. For example, a model of the size of ViT-S has
            12 heads in MoCo-v3 but 6 heads in other checkpoints. For a size that was never
            published, the number is not known either.
        positions: method that resamples position embeddings, as `method` of `vit_tf.at_resolution`.
            None selects the method by the source of the file:

            * Google, BEiT with timm's names, a `.keras` file, a bundled model: `"bilinear"`
            * Hugging Face, except DINOv2 with registers: `"torch"`
            * DINOv2 of its authors, without registers: `"dino"`
            * all other files: `"bicubic"`, as in timm

            To compute the same as the code of the authors, pass `"dino"` for DINO (as in Walmer et
            al. 2023) and `"bicubic"` for BEiT.
        preprocessing: `vit_tf.Preprocessing` that replaces the preprocessing specified by the file,
            its name or its family.
        activation: form of the GELU, for two kinds of files whose tensors do not determine it. For
            CLIP, it is `"quick_gelu"` or `"gelu"`. For a ViT with timm's tensor names and no class
            token, it is `"gelu"` or `"gelu_tanh"`. None selects the form that a known name or the
            configuration in a folder specifies. For a CLIP file with the sizes of OpenAI's own
            models, None selects `"quick_gelu"`. Any other file of these two kinds requires this
            argument.

    Raises:
        ValueError: if the name is unknown, or if the file cannot be downloaded, is corrupt or
            belongs to an unknown family. It is also raised if the tensors of the file do not match
            the weights of the model (the message lists the mismatches).
    """
    if image_shape is not None:
        form = "(height, width) or (height, width, channels)"
        image_shape = as_sizes("image_shape", image_shape, form, (2, 3))
    options = LoadOptions(
        num_classes,
        image_shape,
        pooling,
        num_heads,
        preprocessing=preprocessing,
        activation=activation,
    )
    if num_classes is not None:
        check_numbers(0, num_classes=num_classes)
    if num_heads is not None:
        check_numbers(1, num_heads=num_heads)
    # Unknown words raise before a file is fetched.
    for name, word, known in (
        ("pooling", pooling, POOLINGS),
        ("positions", positions, METHODS),
        ("activation", activation, ACTIVATIONS),
    ):
        if word is not None:
            lookup(name, word, known)
    path_or_name = os.path.expanduser(os.fspath(path_or_name))
    if path_or_name in released.bundled_models() or path_or_name.endswith(".keras"):
        return _open_saved(path_or_name, options, positions)
    path, public = released.fetch(path_or_name)
    if public is not None:
        options = dataclasses.replace(
            options,
            known_name=True,
            resolution=public.resolution,
            activation=activation or public.activation,
            config=configs.config_from_name(public),
        )
    with open_folder(path) if os.path.isdir(path) else open_archive(path) as archive:
        with _errors_with_path(archive.path):
            conversion = _convert(archive, options)
        mapping = conversion.mapping
        # Before a model is built, so that a file cannot ask for more memory than it has data.
        check(archive, mapping)
        model = _build(conversion, options, public)
        fill(weights_by_name(model), archive, mapping)
    if mapping.identity_head:
        # The logits are the pooled token if the file has no head, or if the head is removed.
        for name in ("head", "distillation_head"):
            if layer := getattr(model, name, None):
                layer.kernel.assign(np.eye(layer.units))
    model = _resize(model, path, conversion, options.image_shape, positions)
    if preprocessing is not None:
        model.preprocessing = preprocessing
    return name_after(model, path_or_name)


def _open_saved(
    name: str | os.PathLike, options: LoadOptions, positions: str | None
) -> keras.Model:
    """A bundled model or one of a `.keras` file, as `load_pretrained` returns it."""
    options.refuse("the bundled models", "pooling", "num_heads", "activation")
    model = load_model(name)
    if not isinstance(model, VisionModel):
        other = f"a {type(model).__name__}, which is not a model of this package"
        options.refuse(other, "num_classes", "image_shape", "preprocessing")
        return model
    new_classes = _new_num_classes(model, options)
    shape = options.image_shape or model.image_shape
    if new_classes is not None or tuple(shape) != tuple(model.image_shape)[: len(shape)]:
        model = at_resolution(model, shape, new_classes, positions or "bilinear")
        if new_classes is not None and options.num_classes == 0:
            model.head.kernel.assign(np.eye(new_classes))
    if options.preprocessing is not None:
        model.preprocessing = options.preprocessing
    return name_after(model, name)


def _new_num_classes(model: VisionModel, options: LoadOptions) -> int | None:
    """The number of logits of a new head; None if the model keeps its head or stays without.

    A head that is removed is replaced by one that returns its input, the pooled token. A tanh layer
    before the head is removed with it.
    """
    if options.num_classes == 0:
        first_layer = getattr(model, "pre_logits", None) or model.head
        return None if model.head is None else first_layer.kernel.shape[0]
    return None if options.num_classes == model.num_classes else options.num_classes


@contextlib.contextmanager
def _errors_with_path(path: str) -> Iterator[None]:
    """Turns errors that a file or its configuration causes into ValueErrors with the path."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} (in {path!r})") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"Expected the configuration and the tensors to fit each other in {path!r}. "
            f"Received: {type(error).__name__}: {str(error)[:200]}"
        ) from error


def _convert(archive: CheckpointFile, options: LoadOptions) -> Conversion:
    """The `Conversion` of an open file or folder; a timm folder follows its configuration."""
    folder = archive if isinstance(archive, Folder) else None
    is_timm_folder = (
        folder is not None
        and "pretrained_cfg" in folder.config
        and "model_type" not in folder.config
    )
    if folder and not is_timm_folder:
        # Its configuration has the form of GELU.
        options.refuse("a folder with its configuration", "activation")
        module = open_clip if folder.file == OPEN_CLIP else hugging_face_models
        return module.convert_folder(folder, options)
    # Raises for an unknown architecture.
    config = configs.read_timm_config(folder.config) if folder else options.config
    _refuse_unsupported(archive)
    family = next((family for family in FAMILIES if family.recognise(archive.tensors)), None)
    if family is None:
        names = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        raise ValueError(
            f"The tensors are not of a supported family ({names}). They are: "
            f"{format_list(sorted(archive.tensors))}"
        )
    if not family.accepts_activation:
        options.refuse(family.name, "activation")

    activation = options.activation
    if folder and activation is None:
        activation = _folder_activation(folder, config)
    options = dataclasses.replace(
        options, config=config, activation=activation, container=archive.container
    )
    conversion = family.convert(archive.tensors, options)
    if folder is None or options.preprocessing is not None:
        return conversion
    channels = conversion.mapping.arguments["image_shape"][2]
    images = configs.timm_preprocessing(folder.config, channels)
    # The interpolation of the configuration is that of images only: positions keep the family's.
    position_method = conversion.position_method or conversion.interpolation
    return dataclasses.replace(conversion, position_method=position_method, **images)


def _refuse_unsupported(archive: CheckpointFile) -> None:
    """Raises a ValueError for a model that no class here computes."""
    names = "\n".join(sorted(archive.tensors))
    for model, (advice, pattern) in UNSUPPORTED.items():
        if re.search(pattern, names, re.MULTILINE):
            raise ValueError(f"The checkpoint is of {model}, which {advice}")
    for part, advice in UNSUPPORTED_NAMES.items():
        if part in os.path.basename(archive.path) and not isinstance(archive, Folder):
            raise ValueError(f"The checkpoint has the name of a model that {advice}")


def _folder_activation(folder: Folder, config: dict) -> str | None:
    """The form of GELU in a timm folder: that of its arguments, else, for a CLIP, of its name."""
    if config["activation_is_explicit"]:
        return config["activation"]
    architecture = str(folder.config["architecture"])
    if "_clip_" not in architecture:
        return None
    tag = folder.config["pretrained_cfg"].get("tag")
    return released.timm_activation(f"{architecture}.{tag}")


def _build(
    conversion: Conversion, options: LoadOptions, public: released.ReleasedCheckpoint | None
) -> VisionModel:
    """The model of a conversion, whose preprocessing is that of its known name if it has one.

    Otherwise the preprocessing is that of the folder's configuration or of the family.
    """
    height, width, channels = conversion.mapping.arguments["image_shape"]
    requested_shape = options.image_shape or ((public.resolution,) * 2 if public else None)
    if conversion.any_size and requested_shape:
        height, width = requested_shape[:2]
    preprocessing_source = public or conversion
    mean, std = (preprocessing_source.values[name] for name in ("mean", "std"))
    if channels != len(mean):
        # Statistics of RGB do not apply to other channels: values are scaled to [-1, 1].
        mean = std = (0.5,) * channels
    preprocessing = Preprocessing(
        (height, width),
        mean,
        std,
        preprocessing_source.interpolation,
        crop=preprocessing_source.crop,
        crop_rounding="even" if public else conversion.crop_rounding,
        aspect=preprocessing_source.aspect,
    )
    arguments = conversion.mapping.arguments | {
        "image_shape": (height, width, channels),
        "preprocessing": preprocessing,
        "class_names": conversion.class_names,
    }
    return getattr(models, conversion.model)(**arguments)


def _resize(
    model: VisionModel,
    path: str,
    conversion: Conversion,
    image_shape: tuple | None,
    positions: str | None,
) -> VisionModel:
    """The model at a requested image size, else at the size of the folder's image processor."""
    shape = image_shape or conversion.processor_size
    if not shape or shape == tuple(model.image_shape)[: len(shape)]:
        return model
    if not image_shape:
        height, width = model.image_shape[:2]
        with _errors_with_path(path):
            at_most(max(shape), LARGEST_RESIZE * max(height, width), "pixels a side")
        warnings.warn(
            f"{path} is opened at the {shape[0]} x {shape[1]} pixels of its image processor, "
            f"not at the {height} x {width} of its weights. To keep the size of the weights, "
            f"pass image_shape=({height}, {width}).",
            stacklevel=3,
        )
    method = positions or conversion.position_method or conversion.interpolation
    return at_resolution(model, shape, method=method)
