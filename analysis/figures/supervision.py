"""How a model was trained: looked up for released models, else as the user says, or unknown.

The same holds for the number of images that it was trained on.
"""

import os
import re
from collections.abc import Iterable

LABELS, IMAGE_TEXT, RECONSTRUCTION = "labels", "image-text", "reconstruction"
CONTRASTIVE, SELF_DISTILLATION = "contrastive", "self-distillation"
# Keys are the values that --supervision takes; values are the words that complete "trained ...".
SUPERVISIONS = {
    LABELS: "with class labels",
    IMAGE_TEXT: "with image-text pairs",
    CONTRASTIVE: "by contrastive learning",
    SELF_DISTILLATION: "by self-distillation",
    RECONSTRUCTION: "by reconstruction of masked patches",
}
# What Walmer et al. call explicitly supervised.
EXPLICIT = (LABELS, IMAGE_TEXT)

_FINE_TUNED = r"(^|[._/-])(ft|finetuned|\w*pt22k_ft\d+k)([._/-]|$)|_ft_in\d|_ft_|ft22k|ft1k"
_BY_PAPER = {
    LABELS: "VIT AUGREG SAM BIT DISTILLED MIXER DEIT DEIT3 REGISTERS",
    IMAGE_TEXT: "OPENAI SIGLIP SIGLIP2 LAION DATACOMP DFN METACLIP",
    SELF_DISTILLATION: "DINO DINO2 DINO3",
    RECONSTRUCTION: "MAE BEIT BEIT2",
}
# Bounds of a whole word, perhaps with a version: "dino" matches in "dino" and "dinov2", not in
# "dinosaurs".
_START, _END = r"(?<![a-z])", r"(?=v?\d|[^a-z]|$)"
_RELEASED = ("timm:", "hf://", "timm/", "facebook/")  # beginnings of names of released models
# Extensions of the files that authors release.
_AUTHORS_FILES = (".pth", ".pth.tar", ".npz", ".pt")
# Patterns in a name, tried before the paper that the checkpoint cites. They cover the names of
# timm, of the hub and of the authors' files.
_BY_NAME = {
    SELF_DISTILLATION: rf"{_START}(dino|ibot){_END}",
    RECONSTRUCTION: rf"{_START}((vit_?)?mae|beit|simmim){_END}",
    CONTRASTIVE: rf"{_START}(moco|simclr){_END}|{_START}vit-[bsl]-300ep",
    IMAGE_TEXT: rf"{_START}((meta|mobile|open|m)?clipa?|siglip){_END}|^ViT-[BL]-\d+(-336px)?\.pt$",
    LABELS: rf"{_START}(augreg|deit)|{_START}(orig_)?in(1k|21k)$|^ViT-\w_\d+\.npz$|^BiT-[SML]"
    r"|\.fb_in1k",
}

# Images of the data that names of released and bundled models contain. The first match counts: a
# model that is pre-trained on the larger data and fine-tuned on the smaller has seen both.
_IMAGES_BY_NAME = {
    r"jft": 300_000_000,
    r"lvd142m": 142_000_000,
    r"in2[12]k|imagenet21k|^bit_models/BiT-M|pt22k": 14_197_122,
    r"in1k|imagenet(1k|2012)|^bit_models/BiT-S": 1_281_167,
    r"cifar10$": 50_000,
    r"tiny-imagenet$": 10_000,  # of its 20 bundled classes
}


def require_supervisions(kinds: Iterable[str]) -> None:
    """Raises a `ValueError` for an unknown kind of supervision; an empty string is allowed."""
    for kind in kinds:
        if kind and kind not in SUPERVISIONS:
            raise ValueError(
                f"Expected supervision among {', '.join(SUPERVISIONS)}. Received: {kind!r}"
            )


def supervision_of(source: str) -> str:
    """The supervision of a released model, a key of `SUPERVISIONS`; empty where it is unknown.

    A fine-tuned model counts as trained with labels, if its pre-training is recognised.

    `source` is a name or path as `vit_tf.load` opens it. A local path is recognised only by its
    file name, and only with an extension in `_AUTHORS_FILES`: its folders are the user's own.
    """
    from vit_tf.checkpoints import released

    if source in released.bundled_models():
        return LABELS
    is_released = source in released.CHECKPOINTS or source.startswith(_RELEASED)
    name = source if is_released else os.path.basename(source)
    if not (is_released or name.endswith(_AUTHORS_FILES)):
        return ""
    matching_kinds = (
        kind for kind, pattern in _BY_NAME.items() if re.search(pattern, name, re.IGNORECASE)
    )
    supervision = next(matching_kinds, "")
    if source in released.CHECKPOINTS and not supervision:
        kind_by_paper = {
            released.PAPERS[paper]: kind
            for kind, paper_names in _BY_PAPER.items()
            for paper in paper_names.split()
        }
        supervision = kind_by_paper.get(released.CHECKPOINTS[source].citation, "")
    is_fine_tuned = re.search(_FINE_TUNED, name, re.IGNORECASE)
    return LABELS if supervision and is_fine_tuned else supervision


def training_images_of(source: str) -> int | None:
    """The number of images that a released or bundled model was trained on, where it is known.

    `source` is a name as `vit_tf.load` opens it.
    """
    from vit_tf.checkpoints import released

    is_bundled = source in released.bundled_models()
    if not (is_bundled or source in released.CHECKPOINTS or source.startswith(_RELEASED)):
        return None
    counts = (
        count for data, count in _IMAGES_BY_NAME.items() if re.search(data, source, re.IGNORECASE)
    )
    return next(counts, None)
