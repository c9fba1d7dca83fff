import dataclasses
from functools import partial

import numpy as np
import pytest
from study_models import study_model_of

import vit_tf
from vit_tf.analysis.engine.stream import evaluate
from vit_tf.analysis.figures.models import slug
from vit_tf.analysis.papers.raghu.section4_structure import cka_of, cka_of_two
from vit_tf.analysis.papers.raghu.section5_locality import (
    branch_field_of,
    head_similarity_of,
    receptive_field_of,
)
from vit_tf.analysis.papers.raghu.section7_tokens import (
    localization_of,
    localization_of_stages,
    ridge_probe_of,
)
from vit_tf.analysis.papers.raghu.section8_scale import data_scale_of
from vit_tf.features.layers import sublayers
from vit_tf.features.structure import block_outputs


def subject(name, role, model):
    features = partial(vit_tf.submodel, model)
    return study_model_of(name, role, name, model.taps, model.token_grid, features)


@pytest.fixture(scope="module")
def vit():
    return subject("ViT-CLS", "vit", vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 3))


@pytest.fixture(scope="module")
def bit():
    return subject("BiT", "resnet", vit_tf.BiT((16, 16, 3), (1, 2), 0.5, 3, stem="small"))


def test_taps_chosen_for_comparison(bit):
    taps = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 3, without_skips=["block01/mlp"]).taps
    assert sublayers(taps)[:5] == [
        "embedding",
        "block00/attention/norm",
        "block00/attention/branch",
        "block00/attention/sum",
        "block00/mlp/norm",
    ]
    assert sublayers(taps)[-3:] == ["block01/mlp/sum", "norm", "pooled"]
    assert block_outputs(taps) == ["embedding", "block00/mlp/sum", "block01/mlp/sum"]
    assert block_outputs(bit.taps) == [
        "root",
        "stage1/unit01/sum",
        "stage2/unit01/sum",
        "stage2/unit02/sum",
    ]


def test_slugs_are_file_names():
    assert slug("ViT-CLS without skips in block03") == "vit-cls-without-skips-in-block03"
    assert slug("ViT-B/16") == "vit-b-16"


def test_measurements_are_named_after_analysis_and_models(vit, bit):
    assert cka_of(vit).name == "cka.vit-cls"
    assert cka_of_two(vit, bit).name == "cka.vit-cls.bit"
    assert receptive_field_of(vit).name == "receptive_field.vit-cls"
    assert branch_field_of(vit).name == "receptive_field_branch.vit-cls"
    names = [ridge_probe_of(bit, tokens).name for tokens in ("all", "cls", "each")]
    assert names == ["ridge_probe.bit", "ridge_probe_first.bit", "ridge_probe_tokens.bit"]
    tenth = dataclasses.replace(bit, role="fraction", detail=0.1, base=vit)
    (scale,) = data_scale_of([vit, tenth]).values()
    assert scale.name == "data_scale.vit-cls"
    assert [item.models for item in scale.before] == [(tenth, vit)]


def test_models_with_and_without_stages(vit, bit):
    assert vit.stages == [] and bit.stages == ["stage1", "stage2"]
    assert vit.weights and not bit.weights
    assert localization_of(vit).taps == (("block00/mlp/sum", "block01/mlp/sum"),)
    assert localization_of(bit).taps == (("stage2/unit01/sum", "stage2/unit02/sum"),)
    assert localization_of_stages(bit)["stage1"].taps == (("stage1/unit01/sum",),)
    heads = head_similarity_of(vit, bit)
    assert heads.taps == (
        ("block00/attention/weights", "block00/attention/heads"),
        ("root", "stage1/unit01/sum"),
    )


def test_places_of_an_early_stage_lie_at_the_quarters_of_its_map(bit):
    early = localization_of_stages(bit)["stage1"]
    features = bit.select(*early.taps[0])
    rng = np.random.default_rng(0)
    images = rng.normal(size=(8, 16, 16, 3)).astype("float32")
    totals = localization_of_stages(bit)["stage1"].make(features)
    result = evaluate(totals, images, features)
    side = result.sizes["row"]
    quarters = {side // 4, side // 2, 3 * side // 4}
    assert set(result.token_row.values) == set(result.token_column.values) == quarters
    assert result.sizes["token"] == 9
