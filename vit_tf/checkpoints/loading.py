"""A model with the weights of a public checkpoint."""

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

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

# An image processor's size is at most so many times that of the weights: its file could say any.
LARGEST_RESIZE = 8
# The first family that recognises a file reads it: some have all names of tensors of others, and
# come before them.
FAMILIES = timm.FAMILIES + open_clip.FAMILIES + google.FAMILIES
# Models that no class here computes, though their files have names of these families: what they do
# otherwise, and a pattern of their tensors' names, sorted and with a line for each.
OTHERS = {
    "an AIMv2": (
        module_only_message("aimv2_..."),
        r"patchifier\.norm\.|^patch_embed\.norm\.weight$",
    ),
    "an EVA": (
        module_only_message("eva02_..."),
        r"(?s)\A(?=.*^pos_embed$)(?=.*^blocks\.0\.attn\.(q_bias|q_proj\.weight)$)",
    ),
    "a CaiT": (module_only_message("cait_..."), r"^(module\.)?blocks_token_only"),
    "a Hiera": (module_only_message("hiera_..."), r"^(model\.)?blocks\.\d+\.proj\.weight$"),
    "a Perception Encoder": (
        module_only_message("vit_pe_..."),
        r"(?s)\A(?!.*^(fc_)?norm\.weight$).*^norm_pre\."
        r"|\A(?=.*^norm_pre\.weight$)(?=.*^attn_pool\.latent$)"
        r"|^visual\.attn_pool\..*^visual\.transformer\.resblocks\.",
    ),
}

