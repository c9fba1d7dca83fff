"""The claims of Raghu et al. 2021 before they are measured: a table, in the paper's order.

Adding a claim is adding a row. No line was chosen after a measurement; `findings` gives the reason
for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..study.estimates import lower, upper
from . import findings
from .papers import RAGHU


@dataclass(frozen=True)
class Row:
    """What a claim is before it is measured.

    Attributes:
        name, statement, section, figure, quantity, threshold, direction, source: as those of a
            `Claim`.
        measure: what the statistic is, in words.
        compute: function of the results to an `Estimate`.
        inputs: names of the results, with the models' roles in braces: "cka.{vit}".
    """

    name: str
    statement: str
    section: str
    figure: str
    quantity: str
    measure: str
    compute: Callable
    inputs: tuple[str, ...]
    threshold: float = 0.0
    direction: str = "above"
    source: tuple[str, str] = RAGHU


ROWS = (
    Row(
        "uniform-structure",
        "Lower and upper layers are more alike in the ViT than in the ResNet.",
        "4",
        "1",
        "difference in CKA",
        "Mean CKA between lower and upper half, ViT minus ResNet.",
        findings.uniform_structure,
        ("cka.{vit}", "cka.{resnet}"),
    ),
    Row(
        "early-correspondence",
        "The lower half of the ResNet maps to a smaller share of the ViT.",
        "4",
        "2",
        "share of depth",
        "Share of the ViT's depth in which the best match of each lower ResNet layer lies.",
        findings.early_correspondence,
        ("cka.{vit}.{resnet}",),
        threshold=0.5,
        direction="below",
    ),
    Row(
        "first-block-mixes",
        "Heads of the first block are a mix of local and global, those of the last are not.",
        "5",
        "3",
        "difference in spread",
        "Spread of the heads' distances, first block minus last, in units of even attention.",
        findings.first_block_mixes,
        ("attention_distance.{vit}",),
    ),
    Row(
        "last-block-global",
        "All heads of the last block are global.",
        "5",
        "3",
        "relative distance",
        "Distance of the last block's most local head, in units of even attention.",
        findings.last_block_global,
        ("attention_distance.{vit}",),
        threshold=0.5,
    ),
    Row(
        "local-heads-resemble",
        "The more global a set of first-block heads, the less it resembles low ResNet layers.",
        "5",
        "5",
        "rank correlation",
        "Rank correlation of a head subset's mean distance and its CKA to low ResNet layers.",
        findings.local_heads_resemble,
        ("head_similarity.{vit}.{resnet}",),
        direction="below",
    ),
    Row(
        "early-fields",
        "Early receptive fields are larger in the ViT than in the ResNet.",
        "5",
        "6",
        "difference in extent",
        "Extent of the receptive fields of the lower half, ViT minus ResNet, in units of an even "
        "field.",
        findings.early_fields,
        ("receptive_field.{vit}", "receptive_field.{resnet}"),
    ),
    Row(
        "branch-fields",
        "Before the sum with the skip, attention depends less on its own patch than after it.",
        "5 and C",
        "C.4",
        "difference in share",
        "Share of the own patch in the receptive field, attention branch minus sum.",
        lambda branch, total, distance: findings.branch_fields(
            branch, total, int(distance.attrs["stride"])
        ),
        ("receptive_field_branch.{vit}", "receptive_field.{vit}", "attention_distance.{vit}"),
        direction="below",
    ),
    Row(
        "cls-skips-first",
        "In the first half, the skips carry the CLS token more than the spatial tokens.",
        "6",
        "7 left",
        "ratio CLS / spatial",
        "Norm ratio of skip and branch, CLS token over spatial tokens, in the lower half.",
        partial(findings.cls_over_spatial, half=lower),
        ("skip_ratio.{vit}",),
        threshold=1.0,
    ),
    Row(
        "spatial-skips-second",
        "In the second half, the skips carry the spatial tokens more than the CLS token.",
        "6",
        "7 left",
        "ratio CLS / spatial",
        "Norm ratio of skip and branch, CLS token over spatial tokens, in the upper half.",
        partial(findings.cls_over_spatial, half=upper),
        ("skip_ratio.{vit}",),
        threshold=1.0,
        direction="below",
    ),
    Row(
        "skip-influence",
        "Skips outweigh branches more in the ViT than in the ResNet.",
        "6",
        "7 right",
        "ratio ViT / ResNet",
        "Norm ratio of skip and branch, ViT over ResNet.",
        findings.skip_influence,
        ("skip_ratio.{vit}", "skip_ratio.{resnet}"),
        threshold=1.0,
    ),
    Row(
        "skips-partition",
        "Without the skips of a block, layers before it and after it are less alike.",
        "6",
        "8",
        "difference in CKA",
        "Mean CKA between the layers before and after the block, without its skips minus with.",
        findings.skips_partition,
        ("cka.{vit}", "cka.{without}", "block"),
        direction="below",
    ),
    Row(
        "skips-cost-accuracy",
        "Removing the skips of a middle block costs accuracy.",
        "6",
        "8",
        "difference in accuracy",
        "Test accuracy with all skips minus without those of the block.",
        findings.skips_cost_accuracy,
        ("accuracy.{vit}", "accuracy.{without}"),
    ),
    Row(
        "own-patch",
        "Tokens of the last layer resemble their own patch most.",
        "7",
        "9",
        "share beyond chance",
        "Share of tokens whose most similar patch is their own, less that of chance.",
        findings.own_patch,
        ("localization.{vit}",),
    ),
    Row(
        "cls-localizes-more",
        "A ViT trained with a CLS token localizes better than one with average pooling.",
        "7",
        "10",
        "difference in CKA",
        "CKA with the own patch less the mean with others, CLS minus average pooling.",
        findings.better_localised,
        ("localization.{vit}", "localization.{gap}"),
    ),
    Row(
        "vit-localizes-more",
        "The ViT localizes better than the ResNet.",
        "7",
        "9",
        "difference in CKA",
        "CKA with the own patch less the mean with others, ViT minus ResNet.",
        findings.better_localised,
        ("localization.{vit}", "localization.{resnet}"),
    ),
    Row(
        "gap-tokens-classify",
        "Single last-layer tokens tell the classes apart better with average pooling than with a "
        "CLS token.",
        "7",
        "11 left",
        "difference in accuracy",
        "Mean accuracy of single-token probes, average pooling minus CLS.",
        findings.better_tokens,
        ("ridge_probe_tokens.{gap}", "ridge_probe_tokens.{vit}"),
    ),
    Row(
        "resnet-tokens-classify",
        "Single last-layer places of the ResNet tell the classes apart better than tokens of a "
        "ViT with a CLS token.",
        "7",
        "11 left",
        "difference in accuracy",
        "Mean accuracy of single-token probes, ResNet minus CLS.",
        findings.better_tokens,
        ("ridge_probe_tokens.{resnet}", "ridge_probe_tokens.{vit}"),
    ),
    Row(
        "data-hunger",
        "Higher layers need more data than lower ones.",
        "8",
        "12",
        "difference in CKA",
        "CKA to the model trained on all data at the smallest fraction, lower blocks minus upper.",
        findings.data_hunger,
        ("data_scale.{vit}",),
    ),
)
