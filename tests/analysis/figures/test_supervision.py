"""How models were trained is known for released names, and decides what is tested on them."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from study_models import study_model_of

from vit_tf.analysis.figures.supervision import (
    SUPERVISIONS,
    require_supervisions,
    supervision_of,
    training_images_of,
)
from vit_tf.analysis.papers.walmer.section4_attention import FIGURE_4
from vit_tf.analysis.papers.walmer.section5_clusters import supervised_most_semantic
from vit_tf.analysis.report.scorecard import evaluate
from vit_tf.analysis.statistics.claims import NotTested, Tested
from vit_tf.checkpoints import released


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit-cls-cifar10", "labels"),
        ("vit_models/augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "labels"),
        ("timm/vit_base_patch16_clip_224.openai", "image-text"),
        ("timm/vit_base_patch16_clip_224.openai_ft_in1k", "labels"),
        ("timm/vit_base_patch16_siglip_224.webli", "image-text"),
        ("timm/vit_small_patch14_reg4_dinov2.lvd142m", "self-distillation"),
        ("timm/vit_medium_patch16_reg1_gap_256.sbb_in1k", "labels"),
        ("timm/vit_base_patch16_224.mae", "reconstruction"),
        ("timm/beit_base_patch16_224.in22k_ft_in22k", "labels"),
        ("timm:vit_base_patch16_224.dino", "self-distillation"),
        ("weights/mae_pretrain_vit_base.pth", "reconstruction"),
        ("weights/mae_finetuned_vit_base.pth", "labels"),
        ("beit_base_patch16_224_pt22k.pth", "reconstruction"),
        ("beit_base_patch16_224_pt22k_ft22k.pth", "labels"),
        ("vit-b-300ep.pth.tar", "contrastive"),
        ("facebook/dinov2-base", "self-distillation"),
        ("hf://openai/clip-vit-base-patch32", "image-text"),
        ("weights/dino_deitsmall8_pretrain.pth", "self-distillation"),
        ("mocov3-vit-base-300ep.pth.tar", "contrastive"),
        # I-JEPA predicts features, which is none of these kinds.
        ("hf://facebook/ijepa_vith14_1k", ""),
        ("runs/dino_of_mine", ""),
        ("dinosaurs/", ""),
        ("runs/dinosaurs.pth", ""),
        ("mae/eclipse.pt", ""),
        ("ViT-B-16.pt", "image-text"),
        ("ViT-B_16.npz", "labels"),
        ("runs/clip/model.keras", ""),
        ("mae.keras", ""),
        ("model.pth", ""),
        ("timm:vit_base_patch16_224", ""),
    ],
)
def test_supervision_of_released_names(name, expected):
    assert supervision_of(name) == expected


def test_every_checkpoint_that_is_known_by_name_has_its_supervision():
    names = [*released.bundled_models(), *released.CHECKPOINTS]
    assert {supervision_of(name) for name in names} <= set(SUPERVISIONS)
    # A claim about labels may not be tested on what was never trained with them.
    unlabelled = [name for name in names if supervision_of(name) == "reconstruction"]
    assert all(name.endswith(".mae") for name in unlabelled) and len(unlabelled) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit-cls-cifar10", 50_000),
        ("vit_models/imagenet21k/ViT-B_16", 14_197_122),
        ("bit_models/BiT-S-R50x1", 1_281_167),
        ("timm/vit_base_patch16_224.augreg_in21k_ft_in1k", 14_197_122),
        ("timm/vit_base_patch16_224.augreg_in1k", 1_281_167),
        ("timm/vit_base_patch16_224.dino", None),
        ("runs/my-in1k-model.keras", None),
    ],
)
def test_training_images_of_released_names(name, expected):
    assert training_images_of(name) == expected


def test_unknown_kinds_are_refused():
    require_supervisions(["labels", ""])
    with pytest.raises(ValueError, match=r"among labels, image-text.*'lables'"):
        require_supervisions(["lables"])


DISTANCE = xr.DataArray(np.repeat([[0.2], [0.1], [0.4], [0.5]], 2, axis=1), dims=("layer", "head"))


@pytest.mark.parametrize(
    "kind", ["labels", "image-text", "reconstruction", "self-distillation", ""]
)
def test_claims_about_supervised_vits_are_tested_on_those_only(kind):
    model = study_model_of("ViT", "vit", "key", (), None, None)
    model = replace(model, supervision=kind)
    copy = replace(model, name="copy", key="copy", role="untrained", base=model)
    results = {"unit_distance.vit": DISTANCE, "unit_distance.copy": 0 * DISTANCE + 0.5}
    claims = evaluate([FIGURE_4], [model, copy], results)
    dips, rises = (
        next(x for x in claims if x.name == f"distance-{end}") for end in ("dips", "rises")
    )
    assert isinstance(dips, Tested)  # about all ViTs
    is_tested = kind in ("labels", "image-text")
    assert isinstance(rises, Tested) == is_tested
    if kind == "reconstruction":
        assert "ViT was trained by reconstruction of masked patches; the claim is about ViTs" in (
            rises.reason
        )
    elif not kind:
        assert "not known how ViT was trained" in rises.reason


OF_SUPERVISED = ("supervision-orders-attention", "supervision-orders-more-than-size")


@pytest.mark.parametrize(
    ("vit", "masked", "reason"),
    [
        ("labels", "reconstruction", ""),
        ("image-text", "", ""),
        ("self-distillation", "reconstruction", "vit was trained by self-distillation"),
        ("labels", "contrastive", "masked was trained by contrastive learning"),
        ("labels", "labels", "masked was trained with class labels"),
    ],
)
def test_both_sides_of_a_comparison_have_the_supervision_that_it_is_about(vit, masked, reason):
    model = replace(study_model_of("vit", "vit", "key", (), None, None), supervision=vit)
    other = replace(model, name="masked", role="masked", base=model, supervision=masked)
    variants = [
        replace(model, name=name, role=name, detail=1, base=model) for name in ("seed", "larger")
    ]
    results = {f"unit_distance.{name}": DISTANCE for name in ("vit", "masked", "seed", "larger")}
    rows = {row.name: row for row in evaluate([FIGURE_4], [model, other, *variants], results)}
    for name in OF_SUPERVISED:
        assert isinstance(rows[name], NotTested) == bool(reason), name
        assert not reason or reason in rows[name].reason.lower()
    assert supervised_most_semantic.supervision == ("labels", "image-text")