# The same of released models whose tensors have the names and shapes of others, by a part of the
# name of their file.
NAMED_OTHERS = {
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
    path = os.path.expanduser(os.fspath(source))
    if path.endswith(".keras"):
        return load_model(path)
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return load_features(path)
    if os.path.isfile(os.path.join(path, TRAINED)):
        return load_model(path)
    return load_pretrained(path if os.path.exists(path) else os.fspath(source))


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
    bundled = path_or_name in released.bundled_models()
    if bundled or os.fspath(path_or_name).endswith(".keras"):
        return _open_saved(path_or_name, options, positions)
    path, public = released.fetch(os.fspath(path_or_name))
    if public is not None:
        options = dataclasses.replace(
            options,
            known_name=True,
            resolution=public.resolution,
            activation=activation or public.activation,
            config=configs.config_from_name(public),
        )
    with open_folder(path) if os.path.isdir(path) else open_archive(path) as archive:
        with _located(archive):
            conversion = _convert(archive, options)
        mapping = conversion.mapping
        # Before a model is built, so that a file cannot ask for more memory than it has data.
        check(archive, mapping)
        model = _build(conversion, options, public)
        fill(weights_by_name(model), archive, mapping)
    if mapping.identity_head:
        for name in ("head", "distillation_head"):
            if layer := getattr(model, name, None):
                layer.kernel.assign(np.eye(layer.units))
    shape = options.image_shape or conversion.processor_size
    if shape and shape != tuple(model.image_shape)[: len(shape)]:
        if not options.image_shape:
            # A folder is opened at the size of its image processor.
            height, width = model.image_shape[:2]
            at_most(max(shape), LARGEST_RESIZE * max(height, width), "pixels a side")
            warnings.warn(
                f"{path} is opened at the {shape[0]} x {shape[1]} pixels of its image processor, "
                f"not at the {height} x {width} of its weights. To keep the size of the weights, "
                f"pass image_shape=({height}, {width}).",
                stacklevel=2,
            )
        method = positions or conversion.position_method or conversion.interpolation
        model = at_resolution(model, shape, method=method)
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
    # Without a head there is nothing to leave out, and a layer of tanh before it goes with it.
    removed_head = model.head if options.num_classes == 0 else None
    classes = options.num_classes or None
    if removed_head is not None:
        classes = (getattr(model, "pre_logits", None) or removed_head).kernel.shape[0]
    other_head = removed_head is not None or classes not in (None, model.num_classes)
    shape = options.image_shape or model.image_shape
    if other_head or tuple(shape) != tuple(model.image_shape)[: len(shape)]:
        classes = classes if other_head else None
        model = at_resolution(model, shape, classes, positions or "bilinear")
        if removed_head is not None:
            model.head.kernel.assign(np.eye(model.head.units))
    if options.preprocessing is not None:
        model.preprocessing = options.preprocessing
    return name_after(model, name)


@contextlib.contextmanager
def _located(archive: CheckpointFile) -> Iterator[None]:
    """Adds the path to errors of a conversion, whatever a file or its configuration provokes."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} (in {archive.path!r})") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"Expected the configuration and the tensors to fit each other in {archive.path!r}. "
            f"Received: {type(error).__name__}: {str(error)[:200]}"
        ) from error


def _convert(archive: CheckpointFile, options: LoadOptions) -> Conversion:
    """The `Conversion` of an open file or folder; one of timm follows its configuration."""
    folder = archive if isinstance(archive, Folder) else None
    if folder and ("model_type" in folder.config or "pretrained_cfg" not in folder.config):
        # Its configuration has the form of GELU.
        options.refuse("a folder with its configuration", "activation")
        module = open_clip if folder.file == OPEN_CLIP else hugging_face_models
        return module.convert_folder(folder, options)
    # An architecture that is none of ours raises.
    config = configs.read_timm_config(folder.config) if folder else options.config
    names = "\n".join(sorted(archive.tensors))
    other = next((m for m, (_, p) in OTHERS.items() if re.search(p, names, re.MULTILINE)), None)
    if other is not None:
        raise ValueError(f"The checkpoint is of {other}, which {OTHERS[other][0]}")
    by_name = next((p for p in NAMED_OTHERS if p in os.path.basename(archive.path)), None)
    if by_name is not None and folder is None:
        raise ValueError(f"The checkpoint has the name of a model that {NAMED_OTHERS[by_name]}")
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
        # The activation of the training, which follows from the name of a CLIP, unless the
        # configuration has it as an argument.
        activation = config["activation"] if config["activation_is_explicit"] else None
        if "_clip_" in str(folder.config["architecture"]) and activation is None:
            tag = folder.config["pretrained_cfg"].get("tag")
            activation = released.timm_activation(f"{folder.config['architecture']}.{tag}")
    options = dataclasses.replace(
        options, config=config, activation=activation, container=archive.container
    )
    conversion = family.convert(archive.tensors, options)
    if folder is None or options.preprocessing is not None:
        return conversion
    channels = conversion.mapping.arguments["image_shape"][2]
    images = configs.timm_preprocessing(folder.config, channels)
    position_method = conversion.position_method or conversion.interpolation
    return dataclasses.replace(conversion, position_method=position_method, **images)


def _build(
    conversion: Conversion, options: LoadOptions, public: released.ReleasedCheckpoint | None
) -> VisionModel:
    """The model of a conversion, with the preprocessing of its name or, without one, its family."""
    height, width, channels = conversion.mapping.arguments["image_shape"]
    requested_shape = options.image_shape or ((public.resolution,) * 2 if public else None)
    if conversion.any_size and requested_shape:
        height, width = requested_shape[:2]
    images = public or conversion
    mean, std = images.values["mean"], images.values["std"]
    if channels != len(mean):
        mean, std = ((0.5,) * channels,) * 2
    preprocessing = Preprocessing(
        (height, width),
        mean,
        std,
        images.interpolation,
        crop=images.crop,
        crop_rounding="even" if public else conversion.crop_rounding,
        aspect=images.aspect,
    )
    arguments = conversion.mapping.arguments | {
        "image_shape": (height, width, channels),
        "preprocessing": preprocessing,
        "class_names": conversion.class_names,
    }
    return getattr(models, conversion.model)(**arguments)
